//! Launches bottles in the background, for callers that cannot ask the user. If the user would have to answer a
//! question, the launch fails.
//!
//! Dropping the future of a launch undoes the launch: an image build is cancelled, and the keeper removes everything
//! that it created.

use std::path::Path;
use std::time::Duration;

use bottle_backend::ProgressSink;
use bottle_host::{Host, Settings};
use bottle_instance::{State, Store};
use bottle_keeper::blocking::Caller;
use bottle_keeper::launch::order::LaunchOrder;
use bottle_plan::Plan;
use bottle_plan::secrets::{self, Secrets};
use bottle_policy::names::Slug;

use super::child::{Child, require_no_parent};
use super::confirmed::{Confirmed, marked};
use super::fork::{Fork, ForkOrder, ForkOrders};
use super::git_directories::Outside;
use super::launching::{Launching, NotStarted, Running, SideBySide};
use super::preflight::Preflight;
use super::resume::ResumeOrder;
use super::start::{BACKEND_VARIABLE, StartOrder};
use crate::discard::discard;
use crate::failure::Failure;
use crate::notice::{Notice, Notify, unheard};
use crate::scanner_rules;
use crate::stop::stop;
use crate::threads::{self, cancelled};

/// Starts a bottle in the background. If the client is a bottle, the variable [`bottle_host::PARENT`] names this
/// bottle, the parent. Returns the slug of the new bottle.
///
/// # Errors
/// When the bottle cannot be started, or when the start would have to ask the user a question.
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
    require_nothing_outside(order.workspace.all(host), host).await?;
    let preflight = order.preflight(host, settings, notify).await?;
    launch(preflight, host, notify).await
}

/// Starts a kept bottle again, in the background.
///
/// # Errors
/// When the bottle cannot be started, when files would be discarded, or when the start would have to ask the user a
/// question.
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
    require_nothing_outside(resuming.copied(), host).await?;
    let found = resuming.preflight(&order, settings, Vec::new(), notify).await?;
    if found.discards {
        return Err(Failure::state("files that are newer than the snapshot would be discarded")
            .about(&order.slug)
            .hint(format!("`bottle resume {} --snapshot` asks", order.slug)));
    }
    launch(found.launch, host, notify).await.map(drop)
}

/// The result of a fork.
#[derive(Debug)]
pub struct Forked {
    /// The slugs of the new bottles that run.
    pub slugs: Vec<Slug>,
    /// Why the other new bottles do not run. `None` if all new bottles run.
    pub failure: Option<Failure>,
}

/// Starts bottles in the background, from the files of another bottle. If the future is dropped, a separate thread
/// removes the new bottles that were already started, and the temporary snapshot. If this process ends before the
/// thread is done, a cleanup removes the snapshot.
///
/// # Errors
/// When no bottle was started.
pub async fn fork(host: &Host, order: ForkOrder) -> Result<Forked, Failure> {
    let host = host.clone();
    let forking = async move |mut caller: Caller| {
        require_no_parent(&host)?;
        let settings = Settings::load(&host)?;
        scanner_rules::load(&host, &unheard)?;
        let preparing = async {
            let mut found = order.preflight(&host, &settings, &unheard).await?;
            let snapshot = found.snapshot(&unheard).await?;
            Ok::<_, Failure>((found, snapshot))
        };
        let (found, snapshot) = caller.waits_for(preparing).await.unwrap_or_else(|| Err(cancelled()))?;
        // Saving the snapshot is not cancelled, because the keeper would continue to save it. A temporary snapshot is
        // removed after it is complete.
        let point = snapshot.saved().await?;
        let host = found.host.clone();
        let Fork { confirmed, orders, point } = found.fork(point);
        let mut slugs = Vec::new();
        let started = caller.waits_for(launch_all(confirmed, orders, &host, &mut slugs)).await;
        point.release(&host, &unheard).await;
        match started {
            Some(Err(failure)) if slugs.is_empty() => Err(failure),
            Some(started) => Ok(Forked { slugs, failure: started.err() }),
            None => {
                for slug in &slugs {
                    undo(&host, slug).await;
                }
                Err(cancelled())
            }
        }
    };
    threads::run(forking).await
}

/// Removes a bottle that was just started.
async fn undo(host: &Host, slug: &Slug) {
    let removed = async {
        let _ended = stop(host, slug, Duration::ZERO, |_| {}).await?;
        match Store::of(host).state(slug) {
            Some(State::Kept(_)) => discard(host, slug).await.map(drop),
            _ => Ok(()),
        }
    };
    if let Err(error) = removed.await {
        tracing::warn!("cannot remove {slug}: {}", error.message);
    }
}

async fn launch(preflight: Preflight, host: &Host, notify: Notify<'_>) -> Result<Slug, Failure> {
    let order = order(preflight.confirmed(), host, notify).await?;
    let slug = order.plan.identity.slug.clone();
    let started = Launching::begin(host, &order).await?.started(&|_| ()).await;
    started.map_err(|not_started| failure(not_started, &slug, notify))?;
    Ok(slug)
}

/// Launches the bottles of a fork, and adds the slugs of the bottles that run to `slugs`.
async fn launch_all(
    confirmed: Confirmed,
    orders: ForkOrders,
    host: &Host,
    slugs: &mut Vec<Slug>,
) -> Result<(), Failure> {
    let orders = orders.of(&order(confirmed, host, &unheard).await?)?;
    let running = Running::default();
    let mut launches = SideBySide::begin(host, &orders, &running);
    let mut result = Ok(());
    while let Some((order, started)) = launches.next().await {
        let slug = &order.plan.identity.slug;
        match started {
            Ok(()) => slugs.push(slug.clone()),
            Err(not_started) => result = result.and(Err(failure(not_started, slug, &unheard))),
        }
    }
    result
}

/// Reads the secrets, prepares the images, and returns the launch order.
async fn order(confirmed: Confirmed, host: &Host, notify: Notify<'_>) -> Result<LaunchOrder, Failure> {
    let marked = marked(host, &confirmed.plan, notify)?;
    let secrets = read_secrets(host, &confirmed.plan).await?;
    secrets.warnings.iter().for_each(|warning| notify(Notice::Warning(warning.clone())));
    confirmed.order(marked, secrets.values, &ProgressSink::discard(), notify).await
}

fn failure(not_started: NotStarted, slug: &Slug, notify: Notify<'_>) -> Failure {
    for left in &not_started.left {
        notify(Notice::Warning(format!("not undone: {left}; `bottle cleanup` tries again")));
    }
    not_started.failure.about(slug)
}

/// Reads every secret of the plan. A secret that the user would have to enter is treated as missing.
async fn read_secrets(host: &Host, plan: &Plan) -> Result<Secrets, Failure> {
    let (host, needs) = (host.clone(), plan.secrets.clone());
    let runtime = tokio::runtime::Handle::current();
    let reading =
        tokio::task::spawn_blocking(move || runtime.block_on(secrets::resolve(&host, &needs, None)));
    let read = reading.await.map_err(|error| Failure::cannot("read the secrets", error))?;
    Ok(read?)
}

/// Refuses git directories outside of these directories, because the user would have to confirm each of them.
async fn require_nothing_outside<'a>(
    directories: impl IntoIterator<Item = &'a Path>,
    host: &Host,
) -> Result<(), Failure> {
    Outside::confirm(directories, host, &[], async |_| Ok(false)).await.map(drop)
}
