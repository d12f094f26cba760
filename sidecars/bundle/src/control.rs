//! Handles requests from keepers, and buffers events from daemons.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bottle_channel::{Channel, Incoming, Request, Side, Stream, splice};
use bottle_daemon::Lockout;
use bottle_egress::report::backlog::Backlog;
use bottle_harden::MissingProtection;
use bottle_policy::lock_out::HITS;
use bottle_protocol::session::bundle::{BundleEvent, BundleRequest, Daemon, Written};
use bottle_protocol::session::{Hello, Role};
use bottle_queue::Questions;
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, OnceCell, watch};

use crate::BundleConfig;
use crate::sidecar::{RequestError, Sidecar};

/// The maximum number of events that are buffered while no keeper is connected. If the buffer is full, the oldest event
/// is dropped, and the number of dropped events is counted. A busy agent causes about 4096 denials in a night.
const EVENTS: usize = 4096;

/// The state of the bundle, which all of the bundle's tasks share.
pub(crate) struct Bundle {
    config: BundleConfig,
    /// All daemons. The first daemon is egress, which every bundle has.
    daemons: Vec<Sidecar>,
    weaker: Vec<MissingProtection>,
    backlog: Backlog,
    /// Questions from the daemons to the user. A keeper receives the questions, and sends back the answers.
    questions: Questions,
    /// Counts the pieces of secrets that all daemons find. When the number of pieces reaches the limit, the bottle is
    /// locked, and the bundle notifies the keeper.
    lockout: Lockout,
    /// Set after the bundle has locked every daemon.
    all_locked: OnceCell<()>,
    /// The number of times that keepers have subscribed to events. Only the latest subscriber receives events.
    listeners: watch::Sender<u64>,
    /// Whether the bundle is stopping, so that daemons are expected to exit.
    stopping: AtomicBool,
    stopped: Notify,
}

impl Bundle {
    pub(crate) fn new(config: BundleConfig, daemons: Vec<Sidecar>, weaker: Vec<MissingProtection>) -> Self {
        Self {
            config,
            daemons,
            weaker,
            backlog: Backlog::new(EVENTS),
            questions: Questions::default(),
            lockout: Lockout::new("bundle", Some(HITS)),
            all_locked: OnceCell::new(),
            listeners: watch::Sender::new(0),
            stopping: AtomicBool::new(false),
            stopped: Notify::new(),
        }
    }

    /// Starts the tasks that serve the daemons. For each daemon, the tasks collect events and questions, count the
    /// pieces of secrets that the daemon finds, and detect when the daemon exits.
    pub(crate) fn watch(self: &Arc<Self>) {
        for number in 0..self.daemons.len() {
            let bundle = Arc::clone(self);
            tokio::spawn(async move { bundle.receive_questions(&bundle.daemons[number]).await });
            let bundle = Arc::clone(self);
            tokio::spawn(async move { bundle.receive_events(&bundle.daemons[number]).await });
            let bundle = Arc::clone(self);
            tokio::spawn(async move { bundle.count_hits(&bundle.daemons[number]).await });
        }
    }

    async fn receive_questions(&self, daemon: &Sidecar) {
        let ask = |question| {
            let questions = self.questions.clone();
            async move { questions.ask(question).await }
        };
        bottle_queue::forward(daemon.channel(), ask).await;
    }

    async fn receive_events(&self, daemon: &Sidecar) {
        if let Ok(mut events) = daemon.channel().open(&BundleRequest::Events).await {
            while let Ok(event) = events.receive().await {
                self.backlog.push(event);
            }
        }
        daemon.channel().closed().await;
        if !self.stopping.load(Ordering::Relaxed) {
            self.daemon_ended(daemon);
        }
    }

    /// Counts the pieces of secrets that the daemon finds. When the bottle has reached the limit, locks every daemon.
    async fn count_hits(&self, daemon: &Sidecar) {
        let Ok(mut hits) = daemon.channel().open(&BundleRequest::Hits).await else { return };
        // This loop also ends if the daemon exits. In that case, `receive_events` closes the daemon's listeners.
        while let Ok(BundleEvent::Hit { piece, place }) = hits.receive().await {
            self.lockout.hit_from(daemon.name, piece, &place);
            if self.lockout.is_locked() {
                self.all_locked.get_or_init(|| self.lock_daemons()).await;
            }
            // The daemon answers the agent only after it has received this message.
            if hits.message(&Written {}).await.is_err() {
                return;
            }
        }
    }

