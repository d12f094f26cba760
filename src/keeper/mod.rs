//! The keeper process: launches, provisions, serves, tears down and adopts one bottle.
//!
//! ```text
//!  bottle start ══ inherited socket ══╗                      ╔══ guest (pid 1)
//!                                     ╠═ clients ─► owner ───╣
//!  bottle attach/exec/… ══ own socket ╝      commands        ╚══ bundle (the sidecars)
//! ```
//! One task, [`owner`], changes the bottle's state; connections send it commands and never touch it. The
//! keeper alone owns the channels to the guest and the bundle; it forwards requests for the guest frame by
//! frame. It holds the bottle's lock for its whole life, so the lock shows whether a bottle has a keeper.
//!
//! - `client`: starts a keeper, connects to a running one, or makes a new one adopt the bottle
//! - `protocol`: the messages on the keeper's socket
//! - `clients`: serves client connections and their streams
//! - `owner`: handles the events of a running bottle until it ends
//! - `jobs`: snapshot jobs that run while the bottle does
//! - `ending`: tears the bottle down and preserves work · `transcript`: copies the agent's conversations out
//! - `failure`: reports failures to the client · `log`: the keeper's log
//! - `notices`: buffers notices for the user · `questions`: queues proposals · `notify`: runs notification commands ·
//!   `usage`: records token usage
//! - `decisions`: applies the user's answers, new routes among them

pub mod client;
mod clients;
pub(crate) mod decisions;
mod ending;
mod failure;
mod jobs;
mod log;
mod notices;
mod notify;
mod owner;
pub mod protocol;
mod questions;
mod transcript;
mod usage;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bottle_channel::{Channel, Incoming, Request, Side, Stream};
use bottle_contract::names::Slug;
use bottle_contract::session::bundle::Routes;
use bottle_contract::session::guest::{Attach, GuestRequest};
use bottle_contract::session::{Hello, Role};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tracing::Instrument as _;

use crate::backend::Backend;
use crate::causes;
use crate::host::Host;
use crate::host::files::FileError;
use crate::host::process::ProcessId;
use crate::instance::deploy_keys::{self, Tokens};
use crate::instance::record::{Mode, Record, SCHEMA, Status};
use crate::instance::{Claim, ClaimError, Store, routes};
use crate::launch::order::LaunchOrder;
use crate::launch::{self, Canary, LaunchContext, LaunchError, Peer, Planned, Running};
use crate::plan::{Plan, Workspace};
use clients::First;
use owner::Owned;
use protocol::{KeeperEvent, KeeperRequest, LaunchFailure, Phase};

/// How long the command that started a keeper may take to send its first request.
const ORDER_WITHIN: Duration = Duration::from_secs(10);

/// How often the keeper connects to a running bottle again after a failed greeting.
const RECONNECT_ATTEMPTS: usize = 3;

/// How long an interrupted launch waits for the current phase to finish.
const PHASE_TIMEOUT: Duration = Duration::from_secs(3);

/// Buffered progress reports of the working directory's copy.
const PROGRESS_CAPACITY: usize = 4;

