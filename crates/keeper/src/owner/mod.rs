//! The owner task of a running bottle. No other task changes the bottle's state.

mod commands;
mod connection;
mod transition;

use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bottle_backend::Backend;
use bottle_channel::{Channel, Stream};
use bottle_host::causes;
use bottle_host::{Host, Settings};
use bottle_instance::Claim;
use bottle_instance::audit::Trail;
use bottle_instance::children::Parent;
use bottle_instance::record::{Mode, Service, Status};
use bottle_instance::{retention, routes};
use bottle_policy::names::Slug;
use bottle_queue::Asker;
use tokio::net::UnixListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tracing::Instrument as _;

use self::commands::Owner;
use self::connection::Tasks;
use self::transition::{Reconnect, Reconnects};
use super::adoption::connect_both;
use super::budget::stopped::Stopped;
use super::decisions::Decisions;
use super::family::Children;
use super::first::First;
use super::health::health;
use super::listener;
use super::mask::Mask;
use super::notices::Notices;
use super::notify::Notifier;
use super::process_logs::Recorder;
use super::protocol::{EndCause, Inherited, KeeperEvent, Notice};
use super::questions::Answering;
use super::shared::{Command, Shared, send_last};
use super::tool_calls::{Handler, ToolCalls};
use super::{owning_process, parent, teardown, watcher};
use crate::launch::{LaunchError, Running};

/// The maximum time for which the keeper delays its exit, so that clients receive the event that the bottle ended.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the removal of a bottle's files may delay the report that the bottle ended. After this time, the removal
/// continues while the report is sent.
const PROMPT_REMOVAL: Duration = Duration::from_millis(200);

/// After the channel to a paused bottle has closed, the interval at which the keeper checks whether the bottle is still
/// paused.
const PAUSE_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A running bottle and the keeper's state for it.
pub(super) struct Owned<'a> {
    pub(super) host: &'a Host,
    pub(super) backend: &'a dyn Backend,
    /// Carries out the tool calls of the agent.
    pub(super) handler: Handler,
    pub(super) claim: Claim,
    pub(super) running: Running,
    pub(super) serving: Serving,
    pub(super) first: First,
    pub(super) inherited: Inherited,
    pub(super) adopted: bool,
    /// Whether an interrupt came in the last phase of the launch, so that the running bottle must be stopped.
    pub(super) interrupted: bool,
}

/// The signal handler and the socket that the keeper of a running bottle needs. If they cannot be created, the launch
/// is undone.
pub(super) struct Serving {
    terminate: Signal,
    listener: UnixListener,
    /// The revision of the routes that the proxy applies.
    live: Option<u64>,
}

impl Serving {
    /// Records that the bottle runs, and binds the socket to which clients connect.
    ///
    /// # Errors
    /// When the record cannot be written, or the socket cannot be bound.
    pub(super) async fn begin(host: &Host, claim: &Claim, bundle: &Channel) -> Result<Self, LaunchError> {
        // The handler is installed early. If a signal arrives before the owner waits for signals, the owner handles it
        // later.
        let terminate = signal(SignalKind::terminate()).map_err(LaunchError::host("catch signals"))?;
        let daemons = health(bundle).await;
        let live = daemons.iter().find_map(|daemon| daemon.revision);
        let services: Vec<Service> =
            daemons.into_iter().map(|daemon| Service { name: daemon.name, up: daemon.up }).collect();
        let socket = host.keeper_socket(&claim.record().slug);
        let listener = listener::listen(&socket).map_err(LaunchError::host("bind the keeper's socket"))?;
        let recorded = claim.update(|record| {
            record.status = Status::Running;
            // A bundle that has ended does not answer, so `services` is empty. The record then keeps the earlier list
            // of sidecars, and a task soon marks them as ended.
            if !services.is_empty() {
                record.services = services;
            }
        });
        recorded.map_err(|error| {
            // The socket is removed, because clients would wait at a socket that no process serves.
            let _ = std::fs::remove_file(&socket);
            LaunchError::Host("write the bottle's record", error)
        })?;
        Ok(Self { terminate, listener, live })
    }
}

