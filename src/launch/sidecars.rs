//! Raising the guard: the bundle is started, gets its secrets, and says that every daemon holds them.

use std::time::Duration;

use bottle_channel::{Channel, Side};
use bottle_contract::credential;
use bottle_contract::names::Name;
use bottle_contract::route::{self, Form};
use bottle_contract::session::bundle::{
    BundleEvent, BundleRequest, Credential, Provision, Routes, RuleFile, SuperviseProvision,
};
use bottle_contract::session::gate::{GateKey, GateProvision, GateRepo};
use bottle_contract::session::guest::SecretText;
use bottle_contract::session::{Hello, Role};
use tokio::task::JoinHandle;

use super::{LaunchError, Trust, Work};
use crate::host::{OwnRules, addresses, roots};
use crate::plan::{PlannedKey, PlannedRepo, Value};

/// How long a bundle may take from its start to its word; it makes one key and opens a few sockets.
const READY_WITHIN: Duration = Duration::from_secs(20);

/// Starts the bundle and provisions it.
pub(super) async fn raise(
    work: &Work<'_>,
    roots: JoinHandle<String>,
) -> Result<(Channel, Trust), LaunchError> {
    work.backend.start_bundle(&work.site(), &work.order.prepared).await?;
    let stream = work.backend.connect_bundle(&work.order.plan.identity.slug).await?;
    let (channel, _, _) = Channel::establish(stream, Side::Dialed, Hello::of(Role::Keeper))
        .await
        .map_err(|error| LaunchError::bundle(format!("did not greet: {error}")))?;
    let roots = roots
        .await
        .map_err(|error| LaunchError::Host(format!("cannot read this machine's roots: {error}")))?;
    let told = SidecarConfig::of(work, &roots)?;
    let plan = &work.order.plan;
    let egress = BundleRequest::Provision(Box::new(provision(work, &told)?));
    let gate =
        if plan.repos.is_empty() { None } else { Some(BundleRequest::Gate(Box::new(gate(work, told)?))) };
    let supervise = plan.supervise.then(|| {
        let routes = Routes::first(plan.egress.routes.clone());
        BundleRequest::Supervise(SuperviseProvision { routes, call_seconds: plan.waits.call_seconds })
    });
    let egress = async {
        match ask(&channel, egress, "take its routes").await? {
            BundleEvent::Ready { ca_certificate } => Ok(ca_certificate),
            _ => Err(out_of_turn()),
        }
    };
    let gate = open(&channel, gate, "open the git gate", |event| matches!(event, BundleEvent::GateOpen));
    let supervise =
        open(&channel, supervise, "open the MCP server", |event| matches!(event, BundleEvent::SuperviseOpen));
    // Side by side: each is another process's work.
    let (authority, (), ()) = tokio::try_join!(egress, gate, supervise)?;
    Ok((channel, Trust { authority, roots }))
}

/// What every guard is told, read once.
struct SidecarConfig {
    /// Trusted upstream: this machine's, and the bottle's own.
    upstream_roots: String,
    /// Read again, as the host's roots are: whoever started it was told what is wrong with them.
    rules: Vec<RuleFile>,
}

impl SidecarConfig {
    fn of(work: &Work<'_>, roots: &str) -> Result<Self, LaunchError> {
        let extra = work.order.plan.egress.ca_bundle.as_deref().map(roots::bundle);
        let extra = extra.transpose().map_err(LaunchError::Host)?;
        let own = OwnRules::load(work.host).map_err(|error| LaunchError::Host(error.to_string()))?;
        Ok(Self { upstream_roots: format!("{roots}{}", extra.unwrap_or_default()), rules: own.files })
    }
}

/// Has the bundle do one thing, named as the end of a sentence, and brings its word.
async fn ask(channel: &Channel, request: BundleRequest, what: &str) -> Result<BundleEvent, LaunchError> {
    let lost = |error: bottle_channel::ChannelError| LaunchError::bundle(format!("went away: {error}"));
    let exchange = async {
        let mut stream = channel.open(&request).await.map_err(lost)?;
        stream.receive().await.map_err(lost)
    };
    let late = |_| LaunchError::bundle(format!("did not {what} in time"));
    match tokio::time::timeout(READY_WITHIN, exchange).await.map_err(late)?? {
        BundleEvent::Rejected { message } => Err(LaunchError::bundle(format!("could not {what}: {message}"))),
        event => Ok(event),
    }
}

