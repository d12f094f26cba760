//! The owner task of a running bottle. No other task changes the bottle's state.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bottle_backend::{Backend, RunState};
use bottle_channel::{Channel, Stream};
use bottle_contract::lock_out::LockOut;
use bottle_contract::names::{NEVER_LISTED, Slug};
use bottle_contract::secret::Secret;
use bottle_contract::session::bundle::{BundleEvent, BundleRequest};
use bottle_contract::session::guest::{GuestEvent, GuestRequest};
use bottle_contract::session::service::ServiceState;
use bottle_contract::terminal::inert;
use bottle_host::budget::Policy;
use bottle_host::causes;
use bottle_host::{Host, Settings};
use bottle_instance::Claim;
use bottle_instance::children::{self, Parent};
use bottle_instance::record::{Mode, Service, Status};
use bottle_instance::snapshots::CommitOptions;
use bottle_instance::usage::Labels;
use bottle_instance::{retention, routes};
use bottle_queue::Asker;
use bottle_scan::Redactor;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tracing::Instrument as _;

use super::budget::order::Order;
use super::budget::{self, Budgets};
use super::clients::{self, First};
use super::decisions::Decisions;
use super::family::Children;
use super::health::health;
use super::jobs::{self, Job};
use super::notices::Notices;
use super::notify::Notifier;
use super::process_logs::Recorder;
use super::protocol::{EndCause, EndChoice, Inherited, KeeperEvent, Notice, ParentChange};
use super::questions::{self, Answering};
use super::shared::{Attached, Command, Shared, send_last};
use super::teardown::{self, End};
use super::{access_log, activity, connect_both, parent, tool_calls, usage, watcher};
use crate::launch::{Running, agent_end};

/// How long the keeper of an attached bottle waits, after the agent exited, for a first client to attach and read the
/// agent's output. After that, the keeper tears the bottle down.
const FIRST_ATTACH_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the keeper waits at most before it exits, so that clients receive the event that the bottle ended.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the removal of a bottle's files may delay the report that the bottle ended. After that, the removal
/// continues in the background.
const PROMPT_REMOVAL: Duration = Duration::from_millis(200);

/// The agent's default time between SIGTERM and SIGKILL, which equals that of `docker stop`.
const GRACE: Duration = Duration::from_secs(10);

/// The number of times in a row that the keeper connects again to a bottle whose channel closes at once. After the last
/// one, the bottle ends.
const RECONNECTS: u32 = 5;

/// A channel that was open for this long does not count as closed at once.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// How long the guest's channel takes, at most, to close after the bundle's channel, if both close because the
/// container engine ended.
const CLOSES_WITHIN: Duration = Duration::from_millis(500);

/// How long the keeper waits for a paused bottle whose channel closed, before it ends the bottle.
const PAUSED_WITHIN: Duration = Duration::from_secs(60);

/// The interval at which the keeper checks whether such a bottle is still paused.
const PAUSE_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A running bottle and the keeper's state for it.
pub(super) struct Owned<'a> {
    pub(super) host: &'a Host,
    pub(super) backend: &'a dyn Backend,
    pub(super) claim: Claim,
    pub(super) running: Running,
    pub(super) first: First,
    pub(super) inherited: Inherited,
    pub(super) adopted: bool,
}