impl Owned<'_> {
    /// Serves the bottle until it ends, then tears it down.
    pub(super) async fn run(self, report: &Stream) -> anyhow::Result<()> {
        let slug = self.claim.record().slug;
        let own_slug = slug.clone();
        let socket = self.host.keeper_socket(&slug);
        let mask = Mask::new(&self.inherited.masked());
        let decisions = self.decisions(&slug, &self.running.bundle, mask.clone());
        let Serving { terminate, listener, live } = self.serving;
        let Running { mut bundle, guest, mut agent } = self.running;
        if self.adopted {
            decisions.resend(live).await;
        }
        let (commands, inbox) = mpsc::channel(16);
        let notices = Arc::new(Notices::new());
        let children = Children::of(
            self.host,
            &self.claim.record(),
            self.claim.directory().to_owned(),
            Arc::clone(&notices),
        );
        let answering = Answering {
            home: self.host.home.clone(),
            decisions: decisions.clone(),
            notices: Arc::clone(&notices),
            notifier: Notifier::new(self.host),
            mask: mask.clone(),
        };
        let started_in = self.claim.record().start_directory();
        let tool_calls = ToolCalls::new(self.host, slug.clone(), &started_in, self.handler);
        let shared = Arc::new(Shared {
            guest: watch::Sender::new(Some(guest.clone())),
            notices,
            asker: Asker::new(self.host.home.clone(), slug.clone(), Arc::new(answering)),
            decisions: decisions.clone(),
            children,
            tool_calls: tool_calls.clone(),
            commands,
            stopped: watch::Sender::new(Stopped::recorded(self.claim.record().budget_order)),
            applied: watch::Sender::default(),
            attached: watch::Sender::default(),
            size: watch::Sender::default(),
            answered: watch::Sender::default(),
            connected: watch::Sender::default(),
            ended: watch::Sender::default(),
            inherited: watch::Sender::new(self.inherited.clone()),
            mask: mask.clone(),
            replacing: tokio::sync::Mutex::default(),
            detached: watch::Sender::new(self.claim.record().mode == Mode::Detached),
            watched: watch::Sender::default(),
            offer: Mutex::default(),
        });
        let (close, closed) = oneshot::channel::<()>();
        let accepting = listener::accept(listener, shared.clone(), async { drop(closed.await) });
        let accepting = tokio::spawn(accepting.in_current_span());
        let mut helpers = JoinSet::new();
        let watcher = watcher::keep(self.host.clone(), slug.clone(), self.adopted, shared.clone());
        helpers.spawn(watcher.in_current_span());
        if let Some(parent) = self.claim.record().parent.and_then(|client| Parent::parse(&client)?.ok()) {
            let (host, child) = (self.host.clone(), slug.clone());
            helpers.spawn(parent::watch(host, child, parent, shared.clone()).in_current_span());
        }
        if let Some(process) = self.claim.record().ends_with {
            helpers.spawn(owning_process::watch(slug.clone(), process, shared.clone()).in_current_span());
        }
        let recorder = Recorder::new(self.claim.directory(), mask);
        if let Some(recorder) = recorder.as_ref().filter(|_| !self.adopted) {
            recorder.clear().await;
        }
        let mut tasks = Tasks::start(self.host, &self.claim, &bundle, &guest, &shared, recorder.clone());
        let first = self.first.channel.clone();
        tokio::spawn(serve_first(self.first, shared.clone()).in_current_span());
        send_last(report, &KeeperEvent::Running { slug }).await;
        // From this point on, the keeper is mostly idle, and needs only a small part of the memory that the launch
        // used.
        bottle_heap::trim();

        let (backend, claim) = (self.backend, &self.claim);
        let mut owner = Owner::new(backend, claim, &shared, inbox, terminate, guest);
        if self.interrupted {
            owner.interrupt();
        }
        let mut reconnects = Reconnects::default();
        let mut end = loop {
            let begun = Instant::now();
            let end = owner.run(&mut agent).await;
            if !reconnects.allow(end.cause, begun.elapsed()) {
                break end;
            }
            shared.guest.send_replace(None);
            let slug = claim.record().slug;
            let running = match owner.until_connected(reconnect(backend, &slug)).await {
                Ok(Some(running)) => running,
                stays_lost => {
                    shared.guest.send_replace(Some(owner.guest().clone()));
                    break stays_lost.err().unwrap_or(end);
                }
            };
            tasks.end();
            bundle = running.bundle;
            agent = running.agent;
            owner.reconnected(running.guest.clone());
            decisions.reconnect(bundle.clone());
            let daemons = health(&bundle).await;
            decisions.resend(daemons.iter().find_map(|daemon| daemon.revision)).await;
            tasks = Tasks::start(self.host, claim, &bundle, &running.guest, &shared, recorder.clone());
            shared.guest.send_replace(Some(running.guest));
            let text = "the connection to the bottle was lost and is restored; the bottle kept running";
            shared.notices.send(Notice::Warning(text.to_owned()));
        };
        owner.finish_job().await;
        if end.cause == EndCause::AgentExited {
            // The keeper does not wait for the first client of an adopted bottle, because this client does not read the
            // agent's output.
            end.choice = owner.after_exit((!self.adopted).then_some(&first)).await;
        }
        owner.save_if_frozen(end.cause).await;
        end.attached = shared.attached.borrow().ever;
        let guest = owner.into_guest();
        // From this point on, sidecars end because the bottle ends, so the tasks that would warn the user are ended.
        drop(helpers);
        let secrets = shared.inherited.borrow().masked();
        shared.detached.send_replace(false);
        let records_task = tasks.into_records();
        let teardown = teardown::Teardown {
            host: self.host,
            backend: self.backend,
            claim: self.claim,
            guest,
            bundle,
            agent,
            records_task,
            secrets,
            tokens: self.inherited.tokens,
            size: *shared.size.borrow(),
        };
        let (mut ended, moved) = teardown.run(end).await;
        let mut removal = pin!(self.backend.remove(&moved));
        let removed = tokio::time::timeout(PROMPT_REMOVAL, &mut removal).await;
        if let Ok(Err(error)) = &removed {
            ended.left.push(causes::one_line(error));
        }
        // A client that connected before the removal of the socket still receives its answer. A later client finds no
        // socket.
        let _ = std::fs::remove_file(&socket);
        drop(close);
        let closed = accepting.await.map_err(io::Error::other).flatten();
        let _ = closed.inspect_err(|error| tracing::warn!("cannot accept the last clients: {error}"));
        shared.ended.send_replace(Some(ended));
        // The keeper waits until connected clients have received the event that the bottle ended. A client that does
        // not read delays the keeper by at most [`CLOSE_TIMEOUT`].
        let mut connected = shared.connected.subscribe();
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, connected.wait_for(|connected| *connected == 0)).await;
        tool_calls.ended().await;
        if removed.is_err() {
            // The removal of the files has not finished yet, but the bottle's name is already free. If this process is
            // killed, a cleanup finds the remaining files.
            removal.await?;
        }
        bound_records(self.host, own_slug).await;
        Ok(())
    }

    /// Creates the [`Decisions`] of the bottle. If the routes file cannot be read, the routes cannot be changed, but
    /// all other decisions work.
    fn decisions(&self, slug: &Slug, bundle: &Channel, mask: Mask) -> Decisions {
        let directory = self.claim.directory().to_owned();
        let routes = routes::read(&directory).unwrap_or_else(|error| {
            tracing::warn!("{}: {error}", routes::path(&directory).display());
            None
        });
        let trail = Trail::of(&self.host.home, slug);
        Decisions::new(trail, directory, bundle.clone(), routes, mask)
    }
}

