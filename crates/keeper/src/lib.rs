//! The keeper process. It launches, provisions, serves and tears down one bottle, or adopts one that runs.
//!
//! ```text
//!  bottle start ══ inherited socket ══╗                      ╔══ guest (pid 1)
//!                                     ╠═ clients ─► owner ───╣
//!  bottle attach/exec/… ══ own socket ╝      commands        ╚══ bundle (the sidecars)
//! ```
//! Only one task, [`owner`], changes the bottle's state; client connections send commands to that task. Only the keeper
//! has the channels to the guest and the bundle, and it forwards clients' requests to the guest frame by frame. The
//! keeper holds the bottle's lock until it exits, so the lock shows whether a bottle has a keeper.
//!
//! - `client`: starts a keeper, connects to a running one, or makes a new one adopt the bottle
//! - `protocol`: the messages on the keeper's socket
//! - `clients`: serves client connections and their streams · `shared`: the state that they share with the owner
//! - `owner`: handles the events of a running bottle until it ends
//! - `opened`: opens the files of a preserved bottle for commands, and closes them after the last command
//! - `jobs`: snapshot jobs that run while the bottle runs
//! - `teardown`: tears the bottle down and preserves work · `transcript`: copies the agent's conversations out
//! - `failure`: reports failures to the client · `log`: the keeper's log
//! - `watcher`: the process that starts a new keeper when this one dies
//! - `notices`: buffers notices for the user · `questions`: queues proposals · `notify`: runs notification commands ·
//!   `usage`: records token usage · `access_log`: writes the proxy's log · `process_logs`: saves the output of processes
//! - `tool_calls`: carries out calls with which the agent starts bottles · `parent`: ends a bottle with its parent ·
//!   `family`: passes on to its children what the user does to the parent
//! - `activity`: reports what the agent does, and the bottle's size · `health`: of the sidecars
//! - `decisions`: applies the user's answers, including new routes · `budget`: grants leases, and enforces budgets

mod access_log;
mod activity;
mod budget;
pub mod client;
mod clients;
pub mod decisions;
mod failure;
mod family;
mod health;
mod jobs;
pub mod launch;
pub mod ledger;
mod log;
mod notices;
mod notify;
mod opened;
mod owner;
mod parent;
mod process_logs;
pub mod protocol;
mod questions;
mod shared;
mod teardown;
mod tool_calls;
mod transcript;
mod usage;
pub mod watcher;

use std::collections::BTreeMap;
use std::io;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bottle_backend::{Backend, BackendError, EngineIdentity, PausedBy, Prepared, Sandbox};
use bottle_channel::{Channel, Incoming, Request, Side, Stream};
use bottle_contract::names::Slug;
use bottle_contract::session::bundle::Routes;
use bottle_contract::session::guest::{Attach, GuestRequest, SecretText};
use bottle_contract::session::{Hello, Role};
use bottle_host::Host;
use bottle_host::causes;
use bottle_host::files::FileError;
use bottle_host::process::ProcessId;
use bottle_instance::deploy_keys::{self, Tokens};
use bottle_instance::live_changes;
use bottle_instance::live_tree::LiveTree;
use bottle_instance::record::Record;
use bottle_instance::repositories::CopiedRepository;
use bottle_instance::{Claim, ClaimError, Store, canaries, children, engines, routes};
use bottle_plan::{Plan, Workspace};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tracing::Instrument as _;

use crate::launch::order::LaunchOrder;
use crate::launch::{Canary, LaunchContext, LaunchError, Peer, Planned, Running};
use clients::First;
use owner::Owned;
use protocol::{Inherited, KeeperEvent, KeeperRequest, LaunchFailure, Phase};

/// Time limit for the command that started a keeper to send its first request. Without a request, the keeper exits.
const ORDER_WITHIN: Duration = Duration::from_secs(10);

/// How many times the keeper retries to connect to a running bottle after the handshake failed. After the last one, the
/// adoption fails.
const RECONNECT_ATTEMPTS: usize = 3;

