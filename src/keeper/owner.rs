//! The one task that changes a running bottle's state.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bottle_channel::{Channel, Stream};
use bottle_contract::lock_out::LockOut;
use bottle_contract::names::{NEVER_LISTED, Slug};
use bottle_contract::secret::Secret;
use bottle_contract::session::bundle::{BundleEvent, BundleRequest, Daemon};
use bottle_queue::Asker;
use bottle_scan::Redactor;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

use super::First;
use super::clients::{self, Attached, Command, Shared};
use super::decisions::Decisions;
use super::ending::{self, End};
use super::jobs::{self, Job};
use super::notices::Notices;
use super::notify::Notifier;
use super::protocol::{EndCause, EndChoice, KeeperEvent, Notice};
use super::questions::{self, Answering};
use super::usage;
use crate::backend::Backend;
use crate::host::Host;
use crate::instance::Claim;
use crate::instance::deploy_keys::Tokens;
use crate::instance::record::{Mode, Service, Status};
use crate::instance::routes;
use crate::launch::{Running, agent_end};

/// How long an ended agent's first client may take to come and read its output.
const FIRST_LOOK: Duration = Duration::from_secs(10);

/// How long clients get to hear of the end before the keeper goes.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The agent's time between SIGTERM and SIGKILL when nobody says otherwise, as `docker stop` has it.
const GRACE: Duration = Duration::from_secs(10);

/// How long the bundle may take to say how it is.
const HEALTH_WITHIN: Duration = Duration::from_secs(2);

/// A bottle that runs, with its keeper.
pub(super) struct Owned<'a> {
    pub(super) host: &'a Host,
    pub(super) backend: &'a dyn Backend,
    pub(super) claim: Claim,
    pub(super) running: Running,
    pub(super) first: First,
    pub(super) secrets: Vec<Secret>,
    /// With which its deploy keys are revoked; those that are not here are read again.
    pub(super) tokens: Tokens,
    pub(super) adopted: bool,
}

impl Owned<'_> {
    /// Keeps the bottle until it ends, and ends it.
    pub(super) async fn keep(self, report: &Stream) -> anyhow::Result<()> {
        let slug = self.claim.record().slug;
        let daemons = health(&self.running.bundle).await;
        let live = daemons.iter().find_map(|daemon| daemon.revision);
        let services: Vec<Service> =
            daemons.into_iter().map(|daemon| Service { name: daemon.name, up: daemon.up }).collect();
        self.claim.update(|record| {
            record.status = Status::Running;
            record.services = services;
        })?;
        let socket = super::client::socket(self.host, &slug);
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket)?;
        let decisions = self.decisions(&slug, &self.running.bundle);
        let Running { bundle, guest, agent } = self.running;
        if self.adopted {
            decisions.send_again(live).await;
        }
        let (commands, inbox) = mpsc::channel(16);
        let notices = Arc::new(Notices::new());
        let answering = Answering {
            decisions: decisions.clone(),
            notices: Arc::clone(&notices),
            notifier: Notifier::new(self.host),
            redactor: Redactor::new(&self.secrets).ok(),
        };
        let shared = Arc::new(Shared {
            guest: guest.clone(),
            notices,
            asker: Asker::new(self.host.home.clone(), slug.clone(), Arc::new(answering)),
            commands,
            attached: watch::Sender::default(),
            connected: watch::Sender::default(),
            ended: watch::Sender::default(),
            offer: Mutex::default(),
        });
        tokio::spawn(clients::accept(listener, shared.clone()));
        let lock = Lock {
            slug: slug.clone(),
            known: self.claim.record().locked.is_some(),
            decisions: decisions.clone(),
            notifier: Notifier::new(self.host),
        };
        // It ends with the bundle: a bottle may be locked in its last moment.
        tokio::spawn(lock.hear(bundle.clone(), shared.clone()));
        let hearing = tokio::spawn(hear_bundle(bundle.clone(), shared.clone(), decisions));
        let asking = tokio::spawn(questions::carry(bundle.clone(), shared.clone()));
        let counting = tokio::spawn(usage::carry(
            self.host.home.clone(),
            slug.clone(),
            self.claim.record().agent.to_string(),
            bundle.clone(),
            shared.clone(),
        ));
        let first = self.first.channel.clone();
        tokio::spawn(serve_first(self.first, shared.clone()));
        let _ = report.message(&KeeperEvent::Running { slug }).await;
        let _ = report.end().await;

        let (backend, claim) = (self.backend, &self.claim);
        let mut watch = Watch { backend, claim, shared: &shared, inbox, agent, guest: &guest, job: None };
        let mut end = watch.until_the_end().await?;
        watch.finish_job().await;
        if end.cause == EndCause::AgentExited {
            if !self.adopted {
                watch.until_its_output_is_read(&first).await;
            }
            end.choice = watch.what_becomes_of_work().await;
        }
        end.seen = shared.attached.borrow().ever;
        // From here on the proxy closes because the bottle ends: nothing to warn of.
        hearing.abort();
        // What is not answered by now never will be; it stays in the queue and is stale.
        asking.abort();
        let agent = watch.agent();
        let scene = ending::Scene {
            host: self.host,
            backend: self.backend,
            claim: self.claim,
            guest,
            bundle,
            agent,
            counting,
            secrets: self.secrets,
            tokens: self.tokens,
        };
        let ended = scene.tear_down(end).await;
        let _ = std::fs::remove_file(&socket);
        shared.ended.send_replace(Some(ended));
        // Whoever listens gets the end written; one that does not read holds nobody up.
        let mut connected = shared.connected.subscribe();
        let _ = tokio::time::timeout(LAST_WORDS, connected.wait_for(|connected| *connected == 0)).await;
        Ok(())
    }

    /// What decides for it. Without its routes nobody can change them; everything else goes on.
    fn decisions(&self, slug: &Slug, bundle: &Channel) -> Decisions {
        let folder = self.claim.folder().to_owned();
        let routes = routes::read(&folder).unwrap_or_else(|error| {
            tracing::warn!("{}: {error}", routes::path(&folder).display());
            None
        });
        Decisions::new(&self.host.home, slug, folder, bundle.clone(), routes)
    }
}

