//! Launches a new bottle or resumes a kept bottle, phase by phase.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bottle_backend::{Backend, BackendError, EngineIdentity, Prepared, Sandbox};
use bottle_channel::{Request, Stream};
use bottle_host::Host;
use bottle_host::files::FileError;
use bottle_host::process::ProcessId;
use bottle_instance::deploy_keys::{self, Tokens};
use bottle_instance::live_changes;
use bottle_instance::live_tree::LiveTree;
use bottle_instance::record::Record;
use bottle_instance::repositories::CopiedRepository;
use bottle_instance::{Claim, ClaimError, Store, canaries, children, credentials, routes};
use bottle_plan::{Plan, Workspace};
use bottle_protocol::session::bundle::Routes;
use bottle_protocol::session::guest::SecretText;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tracing::Instrument as _;

use super::first::First;
use super::owner::{Owned, Serving};
use super::protocol::{Inherited, KeeperEvent, LaunchFailure, Phase};
use super::tool_calls::Handler;
use super::{find, jobs, log};
use crate::launch::order::LaunchOrder;
use crate::launch::{self, Canary, LaunchContext, LaunchError, Planned, Running};

/// How long an interrupted launch waits for the current phase to finish. After this time, the phase is cancelled.
const PHASE_TIMEOUT: Duration = Duration::from_secs(3);

/// The maximum number of buffered reports about the progress of copying the working directory. If the buffer is full, a
/// report is dropped.
const PROGRESS_CAPACITY: usize = 4;

/// Launches the bottle and serves it until it ends.
pub(super) async fn keep(
    host: &Host,
    backends: &[Box<dyn Backend>],
    handler: Handler,
    mut order: LaunchOrder,
    first: First,
    request: Request,
) -> anyhow::Result<()> {
    let report = request.accept();
    let backend = find(backends, &order.plan.backend)?;
    let claim = match claim_for(host, &order) {
        Ok(claim) => claim,
        Err(error) => {
            first.refuse(&report, (&error).into()).await;
            return Ok(());
        }
    };
    log::open(&claim);
    let remove_earlier = async {
        if order.resumes() {
            // A killed keeper may have left a guest that still uses the kept files.
            launch::remove_launch(backend, &claim).await;
        }
    };
    let ((), engine) = tokio::join!(remove_earlier, require_engine(backend, order.engine.as_ref()));
    let tokens = Tokens::of(&order.plan, &order.secrets);
    record_live_tree(&order, &claim).await;
    let launched = match engine {
        Ok(()) => launch_watched(host, backend, &order, &claim, &first, &report).await,
        Err(error) => Err(error.into()),
    };
    let launched = match launched {
        Ok((running, interrupted)) => {
            let serving = Serving::begin(host, &claim, &running.bundle).await;
            serving.map(|serving| (running, serving, interrupted))
        }
        Err(error) => Err(error),
    };
    match launched {
        Ok((running, serving, interrupted)) => {
            // If the routes file cannot be written, the bottle still runs, but its routes cannot be changed. An attempt
            // to change the routes reports an error.
            let routes = Routes::first(order.plan.egress.routes.clone());
            if let Err(error) = routes::write(claim.directory(), &routes) {
                tracing::warn!("cannot write the bottle's routes: {error}");
                let _ = std::fs::remove_file(routes::path(claim.directory()));
            }
            if let Err(error) = credentials::write(claim.directory(), &order.plan) {
                tracing::warn!("cannot write the sources of the bottle's credentials: {error}");
                let _ = std::fs::remove_file(credentials::path(claim.directory()));
            }
            if let Err(error) = children::write(claim.directory(), &order.plan) {
                tracing::warn!("cannot write which bottles this one may start: {error}");
            }
            // A failure is only logged, because only a later resume reads the manifest file, and the resume reports a
            // missing file.
            if let Err(error) = claim.write_manifest(&order.plan.manifest) {
                tracing::warn!("cannot write the bottle's manifest: {error}");
            }
            let secrets = std::mem::take(&mut order.secrets).into_values().collect();
            drop(order);
            let inherited = Inherited { tokens, secrets, ..Inherited::default() };
            let owned = Owned {
                host,
                backend,
                handler,
                claim,
                running,
                serving,
                first,
                inherited,
                adopted: false,
                interrupted,
            };
            owned.run(&report).await
        }
        Err(error) => {
            let _ = report.message(&KeeperEvent::Phase(Phase::Undo)).await;
            let mut failure = LaunchFailure::from(&error);
            let undo = launch::undo(host, backend, &claim, &tokens);
            failure.left = undo.instrument(phase_span(Phase::Undo, &order.plan)).await;
            let unclaim = Unclaim::after(order.resumes(), failure.left.is_empty());
            failure.left.extend(unclaim.apply(claim));
            first.refuse(&report, failure).await;
            Ok(())
        }
    }
}