/// Reconnects to a bottle after its channel closed, if the bottle still runs, for example because only its container
/// engine was restarted. Returns `None` if the bottle has ended or stays paused, if the engine does not answer, or if
/// the connection fails.
async fn reconnect(backend: &dyn Backend, slug: &Slug) -> Option<Running> {
    let begun = Instant::now();
    loop {
        let state = backend.run_state(slug).await;
        let state = state.inspect_err(|error| tracing::warn!("{}", causes::one_line(error))).ok()?;
        match Reconnect::of(&state, begun.elapsed()) {
            Reconnect::Now => break,
            Reconnect::Later => tokio::time::sleep(PAUSE_POLL_INTERVAL).await,
            Reconnect::Never => return None,
        }
    }
    match connect_both(backend, slug).await {
        Ok(running) => Some(running),
        Err(error) => {
            tracing::warn!("cannot connect to the bottle again: {}", causes::one_line(&error));
            None
        }
    }
}

async fn serve_first(first: First, shared: Arc<Shared>) {
    listener::serve(first.channel, first.incoming, shared.clone()).await;
    let _ = shared.commands.send(Command::FirstGone).await;
}

/// Removes the oldest logs and records of ended bottles, if there are too many or they are too old.
async fn bound_records(host: &Host, slug: Slug) {
    let host = host.clone();
    let settings = Settings::load(&host).unwrap_or_default();
    let bound = tokio::task::spawn_blocking(move || {
        retention::bound_proposals(&host.home, &slug);
        retention::enforce(&host, settings.keep_since().ok(), settings.keep_size)
    });
    for failure in bound.await.unwrap_or_default() {
        tracing::warn!("{failure}");
    }
}