impl Owned<'_> {
    /// Serves the bottle until it ends, then tears it down.
    pub(super) async fn run(self, report: &Stream) -> anyhow::Result<()> {
        let slug = self.claim.record().slug;
        let own_slug = slug.clone();
        let daemons = health(&self.running.bundle).await;
        let live = daemons.iter().find_map(|daemon| daemon.revision);
        let services: Vec<Service> =
            daemons.into_iter().map(|daemon| Service { name: daemon.name, up: daemon.up }).collect();
        self.claim.update(|record| {
            record.status = Status::Running;
            // A bundle that ended does not answer. Its sidecars stay in the record, and are marked as ended soon.
            if !services.is_empty() {
                record.services = services;
            }
        })?;
        let socket = super::client::socket(self.host, &slug);
        let listener = clients::listen(&socket)?;
        let decisions = self.decisions(&slug, &self.running.bundle);
        let Running { mut bundle, guest, agent } = self.running;
        if self.adopted {
            decisions.resend(live).await;
        }
        let (commands, inbox) = mpsc::channel(16);
        let secrets: Vec<Secret> = self.inherited.secrets.iter().map(|text| text.0.clone()).collect();
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
            redactor: Redactor::new(&secrets).ok(),
        };
        let shared = Arc::new(Shared {
            guest: watch::Sender::new(Some(guest.clone())),
            notices,
            asker: Asker::new(self.host.home.clone(), slug.clone(), Arc::new(answering)),
            decisions: decisions.clone(),
            children,
            commands,
            order: watch::Sender::new(Order::recorded(self.claim.record().budget_order)),
            applied: watch::Sender::default(),
            attached: watch::Sender::default(),
            size: watch::Sender::default(),
            answered: watch::Sender::default(),
            connected: watch::Sender::default(),
            ended: watch::Sender::default(),
            inherited: self.inherited.clone(),
            detached: watch::Sender::new(self.claim.record().mode == Mode::Detached),
            watched: watch::Sender::default(),
            offer: Mutex::default(),
        });
        let accepting = clients::accept(listener, shared.clone(), std::future::pending());
        tokio::spawn(accepting.in_current_span());
        let watcher = watcher::keep(self.host.clone(), slug.clone(), self.adopted, shared.clone());
        let watcher = tokio::spawn(watcher.in_current_span());
        let parent = self.claim.record().parent.and_then(|client| Parent::parse(&client)?.ok());
        let (parent_host, child, for_parent) = (self.host.clone(), self.claim.record().slug, shared.clone());
        let parent = tokio::spawn(async move {
            if let Some(parent) = parent {
                parent::watch(parent_host, child, parent, for_parent).await;
            }
        });
        let recorder = Recorder::new(self.claim.directory(), &secrets);
        if let Some(recorder) = recorder.as_ref().filter(|_| !self.adopted) {
            recorder.clear().await;
        }
        let mut tasks = Tasks::start(self.host, &self.claim, &bundle, &guest, &shared, recorder.clone());
        let first = self.first.channel.clone();
        tokio::spawn(serve_first(self.first, shared.clone()).in_current_span());
        send_last(report, &KeeperEvent::Running { slug }).await;
        // The keeper idles from here on, and needs little of the memory that the launch used.
        bottle_heap::trim();

        let (backend, claim) = (self.backend, &self.claim);
        let mut watch = Watch {
            backend,
            claim,
            shared: &shared,
            inbox,
            agent,
            guest,
            job: None,
            commits: false,
            measure: None,
        };
        let mut reconnects = 0;
        let mut end = loop {
            let begun = Instant::now();
            let end = watch.run().await?;
            reconnects = if begun.elapsed() < STABLE_AFTER { reconnects + 1 } else { 0 };
            if end.cause != EndCause::GuestDied || reconnects >= RECONNECTS {
                break end;
            }
            shared.guest.send_replace(None);
            let connected = reconnect(backend, &claim.record().slug).await;
            let Some(running) = connected else {
                shared.guest.send_replace(Some(watch.guest.clone()));
                break end;
            };
            tasks.end();
            bundle = running.bundle;
            (watch.guest, watch.agent) = (running.guest, running.agent);
            decisions.reconnect(bundle.clone());
            let daemons = health(&bundle).await;
            decisions.resend(daemons.iter().find_map(|daemon| daemon.revision)).await;
            tasks = Tasks::start(self.host, claim, &bundle, &watch.guest, &shared, recorder.clone());
            shared.guest.send_replace(Some(watch.guest.clone()));
            let text = "the connection to the bottle was lost and is restored; the bottle kept running";
            shared.notices.send(Notice::Warning(text.to_owned()));
        };
        watch.finish_job().await;
        if end.cause == EndCause::AgentExited {
            if !self.adopted {
                watch.wait_for_readers(&first).await;
            }
            end.choice = watch.ask_about_work().await;
        }
        end.attached = shared.attached.borrow().ever;
        // From here on sidecars end because the bottle ends, so the user needs no warning.
        watcher.abort();
        parent.abort();
        shared.detached.send_replace(false);
        tasks.events.abort();
        // Pending questions stay in the queue and are marked as stale.
        tasks.questions.abort();
        tasks.budgets.abort();
        tasks.services.abort();
        tasks.tool_calls.abort();
        let records_task = tasks.records;
        let (guest, agent) = watch.into_channel();
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
        let _ = std::fs::remove_file(&socket);
        shared.ended.send_replace(Some(ended));
        // The keeper waits until connected clients have received the event that the bottle ended. A client that does
        // not read delays the keeper by at most [`CLOSE_TIMEOUT`].
        let mut connected = shared.connected.subscribe();
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, connected.wait_for(|connected| *connected == 0)).await;
        if removed.is_err() {
            // The bottle's name is already free. If this process is killed, a cleanup finds the rest.
            removal.await?;
        }
        bound_records(self.host, own_slug).await;
        Ok(())
    }

    /// Loads the bottle's decisions. If the routes file cannot be read, the routes cannot be changed and the rest
    /// works.
    fn decisions(&self, slug: &Slug, bundle: &Channel) -> Decisions {
        let directory = self.claim.directory().to_owned();
        let routes = routes::read(&directory).unwrap_or_else(|error| {
            tracing::warn!("{}: {error}", routes::path(&directory).display());
            None
        });
        Decisions::new(&self.host.home, slug, directory, bundle.clone(), routes)
    }
}

