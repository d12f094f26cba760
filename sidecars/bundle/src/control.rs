//! What a keeper asks, and the events that wait for one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bottle_channel::{Channel, Incoming, Request, Side, Stream, splice};
use bottle_contract::session::bundle::{BundleEvent, BundleRequest, Daemon};
use bottle_contract::session::{Hello, Role};
use bottle_daemon::Lockout;
use bottle_egress::report::backlog::Backlog;
use bottle_harden::MissingProtection;
use bottle_queue::Questions;
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, watch};

use crate::BundleConfig;
use crate::sidecar::Sidecar;

/// Events kept while no keeper listens: a night's refusals of a busy agent.
const EVENTS: usize = 4096;

/// The bundle, shared by all its tasks.
pub(crate) struct Bundle {
    config: BundleConfig,
    /// Egress first, which every bundle has.
    daemons: Vec<Sidecar>,
    weaker: Vec<MissingProtection>,
    backlog: Backlog,
    /// What daemons ask of a user; a keeper carries it on.
    questions: Questions,
    /// Locked once any daemon is; keepers hear of it here.
    lockout: Lockout,
    /// Counts the keepers that asked for events; the latest one gets them.
    listeners: watch::Sender<u64>,
    /// From here on a daemon that ends is no news.
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
            lockout: Lockout::new("bundle", None),
            listeners: watch::Sender::new(0),
            stopping: AtomicBool::new(false),
            stopped: Notify::new(),
        }
    }

    /// Collects the daemons' events and questions, and notices when one ends or locks the bottle.
    pub(crate) fn watch(self: &Arc<Self>) {
        for number in 0..self.daemons.len() {
            let bundle = Arc::clone(self);
            tokio::spawn(async move { bundle.hear_questions(&bundle.daemons[number]).await });
            let bundle = Arc::clone(self);
            tokio::spawn(async move { bundle.hear_events(&bundle.daemons[number]).await });
            let bundle = Arc::clone(self);
            tokio::spawn(async move { bundle.hear_lock(&bundle.daemons[number]).await });
        }
    }

    async fn hear_questions(&self, daemon: &Sidecar) {
        let ask = |question| {
            let questions = self.questions.clone();
            async move { questions.ask(question).await }
        };
        bottle_queue::forward(daemon.channel(), ask).await;
    }

    async fn hear_events(&self, daemon: &Sidecar) {
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

    /// Waits until the daemon locks the bottle, and has the others lock themselves.
    async fn hear_lock(&self, daemon: &Sidecar) {
        let Ok(mut lock) = daemon.channel().open(&BundleRequest::LockOut).await else { return };
        // One that ends before takes its part of the proxy with it.
        let Ok(BundleEvent::LockedOut(why)) = lock.receive().await else { return };
        if self.lockout.is_locked() {
            return;
        }
        self.lockout.lock(why.clone());
        for other in self.daemons.iter().filter(|other| other.name != daemon.name) {
            if !matches!(other.lock(&why).await, Ok(BundleEvent::Locked)) {
                // Fail closed: its end closes its part of the proxy.
                tracing::error!(daemon = other.name, "it did not lock itself and is ended");
                let _ = other.kill();
            }
        }
    }

    /// Tells a keeper of the lock when it is there, at once when it was there before the keeper.
    async fn send_lock_out(self: Arc<Self>, mut keeper: Stream) {
        let why = tokio::select! {
            why = self.lockout.locked() => why,
            _ = keeper.next() => return,
        };
        if keeper.message(&BundleEvent::LockedOut(why)).await.is_ok() {
            // A keeper that is gone asks again when it is back.
            let _ = keeper.end().await;
        }
    }

    /// Resolves when a keeper has said stop.
    pub(crate) async fn stopped(&self) {
        self.stopped.notified().await;
    }

    /// Serves one keeper for as long as it stays.
    pub(crate) async fn keeper<IO>(self: Arc<Self>, io: IO)
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let hello = Hello::of(Role::Bundle);
        let Ok((channel, incoming, theirs)) = Channel::establish(io, Side::Accepted, hello).await else {
            return;
        };
        if theirs.role == Role::Keeper {
            self.answer_all(&channel, incoming).await;
        }
    }

    async fn answer_all(self: &Arc<Self>, channel: &Channel, mut incoming: Incoming) {
        while let Some(request) = incoming.next().await {
            match request.parse::<BundleRequest>() {
                Ok(BundleRequest::Events) => {
                    tokio::spawn(Arc::clone(self).tell(request.accept()));
                }
                Ok(BundleRequest::LockOut) => {
                    tokio::spawn(Arc::clone(self).send_lock_out(request.accept()));
                }
                Ok(BundleRequest::Question) => {
                    let bundle = Arc::clone(self);
                    tokio::spawn(async move { bundle.questions.serve(request.accept()).await });
                }
                Ok(BundleRequest::Usage) => {
                    tokio::spawn(Arc::clone(self).usage(request));
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
                Ok(BundleRequest::Provision(_)) => self.pass_on(request, bottle_egress::daemon::NAME),
                Ok(BundleRequest::Routes(_)) => self.routes(request).await,
                Ok(BundleRequest::Supervise(_)) => self.pass_on(request, bottle_supervise::NAME),
                Ok(BundleRequest::Gate(_)) => self.pass_on(request, bottle_git_gate::NAME),
                Ok(BundleRequest::Lock(_)) => request.refuse("daemons alone lock a bottle").await,
                Err(error) => request.refuse(&error.to_string()).await,
            }
        }
    }

    /// Passes events on until the stream breaks or another keeper listens.
    async fn tell(self: Arc<Self>, mut stream: Stream) {
        let mut listeners = self.listeners.subscribe();
        self.listeners.send_modify(|count| *count += 1);
        listeners.mark_unchanged();
        loop {
            let event = tokio::select! {
                event = self.backlog.next() => event,
                _ = stream.next() => return,
                _ = listeners.changed() => {
                    stream.reset("another keeper listens now").await;
                    return;
                }
            };
            if stream.message(&event).await.is_err() {
                self.backlog.put_back(event);
                return;
            }
        }
    }

    /// Leads the keeper to the daemon that counts: what it has not handed over stays with it alone.
    async fn usage(self: Arc<Self>, request: Request) {
        let Some(egress) = self.daemon(bottle_egress::daemon::NAME) else { return };
        match egress.channel().open_bytes(request.payload().clone()) {
            Ok(counts) => splice(request.accept(), counts).await,
            Err(error) => request.refuse(&error.to_string()).await,
        }
    }

    /// Has the daemon of this name answer, beside what others are asked.
    fn pass_on(self: &Arc<Self>, request: Request, name: &'static str) {
        let bundle = Arc::clone(self);
        tokio::spawn(async move {
            let answer = match bundle.daemon(name) {
                Some(daemon) => daemon.ask(request.payload().clone()).await,
                None => Err(format!("this bundle has no {name}")),
            };
            let event = answer.unwrap_or_else(|message| BundleEvent::Rejected { message });
            respond(request, &event).await;
        });
    }

    /// Has the proxy go by other routes; then whoever tells the agent of them knows them too.
    async fn routes(&self, request: Request) {
        let answer = match self.daemon(bottle_egress::daemon::NAME) {
            Some(egress) => egress.ask(request.payload().clone()).await,
            None => Err("this bundle has no proxy".to_owned()),
        };
        if let (Ok(BundleEvent::Live { .. }), Some(supervise)) =
            (&answer, self.daemon(bottle_supervise::NAME))
            && let Err(error) = supervise.ask(request.payload().clone()).await
        {
            // They are live all the same; a daemon that is gone is told of elsewhere.
            tracing::warn!("{error}");
        }
        let event = answer.unwrap_or_else(|message| BundleEvent::Rejected { message });
        respond(request, &event).await;
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
        let mut daemons = match daemon.ask(request).await {
            Ok(BundleEvent::Health { daemons }) => daemons,
            _ => {
                let name = daemon.name.to_owned();
                return vec![Daemon { name, up: false, revision: None, resident: None, weaker: vec![] }];
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
            Err(error) => BundleEvent::Rejected { message: format!("the proxy: {error}") },
        }
    }

    /// Fail closed: without its daemon nothing may even connect.
    fn daemon_ended(&self, daemon: &Sidecar) {
        let ended = daemon.kill().and(self.config.proxy.close(daemon.ports));
        if let Err(error) = ended {
            tracing::error!(%error, daemon = daemon.name, "its proxy could not be closed");
        }
        self.backlog.push(BundleEvent::Down { daemon: daemon.name.to_owned() });
    }
}

async fn respond(request: Request, event: &BundleEvent) {
    let stream = request.accept();
    if stream.message(event).await.is_ok() {
        // A keeper that is gone by now ends the caller's loop.
        let _ = stream.end().await;
    }
}