/// How long a launch that was interrupted waits for the current phase to finish. After that, the phase is cancelled.
const PHASE_TIMEOUT: Duration = Duration::from_secs(3);

/// The maximum number of buffered progress reports of the copy of the working directory. Reports that do not fit are
/// skipped.
const PROGRESS_CAPACITY: usize = 4;

/// Runs the keeper until its bottle ends. Standard input is the socket to the command that started the keeper.
#[must_use]
pub fn run(host: &Host, backends: &[Box<dyn Backend>]) -> ExitCode {
    // The keeper's memory contains every secret of its bottle. No other process may read that memory, and a crash must
    // not write it to disk.
    if bottle_harden::process::seal().is_err() {
        return ExitCode::FAILURE;
    }
    // The keeper starts a new session, so that signals of the terminal reach only the client. An error means that the
    // keeper already leads a session.
    let _ = rustix::process::setsid();
    log::start();
    // The runtime has one thread. The keeper mostly waits and forwards, and handing each step to another thread would
    // cost more. Long work runs on blocking threads.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(_) => return ExitCode::FAILURE,
    };
    let served = runtime.block_on(serve(host, backends));
    // A blocking thread of a copy may still wait for a file. The process exits without waiting for it.
    runtime.shutdown_background();
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(host: &Host, backends: &[Box<dyn Backend>]) -> anyhow::Result<()> {
    let (channel, mut incoming) = inherited().await?;
    let request = tokio::time::timeout(ORDER_WITHIN, incoming.next())
        .await?
        .ok_or_else(|| anyhow::anyhow!("the client disconnected before its first request"))?;
    match request.parse()? {
        KeeperRequest::Launch(order) => {
            let span = tracing::debug_span!("keeper", slug = %order.plan.identity.slug);
            keep_new(host, backends, *order, First { channel, incoming }, request).instrument(span).await
        }
        KeeperRequest::Adopt { slug, inherited, unpauses } => {
            let span = tracing::debug_span!("keeper", %slug);
            let first = First { channel, incoming };
            keep_adopted(host, backends, &slug, (inherited, unpauses), first, request).instrument(span).await
        }
        KeeperRequest::Open { slug, access } => {
            let span = tracing::debug_span!("keeper", %slug);
            let first = First { channel, incoming };
            opened::run(host, backends, &slug, access, first, request).instrument(span).await
        }
        _ => {
            request.refuse("a keeper's first request must be launch, adopt or open").await;
            channel.flush().await;
            Ok(())
        }
    }
}

async fn inherited() -> anyhow::Result<(Channel, Incoming)> {
    let fd = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let socket = std::os::unix::net::UnixStream::from(fd);
    socket.set_nonblocking(true)?;
    let socket = tokio::net::UnixStream::from_std(socket)?;
    let (channel, incoming, _) = Channel::establish(socket, Side::Accepted, Hello::of(Role::Keeper)).await?;
    Ok((channel, incoming))
}