/// Runs the keeper until its bottle ends. Standard input is the socket of the command that started it.
#[must_use]
pub fn run(host: &Host, backends: &[Box<dyn Backend>]) -> ExitCode {
    // The keeper has every secret of its bottle in memory: no other process may read it, and no crash may write
    // it to disk.
    if bottle_harden::process::seal().is_err() {
        return ExitCode::FAILURE;
    }
    // A new session keeps the terminal's signals with the client. A failure means that the keeper is a session
    // leader already.
    let _ = rustix::process::setsid();
    log::start();
    // One thread: the keeper waits and forwards, and a second thread would be woken for each step. Long work runs
    // on blocking threads.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(_) => return ExitCode::FAILURE,
    };
    let served = runtime.block_on(serve(host, backends));
    // Blocking reads of a copy may still wait for a file; the process exits regardless.
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
        KeeperRequest::Adopt { slug, tokens } => {
            let span = tracing::debug_span!("keeper", %slug);
            let first = First { channel, incoming };
            keep_adopted(host, backends, &slug, tokens, first, request).instrument(span).await
        }
        _ => {
            request.refuse("a keeper's first request must be launch or adopt").await;
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
    order: LaunchOrder,
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
    let tokens = Tokens::of(&order.plan, &order.secrets);
    match launch_watched(host, backend, &order, &claim, &first, &report).await {
        Ok(running) => {
            // Without this file the routes cannot change while the bottle runs; an attempt reports that.
            let routes = Routes::first(order.plan.egress.routes.clone());
            if let Err(error) = routes::write(claim.folder(), &routes) {
                tracing::warn!("cannot write the bottle's routes: {error}");
                let _ = std::fs::remove_file(routes::path(claim.folder()));
            }
            // Only a later resume reads it, and reports when it is missing.
            if let Err(error) = claim.write_manifest(&order.plan.manifest) {
                tracing::warn!("cannot write the bottle's manifest: {error}");
            }
            let secrets = order.secrets.into_values().map(|text| text.0).collect();
            let owned = Owned { host, backend, claim, running, first, secrets, tokens, adopted: false };
            owned.run(&report).await
        }
        Err(error) => {
            let _ = report.message(&KeeperEvent::Phase(Phase::Undo)).await;
            let mut failure = LaunchFailure::from(&error);
            let undo = launch::undo(host, backend, &claim, &tokens);
            failure.left = undo.instrument(phase_span(Phase::Undo, &order.plan)).await;
            failure.left.extend(unclaim(claim, order.resumed.is_some(), failure.left.is_empty()));
            refuse(&first, &report, failure).await
        }
    }
}

/// Claims the bottle's folder: a new one, or that of a preserved bottle, whose record it resets.
fn claim_for(host: &Host, order: &LaunchOrder) -> Result<Claim, ClaimError> {
    let store = Store::of(host);
    let new = record_of(&order.plan, host);
    if order.resumed.is_none() {
        return store.claim(new);
    }
    let claim = store.adopt(&new.slug)?;
    claim.reset(new, &order.origin).map_err(|error| FileError::write(claim.folder(), error))?;
    Ok(claim)
}

/// Removes the folder of a failed launch, or preserves that of a resumed bottle. Returns the failure, if any.
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
    tokens: Tokens,
    first: First,
    request: Request,
) -> anyhow::Result<()> {
    let report = request.accept();
    let claim = match Store::of(host).adopt(slug) {
        Ok(claim) => claim,
        // The client looks again: the process that has the lock serves the bottle too, or releases it.
        Err(error @ ClaimError::Taken { .. }) => {
            return answer_only(&first, &report, KeeperEvent::Refused(error.to_string())).await;
        }
        Err(error) => return refuse(&first, &report, (&error).into()).await,
    };
    log::open(&claim);
    let backend = find(backends, &claim.record().backend)?;
    match connect_both(backend, slug).await {
        Ok(running) => {
            let own = ProcessId::own().ok().map(|id| id.to_string());
            claim.update(|record| {
                record.keeper = own;
                record.runtime = Some(host.runtime.clone());
            })?;
            let secrets = Vec::new();
            let owned = Owned { host, backend, claim, running, first, secrets, tokens, adopted: true };
            owned.run(&report).await
        }
        Err(error) => refuse(&first, &report, (&error).into()).await,
    }
}