/// Records the files of the live directory that the agent is about to change. Without this record, the report at the
/// bottle's end relies on file times.
async fn record_live_tree(order: &LaunchOrder, claim: &Claim) {
    let Some(live) = order.plan.live.clone() else { return };
    let directory = claim.directory().to_owned();
    let record = move || match LiveTree::of(&live, live_changes::BOUNDS)? {
        Some(tree) => tree.write_once(&directory),
        None => Err(io::Error::other("it has too many entries")),
    };
    let recorded = tokio::task::spawn_blocking(record).await;
    if let Err(error) = recorded.unwrap_or_else(|error| Err(error.into())) {
        tracing::warn!("cannot record the tree of the directory: {error}");
    }
}

/// Checks that this process uses the same container engine as the command that sent the launch order. The bottle's
/// record names this engine.
async fn require_engine(backend: &dyn Backend, ordered: Option<&EngineIdentity>) -> Result<(), BackendError> {
    require_same(ordered, backend.identity().await?.as_ref())
}

fn require_same(
    ordered: Option<&EngineIdentity>,
    current: Option<&EngineIdentity>,
) -> Result<(), BackendError> {
    match (ordered, current) {
        (Some(ordered), Some(current)) if !ordered.is_same(current) => {
            let message = format!("cannot start the bottle: the engine changed from {ordered} to {current}");
            Err(BackendError::failed(message).with_hint("try again; the next start uses the new engine"))
        }
        _ => Ok(()),
    }
}

/// Claims the bottle's directory. Creates the directory of a new bottle. Resets the record of a kept bottle.
fn claim_for(host: &Host, order: &LaunchOrder) -> Result<Claim, ClaimError> {
    let store = Store::of(host);
    let new = record_of(order, host);
    if let Some(forked) = &order.forked {
        // The forked files may contain the canaries of the bottle from which they were copied.
        let from = store.directory(&forked.from);
        let unreadable = |error| FileError::read(&from, error);
        let inherited = canaries::read(&from).map_err(unreadable)?;
        let imported = canaries::read_imported(&from).map_err(unreadable)?;
        let claim = store.claim(new)?;
        canaries::write(claim.directory(), &inherited)
            .and_then(|()| canaries::write_imported(claim.directory(), &imported))
            .map_err(|error| FileError::write(claim.directory(), error))?;
        return Ok(claim);
    }
    if !order.resumes() {
        return store.claim(new);
    }
    let claim = store.adopt_idle(&new.slug)?;
    claim.reset(new, &order.origin).map_err(|error| FileError::write(claim.directory(), error))?;
    Ok(claim)
}

/// The decision about a bottle's directory after a failed launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unclaim {
    /// The directory is kept, because the bottle was a kept bottle before the launch.
    Keep,
    /// The directory is removed.
    Remove,
    /// The directory stays unchanged for a cleanup, because its resource log names resources that could not be removed.
    Leave,
}

impl Unclaim {
    fn after(resumed: bool, undone: bool) -> Self {
        match (resumed, undone) {
            (true, _) => Self::Keep,
            (false, true) => Self::Remove,
            (false, false) => Self::Leave,
        }
    }

    /// Applies this decision to the directory. Returns a message if this fails.
    fn apply(self, claim: Claim) -> Option<String> {
        let done = match self {
            Self::Keep => {
                let kept = claim.record().kept;
                claim.preserve(kept)
            }
            Self::Remove => {
                log::close();
                claim.remove()
            }
            Self::Leave => Ok(()),
        };
        done.err().map(|error| error.to_string())
    }
}

