//! Starts the bundle, sends each sidecar its configuration and secrets, and waits until all sidecars are ready.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use bottle_channel::Channel;
use bottle_host::{ScannerRules, Settings, addresses, roots};
use bottle_plan::{PlannedKey, PlannedRepo, Value};
use bottle_policy::credential;
use bottle_policy::names::Name;
use bottle_protocol::session::bundle::{
    BundleEvent, BundleRequest, Credential, Provision, Routes, RuleFile, SuperviseProvision,
};
use bottle_protocol::session::git_gate::{GateKey, GateProvision, GateRepo};
use bottle_protocol::session::guest::SecretText;
use tokio::task::JoinHandle;

use super::connection::connect;
use super::context::{LaunchContext, Trust};
use super::error::{LaunchError, Peer};

/// How long the bundle may take to answer one provisioning request before the launch fails. To answer, the bundle
/// generates one key and opens a few sockets.
const READY_WITHIN: Duration = Duration::from_secs(20);

/// Starts the bundle and provisions it.
pub(super) async fn start(
    context: &LaunchContext<'_>,
    roots: JoinHandle<String>,
) -> Result<(Channel, Trust), LaunchError> {
    context.backend.start_bundle(&context.launch(), &context.order.prepared).await?;
    let channel = connect(context.backend, &context.order.plan.identity.slug, Peer::Bundle).await?;
    let roots = roots.await.map_err(LaunchError::host("read this machine's roots"))?;
    let config = SidecarConfig::load(context, &roots)?;
    let plan = &context.order.plan;
    let egress = BundleRequest::Provision(Box::new(provision(context, &config)?));
    let gate = if plan.repos.is_empty() {
        None
    } else {
        Some(BundleRequest::Gate(Box::new(gate(context, config)?)))
    };
    let supervise = plan.supervise.then(|| {
        let routes = Routes::first(plan.egress.routes.clone());
        BundleRequest::Supervise(SuperviseProvision {
            routes,
            call_seconds: plan.waits.call_seconds,
            keeper_tools: plan.mcp.is_some(),
        })
    });
    let egress = async {
        match ask(&channel, egress, "take its routes").await? {
            BundleEvent::Ready { ca_certificate } => Ok(ca_certificate),
            _ => Err(LaunchError::Unexpected(Peer::Bundle)),
        }
    };
    let gate = open(&channel, gate, "open the git gate", |event| matches!(event, BundleEvent::GateOpen));
    let supervise =
        open(&channel, supervise, "open the MCP server", |event| matches!(event, BundleEvent::SuperviseOpen));
    // The requests run in parallel, because each request is answered by a different process.
    let (authority, (), ()) = tokio::try_join!(egress, gate, supervise)?;
    Ok((channel, Trust { authority, roots }))
}

/// The configuration that several sidecars share. Each launch reads it only once.
struct SidecarConfig {
    /// The trusted roots for upstream connections: this machine's roots, and the roots that the bottle's manifest adds.
    upstream_roots: String,
    /// The user's scanner rules. The launch reads these rules again, after `bottle start` has already reported errors
    /// in them.
    rules: Vec<RuleFile>,
}

impl SidecarConfig {
    fn load(context: &LaunchContext<'_>, roots: &str) -> Result<Self, LaunchError> {
        let upstream_roots = roots::with_bundle(roots, context.order.plan.egress.ca_bundle.as_deref())?;
        Ok(Self { upstream_roots, rules: ScannerRules::load(context.host)?.files })
    }
}

/// Sends one request and returns the bundle's answer. `what` describes the request in errors, for example `open the git
/// gate`.
async fn ask(
    channel: &Channel,
    request: BundleRequest,
    what: &'static str,
) -> Result<BundleEvent, LaunchError> {
    let peer = Peer::Bundle;
    let exchange = async {
        let mut stream = channel.open(&request).await.map_err(|error| peer.lost(error))?;
        stream.receive().await.map_err(|error| peer.lost(error))
    };
    let late = |_| LaunchError::Late(peer, what);
    match tokio::time::timeout(READY_WITHIN, exchange).await.map_err(late)?? {
        BundleEvent::Rejected { message } => {
            Err(LaunchError::Refused(peer, format!("could not {what}: {message}")))
        }
        event => Ok(event),
    }
}

/// Sends the request and checks with `is_done` that the bundle confirms it. Does nothing if `request` is `None`.
async fn open(
    channel: &Channel,
    request: Option<BundleRequest>,
    what: &'static str,
    is_done: fn(&BundleEvent) -> bool,
) -> Result<(), LaunchError> {
    let Some(request) = request else { return Ok(()) };
    match is_done(&ask(channel, request, what).await?) {
        true => Ok(()),
        false => Err(LaunchError::Unexpected(Peer::Bundle)),
    }
}

