//! Handles the events of a bottle and the commands of its clients, as [`super::transition`] decides.

use std::pin::pin;
use std::sync::PoisonError;
use std::time::Duration;

use bottle_backend::{Backend, RunState};
use bottle_channel::{Channel, Stream};
use bottle_host::budget::OnSpent;
use bottle_instance::Claim;
use bottle_instance::record::Mode;
use bottle_instance::snapshots::CommitOptions;
use tokio::signal::unix::Signal;
use tokio::sync::mpsc;

use super::transition::{self, Event, Making, Situation, Stage, Step};
use crate::activity;
use crate::jobs::{self, Job};
use crate::launch::agent_end;
use crate::protocol::{EndCause, EndChoice, KeeperEvent, Notice};
use crate::shared::{Attached, Command, Fact, Shared};
use crate::teardown::{self, End};

/// After the agent of an attached bottle has exited, the keeper waits for this time for a first client to attach and
/// read the agent's output. After this time, the keeper tears the bottle down.
const FIRST_ATTACH_TIMEOUT: Duration = Duration::from_secs(10);

/// The owner of a running bottle: its access to the bottle, and the sources of the events that it handles.
pub(super) struct Owner<'a> {
    backend: &'a dyn Backend,
    claim: &'a Claim,
    shared: &'a Shared,
    inbox: mpsc::Receiver<Command>,
    terminate: Signal,
    /// Whether a signal arrived earlier.
    interrupted: bool,
    guest: Channel,
    /// The running snapshot job. Only one snapshot job runs at a time.
    job: Option<Job<'a>>,
    /// The kind of `job`.
    making: Making,
    /// The running measurement of the bottle's size.
    measure: Option<Job<'a>>,
}

impl<'a> Owner<'a> {
    pub(super) fn new(
        backend: &'a dyn Backend,
        claim: &'a Claim,
        shared: &'a Shared,
        inbox: mpsc::Receiver<Command>,
        terminate: Signal,
        guest: Channel,
    ) -> Self {
        let making = Making::Commit;
        let interrupted = false;
        Self {
            backend,
            claim,
            shared,
            inbox,
            terminate,
            interrupted,
            guest,
            job: None,
            making,
            measure: None,
        }
    }

    /// Makes the owner behave as if SIGTERM arrived.
    pub(super) fn interrupt(&mut self) {
        self.interrupted = true;
    }

    /// Returns the channel to pid 1.
    pub(super) fn guest(&self) -> &Channel {
        &self.guest
    }

    /// Replaces the channel to pid 1 after a reconnect.
    pub(super) fn reconnected(&mut self, guest: Channel) {
        self.guest = guest;
    }

    /// Stops receiving commands. Returns the channel to pid 1.
    pub(super) fn into_guest(self) -> Channel {
        self.guest
    }

    /// Handles events and commands until the bottle ends.
    pub(super) async fn run(&mut self, agent: &mut Stream) -> End {
        match self.serve(Stage::Runs, agent_end(agent)).await {
            Ok(exit) => transition::agent_ended(exit),
            Err(end) => end,
        }
    }

    /// Handles events and commands until `connected` is ready. The future `connected` reconnects to the bottle. Returns
    /// an error if an event or a command ends the bottle.
    pub(super) async fn until_connected<T>(&mut self, connected: impl Future<Output = T>) -> Result<T, End> {
        self.serve(Stage::Reconnects, connected).await
    }

    /// Handles events and commands until `awaited` is ready. Returns an error if an event or a command ends the bottle.
    async fn serve<T>(&mut self, stage: Stage, awaited: impl Future<Output = T>) -> Result<T, End> {
        let mut awaited = pin!(awaited);
        loop {
            let event = tokio::select! {
                // `awaited` is polled first, so that an exit of the agent is not lost if the channel to pid 1 closes at
                // the same time.
                biased;
                done = &mut awaited => return Ok(done),
                event = self.event(stage) => event,
            };
            if let Some(end) = self.handle(stage, event).await {
                return Err(end);
            }
        }
    }

    async fn event(&mut self, stage: Stage) -> Event {
        if std::mem::take(&mut self.interrupted) {
            return Event::Terminated;
        }
        tokio::select! {
            _ = self.guest.closed(), if stage.needs_guest() => Event::GuestClosed,
            _ = self.terminate.recv() => Event::Terminated,
            () = jobs::done(&mut self.job) => Event::JobDone,
            () = jobs::done(&mut self.measure) => Event::JobDone,
            Some(command) = self.inbox.recv() => Event::Sent(command),
        }
    }

    /// Handles an event as [`super::transition`] decides. If the event ends the bottle, returns how the bottle ends.
    async fn handle(&mut self, stage: Stage, event: Event) -> Option<End> {
        let step = self.situation(stage).next(&event);
        match (step, event) {
            (_, Event::Sent(Command::Stop { events, .. })) => self.report_job(&events).await,
            (Step::End(_), Event::Sent(Command::Enforce { policy, why })) => {
                let text = format!("{} ends ({policy}): {why}", self.claim.record().slug);
                self.shared.notices.send(Notice::Warning(text));
            }
            (
                Step::Refuse(why),
                Event::Sent(Command::Commit { events, .. } | Command::RemoveSnapshot { events, .. }),
            ) => {
                let _ = events.send(KeeperEvent::Refused(why.to_owned())).await;
            }
            (Step::CarryOut, Event::Sent(command)) => self.carry_out(command).await,
            _ => {}
        }
        match step {
            Step::End(end) => Some(end),
            Step::CarryOut | Step::Refuse(_) | Step::Nothing => None,
        }
    }