/// Launches the bottle phase by phase. If the launch is interrupted or its client disconnects, the launch ends before
/// the next phase, or within the current phase after [`PHASE_TIMEOUT`]. Also returns whether the interrupt came in the
/// last phase. In this case, the bottle runs and must be stopped.
async fn launch_watched(
    host: &Host,
    backend: &dyn Backend,
    order: &LaunchOrder,
    claim: &Claim,
    first: &First,
    report: &Stream,
) -> Result<(Running, bool), LaunchError> {
    let catch = |kind| signal(kind).map_err(|source| LaunchError::Host("catch signals", source));
    let (mut interrupt, mut terminate) = (catch(SignalKind::interrupt())?, catch(SignalKind::terminate())?);
    let stopped = AtomicBool::new(false);
    let interrupted = async {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = first.channel.closed() => {}
        }
    };
    let phases = Phases { report, stopped: &stopped, order };
    let (events, mut copied) = mpsc::channel(PROGRESS_CAPACITY);
    let forward_progress = async {
        while let Some(event) = copied.recv().await {
            // An error is ignored, because the next phase notices that the client disconnected.
            let _ = report.message(&event).await;
        }
        std::future::pending().await
    };
    let launch = async {
        // Deploy keys are registered first, so that the launch fails before any resource is created if the forge
        // refuses a key.
        let deploy_keys = match order.plan.has_deploy_keys() || !claim.record().deploy_keys.is_empty() {
            true => {
                let tokens = Tokens::of(&order.plan, &order.secrets);
                let register = deploy_keys::register(host, claim, &order.plan, &tokens);
                phases.run(Phase::Keys, async { Ok(register.await?) }).await?
            }
            false => BTreeMap::new(),
        };
        let canary = Canary::generate(&order.plan.env);
        let earlier_canaries = remember(claim, &canary)?;
        let progress = jobs::progress(events);
        let planned = Planned::new(LaunchContext {
            host,
            backend,
            order,
            claim,
            progress,
            canary,
            earlier_canaries,
            deploy_keys,
        });
        let networked = phases.run(Phase::Network, planned.network()).await?;
        let ready = phases.run(Phase::Sidecars, networked.start_sidecars()).await?;
        let mut provisioned = phases.run(Phase::Provision, ready.provision()).await?;
        if !order.plan.services.is_empty() {
            provisioned = phases.run(Phase::Services, provisioned.start_services()).await?;
        }
        phases.run(Phase::Agent, provisioned.start_agent()).await
    };
    tokio::select! {
        launched = unless_interrupted(launch, interrupted, &stopped) => launched,
        never = forward_progress => never,
    }
}

/// Runs a launch, and sets `stopped` when the launch is interrupted. Returns the result of the launch, and whether the
/// bottle must be stopped immediately because the interrupt came too late for any phase to notice it.
async fn unless_interrupted<T>(
    launch: impl Future<Output = Result<T, LaunchError>>,
    interrupted: impl Future<Output = ()>,
    stopped: &AtomicBool,
) -> Result<(T, bool), LaunchError> {
    let watch = async {
        interrupted.await;
        stopped.store(true, Ordering::SeqCst);
        // After this wait, the resource log contains the resources of the current phase, so that they are removed
        // together with the other resources.
        tokio::time::sleep(PHASE_TIMEOUT).await;
    };
    tokio::select! {
        launched = launch => Ok((launched?, stopped.load(Ordering::SeqCst))),
        () = watch => Err(LaunchError::Interrupted),
    }
}

/// Stores the canary for later launches with the bottle's files. Returns the canaries of earlier launches.
fn remember(claim: &Claim, canary: &Canary) -> Result<Vec<SecretText>, LaunchError> {
    let earlier =
        canaries::read(claim.directory()).map_err(LaunchError::host("read the bottle's canaries"))?;
    let all = [&earlier[..], std::slice::from_ref(&canary.value)].concat();
    canaries::write(claim.directory(), &all).map_err(LaunchError::host("write the bottle's canaries"))?;
    Ok(earlier)
}

/// Runs the phases of one launch.
struct Phases<'a> {
    report: &'a Stream,
    /// Whether the launch must end before its next phase.
    stopped: &'a AtomicBool,
    order: &'a LaunchOrder,
}