struct Watch<'a> {
    backend: &'a dyn Backend,
    claim: &'a Claim,
    shared: &'a Shared,
    inbox: mpsc::Receiver<Command>,
    agent: Stream,
    guest: &'a Channel,
    /// A commit, or the removal of one, while the bottle goes on. One at a time.
    job: Option<Job<'a>>,
}

impl Watch<'_> {
    async fn until_the_end(&mut self) -> anyhow::Result<End> {
        let mut terminate = signal(SignalKind::terminate())?;
        let end = |cause, exit| End { cause, exit, grace: GRACE, seen: false, choice: EndChoice::Keep };
        loop {
            tokio::select! {
                exit = agent_end(&mut self.agent) => return Ok(match exit {
                    Some(exit) => end(EndCause::AgentExited, Some(exit)),
                    None => end(EndCause::GuestDied, None),
                }),
                _ = self.guest.closed() => return Ok(end(EndCause::GuestDied, None)),
                _ = terminate.recv() => return Ok(end(EndCause::Stopped, None)),
                () = jobs::done(&mut self.job) => {}
                Some(command) = self.inbox.recv() => match command {
                    Command::Stop { grace_ms } => {
                        let grace = Duration::from_millis(grace_ms);
                        return Ok(End { grace, ..end(EndCause::Stopped, None) });
                    }
                    Command::Detach => self.claim.update(|record| record.mode = Mode::Detached)?,
                    Command::FirstGone if self.claim.record().mode == Mode::Attached => {
                        return Ok(end(EndCause::ClientGone, None));
                    }
                    Command::FirstGone => {}
                    other => self.take_job(other).await,
                },
            }
        }
    }

    /// The agent's stream; nothing watches it any more.
    fn agent(self) -> Stream {
        self.agent
    }

    /// Begins what was asked for, unless something else is under way.
    async fn take_job(&mut self, command: Command) {
        match command {
            Command::Commit { told } | Command::RemoveSnapshot { told } if self.job.is_some() => {
                let busy = "a snapshot of this bottle is being made or removed already";
                let _ = told.send(KeeperEvent::Refused(busy.to_owned())).await;
            }
            Command::Commit { told } => self.job = Some(jobs::commit(self.backend, self.claim, told)),
            Command::RemoveSnapshot { told } => {
                self.job = Some(jobs::remove_snapshot(self.backend, self.claim, told));
            }
            Command::Pulled { at, told } => {
                let answer = match self
                    .claim
                    .update(|record| record.pulled_at = record.pulled_at.max(Some(at)))
                {
                    Ok(()) => KeeperEvent::Done,
                    Err(error) => KeeperEvent::Refused(format!("cannot write the bottle's record: {error}")),
                };
                let _ = told.send(answer).await;
            }
            Command::ServiceDown(name) => self.note_down(name.as_deref()),
            Command::LockedOut(why) => self.note_locked(why),
            Command::Stop { .. } | Command::Detach | Command::FirstGone => {}
        }
    }

    /// For whoever lists the bottle. The warning went out already.
    fn note_down(&self, name: Option<&str>) {
        let down = |service: &Service| name.is_none_or(|name| service.name == name);
        let noted = self.claim.update(|record| {
            record.services.iter_mut().filter(|service| down(service)).for_each(|service| service.up = false);
        });
        if let Err(error) = noted {
            tracing::warn!("cannot write the bottle's record: {error}");
        }
    }

    /// For whoever lists the bottle, and for the next keeper.
    fn note_locked(&self, why: LockOut) {
        if let Err(error) = self.claim.update(|record| record.locked = Some(why)) {
            tracing::warn!("cannot write the bottle's record: {error}");
        }
    }

    /// What is under way comes to its end before the bottle does: its files go on being there.
    async fn finish_job(&mut self) {
        if self.job.is_some() {
            jobs::done(&mut self.job).await;
        }
    }

    /// Asks whoever offered to say it, as long as they are there.
    async fn what_becomes_of_work(&mut self) -> EndChoice {
        let offer = self.shared.offer.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut offer) = offer else { return EndChoice::Keep };
        let work = ending::holds_work(self.backend, self.claim, self.guest).await;
        if offer.message(&KeeperEvent::Work(work)).await.is_err() || !work {
            let _ = offer.end().await;
            return EndChoice::Keep;
        }
        loop {
            tokio::select! {
                choice = offer.receive() => return choice.unwrap_or(EndChoice::Keep),
                _ = self.guest.closed() => return EndChoice::Keep,
                () = jobs::done(&mut self.job) => {}
                Some(command) = self.inbox.recv() => match command {
                    Command::Stop { .. } => return EndChoice::Keep,
                    other => self.take_job(other).await,
                },
            }
        }
    }

    /// The agent has ended; its output is still in the guest. Waits for those who read it.
    async fn until_its_output_is_read(&mut self, first: &Channel) {
        let mut attached = self.shared.attached.subscribe();
        let expected = self.claim.record().mode == Mode::Attached;
        let read = async {
            if expected {
                let came = attached.wait_for(|a: &Attached| a.ever);
                let _ = tokio::time::timeout(FIRST_LOOK, came).await;
            }
            let _ = attached.wait_for(|a| a.now == 0).await;
        };
        let told_otherwise = async {
            while let Some(command) = self.inbox.recv().await {
                // Whatever else is asked for is answered by nobody, which says that the bottle is ending.
                if matches!(command, Command::Stop { .. }) {
                    return;
                }
            }
        };
        let gone = async {
            first.closed().await;
            if !expected {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = read => {}
            () = told_otherwise => {}
            () = gone => {}
        }
    }
}