struct Watch<'a> {
    backend: &'a dyn Backend,
    claim: &'a Claim,
    shared: &'a Shared,
    inbox: mpsc::Receiver<Command>,
    agent: Stream,
    guest: Channel,
    /// The running snapshot job, which creates or removes a snapshot. Only one job runs at a time.
    job: Option<Job<'a>>,
    /// Whether `job` creates a snapshot.
    commits: bool,
    /// The running measurement of the bottle's size.
    measure: Option<Job<'a>>,
}

impl Watch<'_> {
    /// Handles events and commands until the bottle ends.
    async fn run(&mut self) -> anyhow::Result<End> {
        let mut terminate = signal(SignalKind::terminate())?;
        let end = |cause, exit| End { cause, exit, grace: GRACE, attached: false, choice: EndChoice::Keep };
        loop {
            tokio::select! {
                exit = agent_end(&mut self.agent) => return Ok(match exit {
                    Some(exit) => end(EndCause::AgentExited, Some(exit)),
                    None => end(EndCause::GuestDied, None),
                }),
                _ = self.guest.closed() => return Ok(end(EndCause::GuestDied, None)),
                _ = terminate.recv() => return Ok(end(EndCause::Stopped, None)),
                () = jobs::done(&mut self.job) => {}
                () = jobs::done(&mut self.measure) => {}
                Some(command) = self.inbox.recv() => match command {
                    Command::Stop { grace_ms, events } => {
                        self.report_job(&events).await;
                        let grace = Duration::from_millis(grace_ms);
                        return Ok(End { grace, ..end(EndCause::Stopped, None) });
                    }
                    Command::Enforce { policy, why } => {
                        self.enforce(policy, &why).await;
                        let choice = if policy == Policy::Kill { EndChoice::Discard } else { EndChoice::Keep };
                        return Ok(End { choice, ..end(EndCause::Budget(policy), None) });
                    }
                    Command::Detach { recorded } => {
                        let written = self.claim.update(|record| record.mode = Mode::Detached);
                        if written.is_ok() {
                            self.shared.detached.send_replace(true);
                        }
                        let _ = recorded.send(written);
                    }
                    Command::FirstGone if self.claim.record().mode == Mode::Attached => {
                        return Ok(end(EndCause::ClientGone, None));
                    }
                    Command::FirstGone => {}
                    other => self.run_command(other).await,
                },
            }
        }
    }

    /// Returns the guest's channel and the agent's stream.
    fn into_channel(self) -> (Channel, Stream) {
        (self.guest, self.agent)
    }

    /// Runs a command. Refuses a snapshot command while another snapshot job runs.
    async fn run_command(&mut self, command: Command) {
        match command {
            Command::Commit { events, .. } | Command::RemoveSnapshot { events, .. } if self.job.is_some() => {
                let busy = "another command makes or removes a snapshot of this bottle";
                let _ = events.send(KeeperEvent::Refused(busy.to_owned())).await;
            }
            Command::Commit { options, events } => {
                self.job = Some(jobs::commit(self.backend, self.claim, options, events));
                self.commits = true;
            }
            Command::RemoveSnapshot { which, events } => {
                self.job = Some(jobs::remove_snapshot(self.backend, self.claim, which, events));
                self.commits = false;
            }
            Command::FindDelay { events } => {
                let paused = self.job.is_some() && self.commits && self.backend.capabilities().commit_pauses;
                let answer = match paused {
                    true => warning(format!(
                        "a snapshot of {} is being saved, which pauses its programs; the command runs afterwards",
                        self.claim.record().slug
                    )),
                    false => KeeperEvent::Done,
                };
                let _ = events.send(answer).await;
            }
            Command::Measure => self.measure(),
            Command::Pulled { at, events } => {
                let answer = match self
                    .claim
                    .update(|record| record.pulled_at = record.pulled_at.max(Some(at)))
                {
                    Ok(()) => KeeperEvent::Done,
                    Err(error) => KeeperEvent::Refused(format!("cannot write the bottle's record: {error}")),
                };
                let _ = events.send(answer).await;
            }
            Command::ServiceDown(name) => self.record_down(name.as_deref()),
            Command::LockedOut(why) => self.record_lock_out(why),
            Command::FindPause { answer } => {
                // An engine pauses the bottle during a snapshot; the client waits until it is complete.
                let state = match self.job {
                    Some(_) => None,
                    None => self.backend.run_state(&self.claim.record().slug).await.ok(),
                };
                let hint = match state {
                    Some(RunState::Paused { hint }) => Some(hint),
                    _ => None,
                };
                let _ = answer.send(hint);
            }
            Command::BudgetHold { why, recorded } => {
                if let Err(error) = self.claim.update(|record| record.budget_hold = why) {
                    tracing::warn!("cannot write the bottle's record: {error}");
                }
                let _ = recorded.send(());
            }
            Command::ApproveCommands { approved, recorded } => {
                let written = self.claim.update(|record| {
                    for command in approved {
                        if !record.approved_commands.contains(&command) {
                            record.approved_commands.push(command);
                        }
                    }
                });
                if let Err(error) = written {
                    tracing::warn!("cannot write the bottle's record: {error}");
                }
                let _ = recorded.send(());
            }
            Command::BudgetOrder { policy, recorded } => {
                if let Err(error) = self.claim.update(|record| record.budget_order = policy) {
                    tracing::warn!("cannot write the bottle's record: {error}");
                }
                let _ = recorded.send(());
            }
            // The bottle ends already.
            Command::Enforce { .. } | Command::Stop { .. } | Command::Detach { .. } | Command::FirstGone => {}
        }
    }

    /// Starts a measurement of the bottle's size, unless one runs or the last one is new.
    fn measure(&mut self) {
        let (backend, claim, size) = (self.backend, self.claim, self.shared.size.clone());
        if self.measure.is_none() && activity::is_due(*size.borrow(), jiff::Timestamp::now()) {
            self.measure = Some(Box::pin(async move {
                if let Some(measured) = activity::measure(backend, claim).await {
                    size.send_replace(Some(measured));
                }
            }));
        }
    }

    /// Saves a snapshot if the policy is [`Policy::Freeze`], and waits for a running snapshot job in any case. If the
    /// snapshot fails, the bottle's files are preserved as after every stop.
    async fn enforce(&mut self, policy: Policy, why: &str) {
        let slug = &self.claim.record().slug;
        self.shared.notices.send(Notice::Warning(format!("{slug} ends ({policy}): {why}")));
        self.finish_job().await;
        if policy != Policy::Freeze {
            return;
        }
        let (events, mut results) = mpsc::channel(16);
        self.job = Some(jobs::commit(self.backend, self.claim, CommitOptions::default(), events));
        self.commits = true;
        self.finish_job().await;
        while let Ok(event) = results.try_recv() {
            if let KeeperEvent::Failed(failure) = event {
                let text = format!("cannot save a snapshot of {slug}: {}", failure.message);
                self.shared.notices.send(Notice::Warning(text));
            }
        }
    }

    /// Records an ended sidecar for `bottle list`. The warning to the user is already sent.
    fn record_down(&self, name: Option<&str>) {
        let down = |service: &Service| name.is_none_or(|name| service.name == name);
        let recorded = self.claim.update(|record| {
            record.services.iter_mut().filter(|service| down(service)).for_each(|service| service.up = false);
        });
        if let Err(error) = recorded {
            tracing::warn!("cannot write the bottle's record: {error}");
        }
    }

    /// Records that the bottle is locked, for `bottle list` and for a later keeper.
    fn record_lock_out(&self, why: LockOut) {
        if let Err(error) = self.claim.update(|record| record.locked = Some(why)) {
            tracing::warn!("cannot write the bottle's record: {error}");
        }
    }

    /// Waits for the running snapshot job, because the job needs the bottle's files.
    async fn finish_job(&mut self) {
        while self.job.is_some() {
            tokio::select! {
                () = jobs::done(&mut self.job) => {}
                Some(command) = self.inbox.recv() => match command {
                    Command::Stop { events, .. } => self.report_job(&events).await,
                    other => self.run_command(other).await,
                },
            }
        }
    }

    /// If a snapshot job runs, sends the notice that the bottle ends after it.
    async fn report_job(&self, events: &mpsc::Sender<KeeperEvent>) {
        if self.job.is_some() {
            let slug = self.claim.record().slug;
            let being = if self.commits { "saved" } else { "removed" };
            let text = format!("a snapshot of {slug} is being {being}; the bottle ends afterwards");
            let _ = events.send(warning(text)).await;
        }
    }

    /// If a client offered to decide about unsaved work, asks that client while it is connected.
    async fn ask_about_work(&mut self) -> EndChoice {
        let offer = self.shared.offer.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut offer) = offer else { return EndChoice::Keep };
        let unsaved = teardown::unsaved(self.backend, self.claim, &self.guest).await;
        let asks = unsaved.is_any();
        if offer.message(&KeeperEvent::Work(unsaved)).await.is_err() || !asks {
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
                    other => self.run_command(other).await,
                },
            }
        }
    }

    /// Waits for clients to read the output of the exited agent, which the guest still buffers.
    async fn wait_for_readers(&mut self, first: &Channel) {
        let mut attached = self.shared.attached.subscribe();
        let expected = self.claim.record().mode == Mode::Attached;
        let read = async {
            if expected {
                let first_attach = attached.wait_for(|a: &Attached| a.ever);
                let _ = tokio::time::timeout(FIRST_ATTACH_TIMEOUT, first_attach).await;
            }
            let _ = attached.wait_for(|a| a.now == 0).await;
        };
        let stopped = async {
            while let Some(command) = self.inbox.recv().await {
                // Other commands are dropped without an answer. The client then reports that the bottle is ending.
                if matches!(command, Command::Stop { .. }) {
                    return;
                }
            }
        };
        let client_lost = async {
            first.closed().await;
            if !expected {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = read => {}
            () = stopped => {}
            () = client_lost => {}
        }
    }
}