impl Phases<'_> {
    /// Reports the phase to the client and runs `work`. Returns an error if the launch was interrupted.
    async fn run<T>(
        &self,
        phase: Phase,
        work: impl Future<Output = Result<T, LaunchError>>,
    ) -> Result<T, LaunchError> {
        let sent = self.report.message(&KeeperEvent::Phase(phase)).await;
        if sent.is_err() || self.stopped.load(Ordering::SeqCst) {
            return Err(LaunchError::Interrupted);
        }
        work.instrument(phase_span(phase, &self.order.plan)).await
    }
}

fn phase_span(phase: Phase, plan: &Plan) -> tracing::Span {
    tracing::debug_span!("launch_phase", ?phase, slug = %plan.identity.slug, backend = plan.backend)
}

fn record_of(order: &LaunchOrder, host: &Host) -> Record {
    let plan = &order.plan;
    let forked = order.forked.as_ref();
    let repositories = match forked {
        Some(forked) => forked.repositories.clone(),
        None if plan.workspace == Workspace::Empty => Vec::new(),
        None => CopiedRepository::find_all(&plan.identity),
    };
    Record {
        repositories,
        copied_cwd: forked.map_or(plan.workspace != Workspace::Empty, |forked| forked.copied_cwd),
        copied_all: forked.map_or(plan.workspace == Workspace::CopyAll, |forked| forked.copied_all),
        forked_from: forked.map(|forked| forked.from.clone()),
        image: forked.and_then(|forked| forked.image.clone()),
        engine: order.engine.clone(),
        terminal: plan.agent.terminal.is_some(),
        keeper: ProcessId::own().ok().map(|id| id.to_string()),
        // With the earliest possible time as the ready time, all files of the copied workspace are unsaved work.
        workspace_ready: forked.filter(|forked| forked.unsaved).map(|_| jiff::Timestamp::MIN),
        learn: plan.learn,
        run: Some(format!("{:016x}", rand::random::<u64>())),
        sandbox: Some(Sandbox {
            prepared: Prepared { notes: Vec::new(), ..order.prepared.clone() },
            limits: plan.resources.clone(),
            live: plan.live.clone(),
        }),
        ..Record::starting(plan, host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_interrupt_is_not_lost_in_the_last_phase() {
        const NEVER: Duration = Duration::MAX;
        let seconds = Duration::from_secs;
        for (launch, interrupt, wanted) in [
            (seconds(5), NEVER, Some(false)),
            (seconds(5), seconds(6), Some(false)),
            (seconds(5), seconds(4), Some(true)),
            (seconds(5), seconds(1), None),
        ] {
            let stopped = AtomicBool::new(false);
            let launched = async {
                tokio::time::sleep(launch).await;
                Ok(())
            };
            let found = unless_interrupted(launched, tokio::time::sleep(interrupt), &stopped).await;
            assert_eq!(found.ok().map(|((), ends)| ends), wanted, "{launch:?} {interrupt:?}");
        }
        let failed = async { Err::<(), _>(LaunchError::Interrupted) };
        assert!(unless_interrupted(failed, std::future::pending(), &AtomicBool::new(false)).await.is_err());
    }

    #[test]
    fn a_failed_launch_removes_only_what_it_made() {
        for (resumed, undone, wanted) in [
            (true, true, Unclaim::Keep),
            (true, false, Unclaim::Keep),
            (false, true, Unclaim::Remove),
            (false, false, Unclaim::Leave),
        ] {
            assert_eq!(Unclaim::after(resumed, undone), wanted, "{resumed} {undone}");
        }
    }

    #[test]
    fn a_launch_needs_the_engine_that_the_command_used() {
        let engine = |id: &str, address: &str| EngineIdentity {
            id: id.to_owned(),
            data: "/data".to_owned(),
            address: address.to_owned(),
            select: String::new(),
        };
        let (one, moved, other) =
            (engine("1", "unix:///a"), engine("1", "unix:///b"), engine("2", "unix:///a"));
        assert!(require_same(Some(&one), Some(&moved)).is_ok(), "the same engine at another address");
        assert!(require_same(None, None).is_ok(), "a backend without an engine");
        let error = require_same(Some(&one), Some(&other)).expect_err("another engine");
        assert_eq!(
            error.message,
            "cannot start the bottle: the engine changed from unix:///a (id 1, data in /data) to unix:///a (id 2, \
             data in /data)"
        );
    }
}