async fn serve_first(first: First, shared: Arc<Shared>) {
    clients::serve(first.channel, first.incoming, shared.clone()).await;
    let _ = shared.commands.send(Command::FirstGone).await;
}

/// What happens when the bundle says that the bottle is locked.
struct Lock {
    slug: Slug,
    /// Whether an earlier keeper was told.
    known: bool,
    decisions: Decisions,
    notifier: Notifier,
}

impl Lock {
    /// Waits for it, tells the user once, and everybody who attaches.
    async fn hear(self, bundle: Channel, shared: Arc<Shared>) {
        let Ok(mut lock) = bundle.open(&BundleRequest::LockOut).await else { return };
        let Ok(BundleEvent::LockedOut(why)) = lock.receive().await else { return };
        shared.notices.tell(Notice::LockedOut(locked_words(&self.slug, &why)));
        if self.known {
            return;
        }
        self.decisions.locked_out(why.clone()).await;
        self.notifier.send_lock_out(&self.slug, &why);
        let _ = shared.commands.send(Command::LockedOut(why)).await;
    }
}

/// What the user has to know of a lock.
fn locked_words(slug: &Slug, why: &LockOut) -> String {
    let LockOut { daemon, hits, places } = why;
    format!(
        "{slug} is locked: {hits} different parts of credentials that its agent does not hold were on their way to \
         {}, as {daemon} saw. Nothing leaves it any more. `bottle stop {slug}` ends this run; \
         `bottle resume {slug}` or a new start is not locked",
        places.join(", ")
    )
}

/// Turns what the bundle reports into notices, until it is gone.
async fn hear_bundle(bundle: Channel, shared: Arc<Shared>, decisions: Decisions) {
    if let Ok(mut events) = bundle.open(&BundleRequest::Events).await {
        while let Ok(event) = events.receive::<BundleEvent>().await {
            match event {
                // Asked for by the probe, to see it refused.
                BundleEvent::Refused(refused) if refused.host == NEVER_LISTED => {}
                BundleEvent::Refused(refused) => shared.notices.tell(Notice::Refused(refused)),
                BundleEvent::Spent { proposal } => decisions.spent(proposal).await,
                BundleEvent::Down { daemon } => {
                    shared.notices.tell(Notice::ProxyDown(format!(
                        "{daemon} ended; its part of the proxy is closed and nothing passes there any more"
                    )));
                    let _ = shared.commands.send(Command::ServiceDown(Some(daemon))).await;
                }
                BundleEvent::Lost { count } => shared.notices.tell(Notice::Warning(format!(
                    "{count} events of the proxy were lost while nobody listened"
                ))),
                _ => {}
            }
        }
    }
    let sentence = "the proxy's guard ended: nothing leaves the bottle any more".to_owned();
    shared.notices.tell(Notice::ProxyDown(sentence));
    let _ = shared.commands.send(Command::ServiceDown(None)).await;
}

/// What guards the proxy, as the bundle says; nothing when it does not answer, which is noticed elsewhere.
async fn health(bundle: &Channel) -> Vec<Daemon> {
    let ask = async {
        let mut stream = bundle.open(&BundleRequest::Health).await.ok()?;
        match stream.receive::<BundleEvent>().await.ok()? {
            BundleEvent::Health { daemons } => Some(daemons),
            _ => None,
        }
    };
    tokio::time::timeout(HEALTH_WITHIN, ask).await.ok().flatten().unwrap_or_default()
}
