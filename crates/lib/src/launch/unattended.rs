//! Launches in the background for callers that have no user to ask: what would be a question is a failure.
//!
//! Dropping the future of a launch undoes it: a build is cancelled, and the keeper removes what it created.

use std::path::Path;

use bottle_backend::ProgressSink;
use bottle_contract::names::Slug;
use bottle_host::{Host, Settings};
use bottle_plan::Plan;
use bottle_plan::secrets::{self, Secrets};

use super::child::{Child, require_no_parent};
use super::git_directories::Outside;
use super::launching::Launching;
use super::marked;
use super::preflight::Preflight;
use super::resume::ResumeOrder;
use super::start::{BACKEND_VARIABLE, StartOrder};
use crate::failure::Failure;
use crate::notice::{Notice, Notify};
use crate::scanner_rules;

/// Starts a bottle in the background, for the bottle in [`bottle_host::PARENT`] if its client is one. Returns its slug.
///
/// # Errors
/// When it cannot be started, or when a user would have to be asked.
pub async fn start(
    host: &Host,
    settings: &Settings,
    mut order: StartOrder,
    notify: Notify<'_>,
) -> Result<Slug, Failure> {
    scanner_rules::load(host, notify)?;
    order.child = Child::of(host, Some(&order.agent)).await?;
    let named = order.backend.or_else(|| host.var(BACKEND_VARIABLE).map(str::to_owned));
    order.backend = order.child.as_ref().map(Child::backend).or(named);
    order.flags.detached = true;
    require_nothing_outside(order.workspace.all(host), host)?;
    let preflight = order.preflight(host, settings, notify).await?;
    launch(preflight, host, notify).await
}

/// Starts a preserved bottle again, in the background.
///
/// # Errors
/// When it cannot be started, when files would be discarded, or when a user would have to be asked.
pub async fn resume(
    host: &Host,
    settings: &Settings,
    mut order: ResumeOrder,
    notify: Notify<'_>,
) -> Result<(), Failure> {
    require_no_parent(host)?;
    scanner_rules::load(host, notify)?;
    order.flags.detached = true;
    let resuming = order.begin(host, notify).await?;
    let host = &resuming.host().clone();
    require_nothing_outside(resuming.copied(), host)?;
    let found = resuming.preflight(&order, settings, Vec::new(), notify).await?;
    if found.discards {
        return Err(Failure::state("files that are newer than the snapshot would be discarded")
            .about(&order.slug)
            .hint(format!("`bottle resume {} --snapshot` asks", order.slug)));
    }
    launch(found.launch, host, notify).await.map(drop)
}

async fn launch(preflight: Preflight, host: &Host, notify: Notify<'_>) -> Result<Slug, Failure> {
    let confirmed = preflight.confirmed();
    let marked = marked(host, &confirmed.plan, notify)?;
    let secrets = read_secrets(host, &confirmed.plan).await?;
    secrets.warnings.iter().for_each(|warning| notify(Notice::Warning(warning.clone())));
    let order = confirmed.order(marked, secrets.values, &ProgressSink::discard(), notify).await?;
    let slug = order.plan.identity.slug.clone();
    let started = Launching::begin(host, &order).await?.started(&|_| ()).await;
    started.map_err(|not_started| {
        for left in &not_started.left {
            notify(Notice::Warning(format!("not undone: {left}; `bottle cleanup` tries again")));
        }
        not_started.failure.about(&slug)
    })?;
    Ok(slug)
}

/// Reads every secret of the plan. One that would be asked for is missing.
async fn read_secrets(host: &Host, plan: &Plan) -> Result<Secrets, Failure> {
    let (host, needs) = (host.clone(), plan.secrets.clone());
    let runtime = tokio::runtime::Handle::current();
    let reading =
        tokio::task::spawn_blocking(move || runtime.block_on(secrets::resolve(&host, &needs, None)));
    let read = reading.await.map_err(|error| Failure::cannot("read the secrets", error))?;
    Ok(read?)
}

/// Refuses directories of git outside of these directories, each of which a user would have to confirm.
fn require_nothing_outside<'a>(
    directories: impl IntoIterator<Item = &'a Path>,
    host: &Host,
) -> Result<(), Failure> {
    match Outside::find(directories, host, &[])?.first() {
        Some(outside) => Err(outside.not_confirmed()),
        None => Ok(()),
    }
}