    async fn lock_daemons(&self) {
        let why = self.lockout.locked().await;
        for daemon in &self.daemons {
            if !daemon.lock(&why).await {
                // The bottle must fail closed. Killing the daemon closes the daemon's listeners.
                tracing::error!(daemon = daemon.name, "the daemon did not lock itself and is killed");
                let _ = daemon.kill();
            }
        }
    }

    /// Waits until the bottle is locked, and then notifies a keeper. If the bottle is already locked, notifies the
    /// keeper immediately.
    async fn send_lock_out(self: Arc<Self>, mut keeper: Stream) {
        let why = tokio::select! {
            why = self.lockout.locked() => why,
            _ = keeper.next() => return,
        };
        if keeper.message(&BundleEvent::LockedOut(why)).await.is_ok() {
            // An error means that the keeper has disconnected. The error is ignored, because a keeper that reconnects
            // subscribes again.
            let _ = keeper.end().await;
        }
    }

    /// Waits until a keeper requests that the bundle stops.
    pub(crate) async fn stopped(&self) {
        self.stopped.notified().await;
    }

    /// Serves one keeper until it disconnects.
    pub(crate) async fn keeper<IO>(self: Arc<Self>, io: IO)
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let hello = Hello::of(Role::Bundle);
        let Ok((channel, incoming, theirs)) = Channel::establish(io, Side::Accepted, hello).await else {
            return;
        };
        if theirs.role == Role::Keeper {
            self.serve_requests(&channel, incoming).await;
        }
    }

    async fn serve_requests(self: &Arc<Self>, channel: &Channel, mut incoming: Incoming) {
        while let Some(request) = incoming.next().await {
            match request.parse::<BundleRequest>() {
                Ok(BundleRequest::Events) => {
                    tokio::spawn(Arc::clone(self).send_events(request.accept()));
                }
                Ok(BundleRequest::LockOut) => {
                    tokio::spawn(Arc::clone(self).send_lock_out(request.accept()));
                }
                Ok(BundleRequest::Question) => {
                    let bundle = Arc::clone(self);
                    tokio::spawn(async move { bundle.questions.serve(request.accept()).await });
                }
                Ok(BundleRequest::Usage | BundleRequest::Leases | BundleRequest::Log) => {
                    tokio::spawn(Arc::clone(self).connect(request, bottle_egress::daemon::NAME));
                }
                Ok(BundleRequest::ToolCall) => {
                    tokio::spawn(Arc::clone(self).connect(request, bottle_supervise::NAME));
                }
                Ok(BundleRequest::Stop) => {
                    let stopped = self.stop(request.payload().clone()).await;
                    respond(request, &stopped).await;
                    channel.flush().await;
                    self.stopped.notify_one();
                    return;
                }
                Ok(BundleRequest::Health) => {
                    let health = self.health(request.payload().clone()).await;
                    respond(request, &health).await;
                }
                Ok(BundleRequest::Provision(_)) => self.forward(request, bottle_egress::daemon::NAME),
                Ok(BundleRequest::Routes(_)) => self.routes(request).await,
                Ok(BundleRequest::Secrets { .. }) => self.replace_credentials(request).await,
                Ok(BundleRequest::Supervise(_)) => self.forward(request, bottle_supervise::NAME),
                Ok(BundleRequest::Gate(_)) => self.forward(request, bottle_git_gate::NAME),
                Ok(BundleRequest::Lock(why)) => {
                    self.lockout.lock(why);
                    self.all_locked.get_or_init(|| self.lock_daemons()).await;
                    respond(request, &BundleEvent::Locked).await;
                }
                Ok(BundleRequest::Hits) => request.refuse("only the bundle counts").await,
                Err(error) => request.refuse(&error.to_string()).await,
            }
        }
    }

    /// Sends events until the stream closes or another keeper subscribes.
    async fn send_events(self: Arc<Self>, mut stream: Stream) {
        let mut listeners = self.listeners.subscribe();
        self.listeners.send_modify(|count| *count += 1);
        listeners.mark_unchanged();
        loop {
            let event = tokio::select! {
                event = self.backlog.next() => event,
                _ = stream.next() => return,
                _ = listeners.changed() => {
                    stream.reset("another keeper has subscribed").await;
                    return;
                }
            };
            if stream.message(&event).await.is_err() {
                self.backlog.put_back(event);
                return;
            }
        }
    }

    /// Connects the keeper's stream to a daemon. Streams of token usage, of leases on budgets and of the access log go
    /// to the egress daemon. Streams of tool calls go to the supervise daemon. The egress daemon stores the data that
    /// no keeper has received.
    async fn connect(self: Arc<Self>, request: Request, name: &'static str) {
        let Some(daemon) = self.daemon(name) else {
            return request.refuse(&RequestError::Missing(name).to_string()).await;
        };
        match daemon.channel().open_bytes(request.payload().clone()) {
            Ok(daemon) => splice(request.accept(), daemon).await,
            Err(error) => request.refuse(&error.to_string()).await,
        }
    }

    /// Forwards a request to a daemon in a separate task, so that other requests do not wait.
    fn forward(self: &Arc<Self>, request: Request, name: &'static str) {
        let bundle = Arc::clone(self);
        tokio::spawn(async move {
            let answer = bundle.request(name, &request).await;
            respond(request, &answer.unwrap_or_else(rejected)).await;
            // The requests that provision the daemons are the largest requests, so their memory is returned to the
            // kernel.
            bottle_heap::trim();
        });
    }

    /// Sends new routes to the egress proxy, and then to the supervise daemon. The supervise daemon shows the routes to
    /// the agent.
    async fn routes(&self, request: Request) {
        let answer = self.request(bottle_egress::daemon::NAME, &request).await;
        if let Ok(BundleEvent::Live { .. }) = answer
            && let Some(supervise) = self.daemon(bottle_supervise::NAME)
            && let Err(error) = supervise.request(request.payload().clone()).await
        {
            // The error is only logged, because the routes are already active in the egress proxy. If the supervise
            // daemon exited, an event reports its exit.
            tracing::warn!("{:#}", anyhow::Error::new(error));
        }
        respond(request, &answer.unwrap_or_else(rejected)).await;
    }

    /// Sends new values of credentials to the git gate, which searches pushes for them, and then to the egress proxy,
    /// which uses them. If the git gate cannot search for the values, the egress proxy does not get them.
    async fn replace_credentials(&self, request: Request) {
        let searched = match self.daemon(bottle_git_gate::NAME) {
            Some(gate) => gate.request(request.payload().clone()).await,
            None => Ok(BundleEvent::Replaced),
        };
        let answer = match searched {
            Ok(BundleEvent::Rejected { message }) => Ok(BundleEvent::Rejected { message }),
            Ok(_) => self.request(bottle_egress::daemon::NAME, &request).await,
            // A git gate that does not answer has exited and serves no push, so its error does not matter here.
            Err(error) => {
                tracing::warn!("{:#}", anyhow::Error::new(error));
                self.request(bottle_egress::daemon::NAME, &request).await
            }
        };
        respond(request, &answer.unwrap_or_else(rejected)).await;
    }

    /// Sends a keeper's request to a daemon and waits for the response.
    async fn request(&self, name: &'static str, request: &Request) -> Result<BundleEvent, RequestError> {
        let daemon = self.daemon(name).ok_or(RequestError::Missing(name))?;
        daemon.request(request.payload().clone()).await
    }

    fn daemon(&self, name: &str) -> Option<&Sidecar> {
        self.daemons.iter().find(|daemon| daemon.name == name)
    }

    async fn health(&self, request: Bytes) -> BundleEvent {
        let mut daemons = Vec::new();
        for daemon in &self.daemons {
            daemons.extend(self.health_of(daemon, request.clone()).await);
        }
        BundleEvent::Health { daemons }
    }

    async fn health_of(&self, daemon: &Sidecar, request: Bytes) -> Vec<Daemon> {
        let mut daemons = match daemon.request(request).await {
            Ok(BundleEvent::Health { daemons }) => daemons,
            _ => {
                let name = daemon.name.to_owned();
                return vec![Daemon {
                    name,
                    up: false,
                    revision: None,
                    resident: None,
                    model_requests: None,
                    weaker: vec![],
                }];
            }
        };
        for daemon in &mut daemons {
            daemon.weaker.extend(self.weaker.iter().map(|weaker| weaker.0.clone()));
        }
        daemons
    }

    async fn stop(&self, request: Bytes) -> BundleEvent {
        self.stopping.store(true, Ordering::Relaxed);
        let mut closed = Ok(());
        for daemon in &self.daemons {
            let ended = daemon.stop(request.clone()).await;
            closed = closed.and(ended).and(self.config.proxy.close(daemon.ports));
        }
        match closed {
            Ok(()) => BundleEvent::Stopped,
            Err(error) => BundleEvent::Rejected { message: format!("cannot close the listeners: {error}") },
        }
    }

    /// Closes the listeners of a daemon that exited, so that the bottle fails closed. Also reports the exit to the
    /// keeper.
    fn daemon_ended(&self, daemon: &Sidecar) {
        let ended = daemon.kill().and(self.config.proxy.close(daemon.ports));
        if let Err(error) = ended {
            tracing::error!(%error, daemon = daemon.name, "cannot close its listeners");
        }
        self.backlog.push(BundleEvent::Down { daemon: daemon.name.to_owned() });
    }
}