/// The same for what this bottle may have no use for, and whose word says nothing more than that it is done.
async fn open(
    channel: &Channel,
    request: Option<BundleRequest>,
    what: &str,
    is_done: fn(&BundleEvent) -> bool,
) -> Result<(), LaunchError> {
    let Some(request) = request else { return Ok(()) };
    if is_done(&ask(channel, request, what).await?) { Ok(()) } else { Err(out_of_turn()) }
}

fn out_of_turn() -> LaunchError {
    LaunchError::bundle("answered out of turn")
}

/// What the git gate is given: the keys, and all that must not leave in a push.
fn gate(work: &Work<'_>, told: SidecarConfig) -> Result<GateProvision, LaunchError> {
    let plan = &work.order.plan;
    let secrets = &work.order.secrets;
    let value = |id: &String, name: &Name| {
        secrets
            .get(id)
            .cloned()
            .ok_or_else(|| LaunchError::Host(format!("the repository {name} has no key: {id} is missing")))
    };
    let mut repos = Vec::new();
    for repo in &plan.repos {
        let key = match &repo.key {
            PlannedKey::Token { secret } => GateKey::Token { token: value(secret, &repo.name)? },
            PlannedKey::Ssh { secret, .. } => {
                GateKey::Ssh { private: value(secret, &repo.name)?, known_hosts: known_hosts(repo)? }
            }
            PlannedKey::Deploy { .. } => {
                let made = work.deploy_keys.get(&repo.name).cloned();
                let none = || LaunchError::Host(format!("no deploy key was made for {}", repo.name));
                GateKey::Ssh { private: made.ok_or_else(none)?, known_hosts: known_hosts(repo)? }
            }
        };
        repos.push(GateRepo {
            name: repo.name.clone(),
            url: repo.url.clone(),
            key,
            refs: repo.refs.clone(),
            supervise: repo.supervise,
            stale_ok: repo.stale_ok,
        });
    }
    let held = secrets_of_the_environment(work);
    Ok(GateProvision {
        slug: plan.identity.slug.clone(),
        repos,
        credentials: secrets
            .values()
            .chain(work.deploy_keys.values())
            .filter(|secret| !held.contains(secret))
            .cloned()
            .collect(),
        known_secrets: held.iter().chain(&work.order.marked).chain([&work.canary.value]).cloned().collect(),
        placeholders: plan.placeholders.clone(),
        rules: told.rules,
        upstream_roots: told.upstream_roots,
        ask_seconds: plan.supervise.then_some(plan.waits.git_seconds),
    })
}

/// The host keys that are trusted: nothing is at first sight. Whoever started it was told of missing ones.
fn known_hosts(repo: &PlannedRepo) -> Result<String, LaunchError> {
    let known = repo.host_keys().map_err(|error| LaunchError::Host(error.to_string()))?;
    Ok(known.unwrap_or_default())
}

fn provision(work: &Work<'_>, told: &SidecarConfig) -> Result<Provision, LaunchError> {
    let plan = &work.order.plan;
    let secrets = &work.order.secrets;
    let table = route::parse_routes(&plan.egress.routes, Form::Runtime)
        .map_err(|error| LaunchError::Host(format!("the plan's routes do not parse: {error}")))?;
    let credentials = credential::bindings(&table)
        .into_iter()
        .map(|binding| Credential { value: secrets.get(&binding.slot).cloned(), binding })
        .collect();
    Ok(Provision {
        slug: plan.identity.slug.clone(),
        routes: Routes::first(plan.egress.routes.clone()),
        credentials,
        known_secrets: secrets_of_the_environment(work),
        marked: work.order.marked.clone(),
        placeholders: plan.placeholders.clone(),
        rules: told.rules.clone(),
        canary: Some(work.canary.value.clone()),
        ask_seconds: plan.supervise.then_some(plan.waits.token_seconds),
        upstream_roots: told.upstream_roots.clone(),
        upstream_proxy: plan.egress.upstream_proxy.as_ref().and_then(|value| match value {
            Value::Literal(url) => Some(url.as_str().into()),
            Value::Secret(id) => secrets.get(id).cloned(),
        }),
        host_addresses: addresses::of_this_host().map_err(|error| {
            LaunchError::Host(format!("cannot list this machine's own addresses: {error}"))
        })?,
        log: plan.egress.log,
        log_keep: plan.egress.log_keep,
        limits: plan.egress.limits,
    })
}

/// The secrets that the agent holds: those of the bottle's variables.
fn secrets_of_the_environment(work: &Work<'_>) -> Vec<SecretText> {
    let values = work.order.plan.env.values().filter_map(|value| match value {
        Value::Secret(id) => work.order.secrets.get(id).cloned(),
        Value::Literal(_) => None,
    });
    values.collect()
}