/// Builds the git gate's configuration: the keys of the repositories, and the secrets for which the git gate scans
/// pushes.
fn gate(context: &LaunchContext<'_>, config: SidecarConfig) -> Result<GateProvision, LaunchError> {
    let plan = &context.order.plan;
    let secrets = &context.order.secrets;
    let value = |id: &String, name: &Name| {
        secrets.get(id).cloned().ok_or_else(|| {
            let (name, secret) = (name.to_string(), id.clone());
            LaunchError::NoSecret { object: "repository", name, part: "key", secret }
        })
    };
    let mut repos = Vec::new();
    for repo in &plan.repos {
        let key = match &repo.key {
            PlannedKey::Token { secret } => GateKey::Token { token: value(secret, &repo.name)? },
            PlannedKey::Ssh { secret, .. } => {
                GateKey::Ssh { private: value(secret, &repo.name)?, known_hosts: known_hosts(repo)? }
            }
            PlannedKey::Deploy { .. } => {
                let made = context.deploy_keys.get(&repo.name).cloned();
                let none = || LaunchError::NoDeployKey(repo.name.clone());
                GateKey::Ssh { private: made.ok_or_else(none)?, known_hosts: known_hosts(repo)? }
            }
        };
        repos.push(GateRepo {
            name: repo.name.clone(),
            url: repo.url.clone(),
            address: repo.address.clone(),
            key,
            refs: repo.refs.clone(),
            supervise: repo.supervise,
            stale_ok: repo.stale_ok,
        });
    }
    let env_secrets = environment_secrets(context);
    Ok(GateProvision {
        slug: plan.identity.slug.clone(),
        repos,
        credentials: secrets
            .values()
            .chain(context.deploy_keys.values())
            .filter(|secret| !env_secrets.contains(secret))
            .cloned()
            .collect(),
        known_secrets: env_secrets
            .iter()
            .chain(&context.order.marked)
            .chain([&context.canary.value])
            .chain(&context.earlier_canaries)
            .cloned()
            .collect(),
        placeholders: plan.placeholders.clone(),
        rules: config.rules,
        upstream_roots: config.upstream_roots,
        ask_seconds: plan.supervise.then_some(plan.waits.git_seconds),
    })
}

/// Returns the trusted host keys of a repository. No host key is trusted on first use. `bottle start` has already
/// reported missing host keys.
fn known_hosts(repo: &PlannedRepo) -> Result<String, LaunchError> {
    Ok(repo.host_keys()?.unwrap_or_default())
}

fn provision(context: &LaunchContext<'_>, config: &SidecarConfig) -> Result<Provision, LaunchError> {
    let plan = &context.order.plan;
    let secrets = &context.order.secrets;
    let credentials = credential::bindings(&plan.egress.routes)
        .into_iter()
        .map(|binding| Credential { value: secrets.get(&binding.slot).cloned(), binding })
        .collect();
    Ok(Provision {
        slug: plan.identity.slug.clone(),
        routes: Routes::first(plan.egress.routes.clone()),
        credentials,
        known_secrets: environment_secrets(context),
        marked: context.order.marked.clone(),
        placeholders: plan.placeholders.clone(),
        rules: config.rules.clone(),
        canary: Some(context.canary.value.clone()),
        earlier_canaries: context.earlier_canaries.clone(),
        ask_seconds: plan.supervise.then_some(plan.waits.token_seconds),
        upstream_roots: config.upstream_roots.clone(),
        upstream_proxy: plan.egress.upstream_proxy.as_ref().and_then(|value| match value {
            Value::Literal(url) => Some(url.as_str().into()),
            Value::Secret(id) => secrets.get(id).cloned(),
        }),
        host_addresses: addresses::of_this_host()
            .map_err(LaunchError::host("list this machine's own addresses"))?,
        log: plan.egress.log,
        log_keep: plan.egress.log_keep,
        limits: plan.egress.limits,
        models: plan.egress.metering.clone(),
        budgeted_hosts: budgeted_hosts(context)?,
    })
}

/// Returns the hosts for which this launch or the settings of this home declare a budget.
fn budgeted_hosts(context: &LaunchContext<'_>) -> Result<Vec<String>, LaunchError> {
    let settings = Settings::load(context.host)
        .map_err(io::Error::other)
        .map_err(LaunchError::host("read the settings"))?;
    let declared = context.order.plan.budget.iter().chain(&settings.budget);
    let hosts = declared.map(|one| &one.limit.key).filter(|key| key.contains('.'));
    Ok(hosts.cloned().collect::<BTreeSet<_>>().into_iter().collect())
}

/// Returns the values of the secrets in the agent's environment.
fn environment_secrets(context: &LaunchContext<'_>) -> Vec<SecretText> {
    let values = context.order.plan.env.values().filter_map(|value| match value {
        Value::Secret(id) => context.order.secrets.get(id).cloned(),
        Value::Literal(_) => None,
    });
    values.collect()
}