fn warning(text: String) -> KeeperEvent {
    KeeperEvent::Notice(Notice::Warning(text))
}

/// Connects again to a bottle whose channel closed, if the bottle still runs: its engine restarted. `None` if the
/// bottle ended, stays paused, or the engine does not answer.
async fn reconnect(backend: &dyn Backend, slug: &Slug) -> Option<Running> {
    let end = Instant::now() + PAUSED_WITHIN;
    loop {
        match backend.run_state(slug).await {
            Ok(RunState::Running) => break,
            Ok(RunState::Paused { .. }) if Instant::now() < end => {
                tokio::time::sleep(PAUSE_POLL_INTERVAL).await;
            }
            Ok(RunState::Paused { .. } | RunState::Ended) => return None,
            Err(error) => {
                tracing::warn!("{}", causes::one_line(&error));
                return None;
            }
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

/// The tasks that use one connection to the bundle.
struct Tasks {
    events: JoinHandle<()>,
    questions: JoinHandle<()>,
    /// Writes the usage records, the access log and the output of processes.
    records: JoinHandle<()>,
    /// Grants leases on budgets.
    budgets: JoinHandle<()>,
    /// Warns of services that end.
    services: JoinHandle<()>,
    /// Carries out calls with which the agent starts other bottles.
    tool_calls: JoinHandle<()>,
}

impl Tasks {
    fn start(
        host: &Host,
        claim: &Claim,
        bundle: &Channel,
        guest: &Channel,
        shared: &Arc<Shared>,
        recorder: Option<Recorder>,
    ) -> Self {
        let record = claim.record();
        let lock = LockOutWatch {
            slug: record.slug.clone(),
            reported: record.locked.is_some(),
            decisions: shared.decisions.clone(),
            notifier: Notifier::new(host),
        };
        // The task that waits for a lock ends only with the bundle, because a bottle can also be locked during its
        // teardown.
        tokio::spawn(lock.run(bundle.clone(), shared.clone()).in_current_span());
        let events = forward_bundle_events(bundle.clone(), guest.clone(), shared.clone());
        let questions = questions::serve(bundle.clone(), shared.clone());
        let labels = Labels::of(&record);
        let may_start = children::read(claim.directory()).unwrap_or_else(|error| {
            tracing::warn!("cannot read which bottles this one may start: {error}");
            None
        });
        let calls =
            tool_calls::serve(host.clone(), record.slug.clone(), record.start_directory(), bundle.clone());
        let tool_calls = async move {
            if may_start.is_some() {
                calls.await;
            }
        };
        let budgets = Budgets::of(host, &record);
        let budgets = budget::serve(bundle.clone(), guest.clone(), shared.clone(), budgets);
        let usage = usage::record(host.home.clone(), record.slug, labels, bundle.clone(), shared.clone());
        // Settings that cannot be read prevent starts, but must not end a bottle that runs.
        let log_keep = Settings::load(host).unwrap_or_default().log_keep;
        let log = access_log::record(claim.directory().to_owned(), log_keep, bundle.clone());
        let of_processes = guest.clone();
        let processes = async {
            if let Some(recorder) = recorder {
                recorder.record(of_processes).await;
            }
        };
        let records = async {
            tokio::join!(usage, log, processes);
        };
        Self {
            events: tokio::spawn(events.in_current_span()),
            questions: tokio::spawn(questions.in_current_span()),
            records: tokio::spawn(records.in_current_span()),
            budgets: tokio::spawn(budgets.in_current_span()),
            services: tokio::spawn(warn_of_services(guest.clone(), shared.clone()).in_current_span()),
            tool_calls: tokio::spawn(tool_calls.in_current_span()),
        }
    }

    /// Ends the tasks after their connection closed.
    fn end(self) {
        self.events.abort();
        self.questions.abort();
        self.records.abort();
        self.budgets.abort();
        self.services.abort();
        self.tool_calls.abort();
    }
}

async fn serve_first(first: First, shared: Arc<Shared>) {
    clients::serve(first.channel, first.incoming, shared.clone()).await;
    let _ = shared.commands.send(Command::FirstGone).await;
}

/// Removes the oldest logs and records of ended bottles, if there are too many.
async fn bound_records(host: &Host, slug: Slug) {
    let host = host.clone();
    let settings = Settings::load(&host).unwrap_or_default();
    let bound = tokio::task::spawn_blocking(move || {
        retention::bound_proposals(&host.home, &slug);
        let mut failures =
            settings.keep_since().map(|cutoff| retention::enforce_age(&host, cutoff)).unwrap_or_default();
        failures.extend(retention::enforce(&host, settings.keep_size));
        failures
    });
    for failure in bound.await.unwrap_or_default() {
        tracing::warn!("{failure}");
    }
}

/// Waits for the bundle to report that it locked the bottle.
struct LockOutWatch {
    slug: Slug,
    /// Whether an earlier keeper already notified the user.
    reported: bool,
    decisions: Decisions,
    notifier: Notifier,
}

impl LockOutWatch {
    /// Waits until the bottle is locked, notifies the user if no earlier keeper did, and sends a notice to each client.
    async fn run(self, bundle: Channel, shared: Arc<Shared>) {
        let Ok(mut stream) = bundle.open(&BundleRequest::LockOut).await else { return };
        let Ok(BundleEvent::LockedOut(why)) = stream.receive().await else { return };
        shared.notices.send(Notice::LockedOut(lock_out_message(&self.slug, &why)));
        let of_parent = LockOut { parent: Some(self.slug.clone()), ..why.clone() };
        let (children, notices) = (shared.children.clone(), Arc::clone(&shared.notices));
        tokio::spawn(async move {
            for failed in children.change(ParentChange::Locked(of_parent)).await {
                notices.send(Notice::Warning(failed));
            }
        });
        if self.reported {
            return;
        }
        self.decisions.locked_out(why.clone()).await;
        self.notifier.send_lock_out(&self.slug, &why);
        let _ = shared.commands.send(Command::LockedOut(why)).await;
    }
}

/// The notice that a bottle is locked, with the reason and the next steps.
fn lock_out_message(slug: &Slug, why: &LockOut) -> String {
    let LockOut { hits, places, parent, .. } = why;
    let whose = match parent {
        Some(parent) => format!("because {parent}, which started it, is locked"),
        None => format!(
            "its agent sent {hits} different parts of credentials that it does not have, on their way to {}",
            places.join(", ")
        ),
    };
    let joint = if parent.is_some() { "," } else { ":" };
    format!(
        "{slug} is locked{joint} {whose}. All its traffic is denied. End this run with `bottle stop {slug}`; \
         `bottle resume {slug}` or a new start is not locked"
    )
}

/// Forwards the bundle's events to clients as notices, until the bundle ends.
async fn forward_bundle_events(bundle: Channel, guest: Channel, shared: Arc<Shared>) {
    let decisions = shared.decisions.clone();
    if let Ok(mut events) = bundle.open(&BundleRequest::Events).await {
        while let Ok(event) = events.receive::<BundleEvent>().await {
            match event {
                // The isolation probe sends a request to the host [`NEVER_LISTED`] to check that the proxy denies the
                // request.
                BundleEvent::Refused(refused) if refused.host == NEVER_LISTED => {}
                BundleEvent::Refused(refused) => shared.notices.send(Notice::Refused(refused)),
                BundleEvent::Spent { proposal } => decisions.spent(proposal).await,
                BundleEvent::Down { daemon } => {
                    shared.notices.send(Notice::ProxyDown(format!(
                        "the sidecar {daemon} ended; its traffic is blocked until the bottle ends"
                    )));
                    let _ = shared.commands.send(Command::ServiceDown(Some(daemon))).await;
                }
                BundleEvent::Lost { count } => shared.notices.send(Notice::Warning(format!(
                    "{count} proxy events were lost while no client was connected"
                ))),
                _ => {}
            }
        }
    }
    // If the engine ended, both channels close, and the keeper may connect again.
    if tokio::time::timeout(CLOSES_WITHIN, guest.closed()).await.is_ok() {
        return;
    }
    let sentence = "the sidecars ended; all traffic out of the bottle is blocked".to_owned();
    shared.notices.send(Notice::ProxyDown(sentence));
    let _ = shared.commands.send(Command::ServiceDown(None)).await;
}

/// Sends a warning for each service of the bottle that ends.
async fn warn_of_services(guest: Channel, shared: Arc<Shared>) {
    let Ok(mut ends) = guest.open(&GuestRequest::WatchServices).await else { return };
    while let Ok(GuestEvent::Service(service)) = ends.receive().await {
        let next = match service.state {
            ServiceState::Restarting => "it is started again",
            _ => "it is not started again",
        };
        let why = inert(&service.why.unwrap_or_default());
        shared.notices.send(Notice::Warning(format!("the service {}: {why}; {next}", service.name)));
    }
}