/// Launches phase by phase. An interrupt or a lost client ends the launch between two phases, or after
/// [`PHASE_TIMEOUT`] within one.
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
        // The phase's resources are in the record by then and are removed with the rest.
        tokio::time::sleep(PHASE_TIMEOUT).await;
    };
    let phases = Phases { report, stopped: &stopped, order };
    let (events, mut copied) = mpsc::channel(PROGRESS_CAPACITY);
    let forward_progress = async {
        while let Some(event) = copied.recv().await {
            // The next phase notices a lost client.
            let _ = report.message(&event).await;
        }
        std::future::pending().await
    };
    let launch = async {
        // First, so that a forge refuses before anything is created.
        let deploy_keys = match order.plan.has_deploy_keys() || !claim.record().deploy_keys.is_empty() {
            true => {
                let tokens = Tokens::of(&order.plan, &order.secrets);
                let register = deploy_keys::register(host, claim, &order.plan, &tokens);
                phases.run(Phase::Keys, async { Ok(register.await?) }).await?
            }
            false => BTreeMap::new(),
        };
        let canary = Canary::generate(&order.plan.env);
        let progress = jobs::progress(events);
        let planned =
            Planned::new(LaunchContext { host, backend, order, claim, progress, canary, deploy_keys });
        let networked = phases.run(Phase::Network, planned.network()).await?;
        let ready = phases.run(Phase::Guard, networked.start_sidecars()).await?;
        let provisioned = phases.run(Phase::Provision, ready.provision()).await?;
        phases.run(Phase::Agent, provisioned.start_agent()).await
    };
    tokio::select! {
        launched = launch => launched,
        () = watch => Err(LaunchError::Interrupted),
        never = forward_progress => never,
    }
}

/// Runs the phases of one launch.
struct Phases<'a> {
    report: &'a Stream,
    /// Whether the launch ends before its next phase.
    stopped: &'a AtomicBool,
    order: &'a LaunchOrder,
}

impl Phases<'_> {
    /// Reports the phase and runs its `work`, unless the launch was interrupted.
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

/// Opens both channels of a running bottle and attaches to its agent. Where all keepers share one stream, frames
/// for the last keeper may still follow the greeting of this one; such a connection fails and is opened again.
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

async fn connect_once(backend: &dyn Backend, slug: &Slug) -> Result<Running, LaunchError> {
    let guest = launch::connect(backend, slug, Peer::Guest).await?;
    let bundle = launch::connect(backend, slug, Peer::Bundle).await?;
    // The stream that started the agent closed with the old keeper; a read-only attach also reports its exit.
    let watch = GuestRequest::Attach(Attach { read_only: true, size: None });
    let refused = |source| LaunchError::Handshake(Peer::Guest, source);
    let agent = guest.open(&watch).await.map_err(refused)?;
    Ok(Running { bundle, guest, agent })
}

async fn refuse(first: &First, report: &Stream, failure: LaunchFailure) -> anyhow::Result<()> {
    answer_only(first, report, KeeperEvent::Failed(failure)).await
}

/// Sends the only answer of a keeper without a bottle.
async fn answer_only(first: &First, report: &Stream, event: KeeperEvent) -> anyhow::Result<()> {
    clients::send_last(report, &event).await;
    first.channel.flush().await;
    Ok(())
}

fn find<'a>(backends: &'a [Box<dyn Backend>], name: &str) -> anyhow::Result<&'a dyn Backend> {
    let found = backends.iter().find(|backend| backend.name() == name);
    found.map(AsRef::as_ref).ok_or_else(|| anyhow::anyhow!("there is no backend named {name}"))
}

fn record_of(plan: &Plan, host: &Host) -> Record {
    let identity = plan.identity.clone();
    Record {
        schema: SCHEMA,
        slug: identity.slug,
        label: identity.label,
        color: identity.color,
        agent: identity.agent,
        bottles: identity.bottles,
        cwd: identity.cwd,
        copied_cwd: plan.workspace != Workspace::Empty,
        copied_all: plan.workspace == Workspace::CopyAll,
        backend: plan.backend.clone(),
        mode: if plan.detached { Mode::Detached } else { Mode::Attached },
        terminal: plan.agent.terminal.is_some(),
        status: Status::Starting,
        started_at: jiff::Timestamp::now(),
        keeper: ProcessId::own().ok().map(|id| id.to_string()),
        runtime: Some(host.runtime.clone()),
        resources: Vec::new(),
        workspace_ready: None,
        clock_lead: None,
        pulled_at: None,
        kept: false,
        transcript: plan.transcript.clone(),
        deploy_keys: Vec::new(),
        learn: plan.learn,
        services: Vec::new(),
        locked: None,
        agent_exit: None,
        manifest_hash: plan.manifest_hash.clone(),
    }
}