async fn keep_new(
    host: &Host,
    backends: &[Box<dyn Backend>],
    mut order: LaunchOrder,
    first: First,
    request: Request,
) -> anyhow::Result<()> {
    let report = request.accept();
    let backend = find(backends, &order.plan.backend)?;
    let claim = match claim_for(host, &order) {
        Ok(claim) => claim,
        Err(error) => return refuse(&first, &report, (&error).into()).await,
    };
    log::open(&claim);
    let remove_earlier = async {
        if order.resumes() {
            // A killed keeper can have left a guest on the preserved files.
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
    match launched {
        Ok(running) => {
            // If the routes file cannot be written, the routes cannot change while the bottle runs. An attempt to
            // change them then reports an error.
            let routes = Routes::first(order.plan.egress.routes.clone());
            if let Err(error) = routes::write(claim.directory(), &routes) {
                tracing::warn!("cannot write the bottle's routes: {error}");
                let _ = std::fs::remove_file(routes::path(claim.directory()));
            }
            if let Err(error) = children::write(claim.directory(), &order.plan) {
                tracing::warn!("cannot write which bottles this one may start: {error}");
            }
            // Only a later resume reads the manifest file, and reports if it is missing.
            if let Err(error) = claim.write_manifest(&order.plan.manifest) {
                tracing::warn!("cannot write the bottle's manifest: {error}");
            }
            let secrets = std::mem::take(&mut order.secrets).into_values().collect();
            drop(order);
            let inherited = Inherited { tokens, secrets };
            let owned = Owned { host, backend, claim, running, first, inherited, adopted: false };
            owned.run(&report).await
        }
        Err(error) => {
            let _ = report.message(&KeeperEvent::Phase(Phase::Undo)).await;
            let mut failure = LaunchFailure::from(&error);
            let undo = launch::undo(host, backend, &claim, &tokens);
            failure.left = undo.instrument(phase_span(Phase::Undo, &order.plan)).await;
            failure.left.extend(unclaim(claim, order.resumes(), failure.left.is_empty()));
            refuse(&first, &report, failure).await
        }
    }
}

/// Records the tree of the directory that the agent is about to change. Without the record, the end report goes by times.
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

/// Checks that this process uses the engine that the command used, which is the engine in the bottle's record.
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

/// Claims the bottle's directory. Creates the directory of a new bottle; resets the record of a preserved bottle.
fn claim_for(host: &Host, order: &LaunchOrder) -> Result<Claim, ClaimError> {
    let store = Store::of(host);
    let new = record_of(order, host);
    if let Some(forked) = &order.forked {
        // The copied files can contain the canaries of the bottle that they come from.
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

/// After a failed launch, preserves the bottle's directory if the bottle was resumed. Otherwise removes the directory
/// if everything else was removed (`undone`). Returns the failure, if any.
fn unclaim(claim: Claim, resumed: bool, undone: bool) -> Option<String> {
    let done = if resumed {
        let kept = claim.record().kept;
        claim.preserve(kept)
    } else if undone {
        log::close();
        claim.remove()
    } else {
        return None;
    };
    done.err().map(|error| error.to_string())
}

async fn keep_adopted(
    host: &Host,
    backends: &[Box<dyn Backend>],
    slug: &Slug,
    (inherited, unpauses): (Inherited, bool),
    first: First,
    request: Request,
) -> anyhow::Result<()> {
    let report = request.accept();
    let Some(claim) = adopt(host, slug, &first, &report).await? else { return Ok(()) };
    log::open(&claim);
    let backend = find(backends, &claim.record().backend)?;
    let connected = async {
        end_pause(backend, slug, unpauses).await?;
        connect_both(backend, slug).await
    };
    match connected.await {
        Ok(running) => {
            let own = ProcessId::own().ok().map(|id| id.to_string());
            let engine = backend.identity().await.ok().flatten();
            claim.update(|record| {
                record.keeper = own;
                record.runtime = Some(host.runtime.clone());
                record.engine = engine.or_else(|| record.engine.take());
            })?;
            let owned = Owned { host, backend, claim, running, first, inherited, adopted: true };
            owned.run(&report).await
        }
        Err(error) => {
            let failure = match engines::require(backend, claim.directory(), &claim.record()).await {
                Ok(()) => (&error).into(),
                // On another engine the bottle only seems to have ended.
                Err(error) => (&error).into(),
            };
            refuse(&first, &report, failure).await
        }
    }
}

/// Launches phase by phase. If the launch is interrupted or its client disconnects, it ends before the next phase, or
/// within a phase after [`PHASE_TIMEOUT`].
async fn launch_watched(
    host: &Host,
    backend: &dyn Backend,
    order: &LaunchOrder,
    claim: &Claim,
    first: &First,
    report: &Stream,
) -> Result<Running, LaunchError> {
    let catch = |kind| signal(kind).map_err(|source| LaunchError::Host("catch signals", source));
    let (mut interrupt, mut terminate) = (catch(SignalKind::interrupt())?, catch(SignalKind::terminate())?);
    let stopped = AtomicBool::new(false);
    let watch = async {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = first.channel.closed() => {}
        }
        stopped.store(true, Ordering::SeqCst);
        // When this wait ends, the record contains the resources of the current phase, so they are removed with the
        // other resources.
        tokio::time::sleep(PHASE_TIMEOUT).await;
    };
    let phases = Phases { report, stopped: &stopped, order };
    let (events, mut copied) = mpsc::channel(PROGRESS_CAPACITY);
    let forward_progress = async {
        while let Some(event) = copied.recv().await {
            // The error is ignored, because the next phase notices that the client disconnected.
            let _ = report.message(&event).await;
        }
        std::future::pending().await
    };
    let launch = async {
        // Deploy keys come first, so that a refusal of the forge ends the launch before any resource is created.
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
        launched = launch => launched,
        () = watch => Err(LaunchError::Interrupted),
        never = forward_progress => never,
    }
}

/// Stores the canary for later launches of the bottle's files. Returns those of earlier launches.
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
    /// Reports the phase and runs `work`, unless the launch was interrupted.
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

/// Opens both channels of a running bottle and attaches to its agent. A bundle that ended has a closed channel. On a
/// backend where successive keepers use the same stream, frames for the previous keeper may still arrive after this
/// keeper's handshake message. The handshake then fails, and the connection is opened again.
async fn connect_both(backend: &dyn Backend, slug: &Slug) -> Result<Running, LaunchError> {
    for _ in 0..RECONNECT_ATTEMPTS {
        match connect_once(backend, slug).await {
            Err(error @ LaunchError::Handshake(..)) => {
                tracing::debug!("{}; connecting again", causes::one_line(&error));
            }
            connected => return connected,
        }
    }
    connect_once(backend, slug).await
}

/// Ends a pause that prevents the connection: that of an interrupted snapshot and, if `unpauses`, that of the user.
async fn end_pause(backend: &dyn Backend, slug: &Slug, unpauses: bool) -> Result<(), LaunchError> {
    backend.recover(slug, PausedBy::Snapshot).await?;
    if unpauses {
        backend.recover(slug, PausedBy::Other).await?;
    }
    Ok(())
}

async fn connect_once(backend: &dyn Backend, slug: &Slug) -> Result<Running, LaunchError> {
    let guest = launch::connect(backend, slug, Peer::Guest).await?;
    let bundle = launch::connect_bundle(backend, slug).await?;
    // The stream that started the agent closed with the previous keeper. A read-only attach stream also reports the
    // agent's exit.
    let watch = GuestRequest::Attach(Attach { read_only: true, process: None, size: None });
    let refused = |source| LaunchError::Handshake(Peer::Guest, source);
    let agent = guest.open(&watch).await.map_err(refused)?;
    Ok(Running { bundle, guest, agent })
}

/// Takes the lock of an existing bottle. If that fails, answers the client with the reason and returns `None`. If
/// another process holds the lock, the client tries again: that process is a keeper that serves the bottle, or it
/// releases the lock.
async fn adopt(host: &Host, slug: &Slug, first: &First, report: &Stream) -> anyhow::Result<Option<Claim>> {
    match Store::of(host).adopt(slug) {
        Ok(claim) => return Ok(Some(claim)),
        Err(error @ ClaimError::Taken { .. }) => {
            answer_only(first, report, KeeperEvent::Refused(error.to_string())).await?;
        }
        Err(error) => refuse(first, report, (&error).into()).await?,
    }
    Ok(None)
}

async fn refuse(first: &First, report: &Stream, failure: LaunchFailure) -> anyhow::Result<()> {
    answer_only(first, report, KeeperEvent::Failed(failure)).await
}

/// Sends the final event of a keeper that has no bottle.
async fn answer_only(first: &First, report: &Stream, event: KeeperEvent) -> anyhow::Result<()> {
    shared::send_last(report, &event).await;
    first.channel.flush().await;
    Ok(())
}

fn find<'a>(backends: &'a [Box<dyn Backend>], name: &str) -> anyhow::Result<&'a dyn Backend> {
    let found = backends.iter().find(|backend| backend.name() == name);
    found.map(AsRef::as_ref).ok_or_else(|| anyhow::anyhow!("there is no backend named {name}"))
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
        // Every change in the copied workspace is later.
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