    fn situation(&self, stage: Stage) -> Situation {
        let job = self.job.is_some().then_some(self.making);
        Situation { stage, mode: self.claim.record().mode, job }
    }

    async fn carry_out(&mut self, command: Command) {
        match command {
            Command::Commit { options, events } => {
                self.job = Some(jobs::commit(self.backend, self.claim, options, events));
                self.making = Making::Commit;
            }
            Command::RemoveSnapshot { which, events } => {
                self.job = Some(jobs::remove_snapshot(self.backend, self.claim, which, events));
                self.making = Making::Removal;
            }
            Command::FindDelay { events } => {
                let commits = self.job.is_some() && self.making == Making::Commit;
                let answer = match commits && self.backend.capabilities().commit_pauses {
                    true => warning(format!(
                        "a snapshot of {} is being saved, which pauses its programs; the command runs afterwards",
                        self.claim.record().slug
                    )),
                    false => KeeperEvent::Done,
                };
                let _ = events.send(answer).await;
            }
            Command::Measure => self.measure(),
            Command::FindPause { answer } => {
                // While a snapshot job runs, the container engine may have paused the bottle. The client must then wait
                // and needs no hint.
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
            Command::Record { fact, recorded } => {
                let detaches = fact == Fact::Detached;
                let written = self.claim.update(|record| fact.write(record));
                match &written {
                    Ok(()) if detaches => {
                        self.shared.detached.send_replace(true);
                    }
                    Ok(()) => {}
                    Err(error) => tracing::warn!("cannot write the bottle's record: {error}"),
                }
                let _ = recorded.send(written);
            }
            Command::Enforce { .. } | Command::Stop { .. } | Command::FirstGone => {}
        }
    }

    /// Starts a measurement of the bottle's size, unless a measurement is running or the last measurement is recent.
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

    /// If the bottle ends because a budget freezes it, saves a snapshot. If the snapshot fails, the bottle's files are
    /// kept, as after every stop.
    pub(super) async fn save_if_frozen(&mut self, cause: EndCause) {
        if cause != EndCause::Budget(OnSpent::Freeze) {
            return;
        }
        let (events, mut results) = mpsc::channel(16);
        self.carry_out(Command::Commit { options: CommitOptions::default(), events }).await;
        self.finish_job().await;
        while let Ok(event) = results.try_recv() {
            if let KeeperEvent::Failed(failure) = event {
                let slug = self.claim.record().slug;
                let text = format!("cannot save a snapshot of {slug}: {}", failure.message);
                self.shared.notices.send(Notice::Warning(text));
            }
        }
    }

    /// Waits until the running snapshot job has finished, because the job needs the bottle's files.
    pub(super) async fn finish_job(&mut self) {
        while self.job.is_some() {
            let event = self.event(Stage::Ends).await;
            self.handle(Stage::Ends, event).await;
        }
    }

    /// If a snapshot job is running, sends a notice that the bottle ends after the job.
    async fn report_job(&self, events: &mpsc::Sender<KeeperEvent>) {
        if self.job.is_some() {
            let slug = self.claim.record().slug;
            let being = match self.making {
                Making::Commit => "saved",
                Making::Removal => "removed",
            };
            let text = format!("a snapshot of {slug} is being {being}; the bottle ends afterwards");
            let _ = events.send(warning(text)).await;
        }
    }

    /// After the agent has exited, waits until clients have read the agent's output, and then for the user's decision
    /// about unsaved work. `first` is the first client's connection. A stop of the bottle ends both waits, and the
    /// unsaved work is kept.
    pub(super) async fn after_exit(&mut self, first: Option<&Channel>) -> EndChoice {
        let read = match first {
            Some(first) => self.wait_for_readers(first).await,
            None => Ok(()),
        };
        let choice = match read {
            Ok(()) => self.ask_about_work().await,
            Err(_) => EndChoice::Keep,
        };
        // A client may have started a snapshot job during the waits.
        self.finish_job().await;
        choice
    }

    /// If a client offered to decide about unsaved work, asks this client while it is connected.
    async fn ask_about_work(&mut self) -> EndChoice {
        let offer = self.shared.offer.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut offer) = offer else { return EndChoice::Keep };
        let unsaved = teardown::unsaved(self.backend, self.claim, &self.guest).await;
        let asks = unsaved.is_any();
        if offer.message(&KeeperEvent::Work(unsaved)).await.is_err() || !asks {
            let _ = offer.end().await;
            return EndChoice::Keep;
        }
        match self.serve(Stage::Waits, offer.receive()).await {
            Ok(Ok(choice)) => choice,
            Ok(Err(_)) | Err(_) => EndChoice::Keep,
        }
    }

    /// Waits until clients have read the output of the exited agent, which the guest still buffers. Returns an error if
    /// an event ends the wait.
    async fn wait_for_readers(&mut self, first: &Channel) -> Result<(), End> {
        let mut attached = self.shared.attached.subscribe();
        let expected = self.claim.record().mode == Mode::Attached;
        let read = async {
            if expected {
                let first_attach = attached.wait_for(|a: &Attached| a.ever);
                let _ = tokio::time::timeout(FIRST_ATTACH_TIMEOUT, first_attach).await;
            }
            let _ = attached.wait_for(|a| a.now == 0).await;
        };
        let client_lost = async {
            first.closed().await;
            if !expected {
                std::future::pending::<()>().await;
            }
        };
        let done = async {
            tokio::select! {
                () = read => {}
                () = client_lost => {}
            }
        };
        self.serve(Stage::Waits, done).await
    }
}

fn warning(text: String) -> KeeperEvent {
    KeeperEvent::Notice(Notice::Warning(text))
}