/// Returns the response to a request that no daemon served.
fn rejected(error: RequestError) -> BundleEvent {
    BundleEvent::Rejected { message: format!("{:#}", anyhow::Error::new(error)) }
}

async fn respond(request: Request, event: &BundleEvent) {
    let stream = request.accept();
    if stream.message(event).await.is_ok() {
        // An error is ignored. If the keeper has disconnected, the caller's loop ends.
        let _ = stream.end().await;
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use bottle_daemon::ListenerConfig;
    use bottle_policy::lock_out::{LockOut, Piece};
    use tokio::net::UnixStream;

    use super::*;
    use crate::Control;

    /// Starts a daemon of the test. Returns the bundle's handle to the daemon, and the daemon's own lock.
    async fn daemon(name: &'static str) -> (Sidecar, Arc<Lockout>) {
        let lockout = Arc::new(Lockout::new(name, Some(HITS)));
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let (ours, theirs) = tokio::join!(
            Channel::establish(ours, Side::Dialed, Hello::of(Role::Bundle)),
            Channel::establish(theirs, Side::Accepted, Hello::of(Role::Egress))
        );
        let ((channel, ..), (other, mut incoming, _)) = (ours.expect("bundle"), theirs.expect("daemon"));
        let served = Arc::clone(&lockout);
        tokio::spawn(async move {
            while let Some(request) = incoming.next().await {
                match request.parse::<BundleRequest>() {
                    Ok(BundleRequest::Hits) => {
                        drop(tokio::spawn(Arc::clone(&served).report(request.accept())))
                    }
                    Ok(BundleRequest::Lock(why)) => {
                        served.lock(why);
                        respond(request, &BundleEvent::Locked).await;
                    }
                    _ => request.refuse("not in this test").await,
                }
            }
            drop(other);
        });
        let process = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().expect("a process");
        (Sidecar::of_channel(name, process, channel), lockout)
    }

    /// Pieces that different daemons find are counted together, because all daemons belong to one bottle.
    #[tokio::test]
    async fn counts_the_pieces_of_all_daemons_together() {
        let directory = tempfile::tempdir().expect("directory");
        let config = BundleConfig {
            labels: ["0123abcd".into(), "a-1".into()],
            proxy: ListenerConfig::Socket { directory: directory.path().into() },
            control: Control::Stdio,
            logs: directory.path().into(),
            relay_log: false,
            identity: None,
            machine: None,
            gate: None,
            supervise: false,
        };
        let ((first, egress), (second, gate)) = (daemon("egress").await, daemon("git-gate").await);
        let bundle = Arc::new(Bundle::new(config, vec![first, second], Vec::new()));
        bundle.watch();
        let piece = |number: usize| Piece::of(format!("a piece of a secret, number {number}").as_bytes());
        for number in 0..HITS - 1 {
            let (daemon, place) = if number % 2 == 0 { (&egress, "a.example") } else { (&gate, "tool") };
            daemon.hit(piece(number), place);
            assert!(!daemon.settled().await);
        }
        // A piece that two daemons find is counted only once.
        gate.hit(piece(0), "tool");
        assert!(!gate.settled().await);
        assert!(!bundle.lockout.is_locked() && !egress.is_locked());
        gate.hit(piece(HITS), "tool");
        let both = async { (gate.locked().await, egress.locked().await) };
        let (why, other) = tokio::time::timeout(Duration::from_secs(20), both).await.expect("locked");
        let places = vec!["a.example".to_owned(), "tool".to_owned()];
        assert_eq!(why, LockOut { daemon: "git-gate".into(), hits: HITS, places, parent: None });
        assert_eq!(other, why);
        // The daemon that found the last piece answers the agent only when all daemons are locked.
        assert!(gate.settled().await && egress.settled().await);
        bundle.stopping.store(true, Ordering::Relaxed);
        bundle.daemons.iter().for_each(|daemon| drop(daemon.kill()));
    }
}
