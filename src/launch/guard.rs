//! Raising the guard: the bundle is started, gets its secrets, and says that every daemon holds them.

use std::time::Duration;

use bottle_channel::{Channel, Side};
use bottle_contract::credential;
use bottle_contract::route::{self, Form};
use bottle_contract::session::bundle::{BundleEvent, BundleRequest, Credential, Provision, Routes};
use bottle_contract::session::guest::SecretText;
use bottle_contract::session::{Hello, Role};
use tokio::task::JoinHandle;

use super::{LaunchError, Trust, Work};
use crate::host::{addresses, roots};
use crate::plan::Value;

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
    let ready = tokio::time::timeout(READY_WITHIN, ask(&channel, provision(work, &roots)?));
    let authority = ready.await.map_err(|_| LaunchError::bundle("was not ready in time"))??;
    Ok((channel, Trust { authority, roots }))
}

async fn ask(channel: &Channel, provision: Provision) -> Result<String, LaunchError> {
    let lost = |error: bottle_channel::ChannelError| LaunchError::bundle(format!("went away: {error}"));
    let request = BundleRequest::Provision(Box::new(provision));
    let mut stream = channel.open(&request).await.map_err(lost)?;
    match stream.receive().await.map_err(lost)? {
        BundleEvent::Ready { ca_certificate } => Ok(ca_certificate),
        BundleEvent::Rejected { message } => {
            Err(LaunchError::bundle(format!("refused its routes: {message}")))
        }
        _ => Err(LaunchError::bundle("answered out of turn")),
    }
}

fn provision(work: &Work<'_>, roots: &str) -> Result<Provision, LaunchError> {
    let plan = &work.order.plan;
    let extra = plan.egress.ca_bundle.as_deref().map(roots::bundle).transpose().map_err(LaunchError::Host)?;
    let secrets = &work.order.secrets;
    let table = route::parse_routes(&plan.egress.routes, Form::Runtime)
        .map_err(|error| LaunchError::Host(format!("the plan's routes do not parse: {error}")))?;
    let credentials = credential::bindings(&table)
        .into_iter()
        .map(|binding| Credential { value: secrets.get(&binding.slot).cloned(), binding })
        .collect();
    Ok(Provision {
        slug: plan.identity.slug.clone(),
        routes: Routes { revision: 1, yaml: plan.egress.routes.clone() },
        credentials,
        known_secrets: secrets_of_the_environment(work),
        upstream_roots: format!("{roots}{}", extra.unwrap_or_default()),
        upstream_proxy: plan.egress.upstream_proxy.as_ref().and_then(|value| match value {
            Value::Literal(url) => Some(url.as_str().into()),
            Value::Secret(id) => secrets.get(id).cloned(),
        }),
        host_addresses: addresses::of_this_host().map_err(|error| {
            LaunchError::Host(format!("cannot list this machine's own addresses: {error}"))
        })?,
        log: plan.egress.log,
        log_keep: plan.egress.log_keep,
    })
}

fn secrets_of_the_environment(work: &Work<'_>) -> Vec<SecretText> {
    let values = work.order.plan.env.values().filter_map(|value| match value {
        Value::Secret(id) => work.order.secrets.get(id).cloned(),
        Value::Literal(_) => None,
    });
    values.collect()
}
