//! Answers the requests of a running bottle's clients.

use std::io;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bottle_channel::{Channel, Request, Stream, splice};
use bottle_instance::record::ApprovedCommand;
use bottle_instance::snapshots::{CommitOptions, Removal};
use bottle_protocol::queue::{Answer, Question, Scope, Status};
use bottle_protocol::session::guest::{Attach, Failure, FailureKind, GuestEvent, GuestRequest};
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use super::activity;
use super::budget::stopped::Effect;
use super::listener::Handler;
use super::permission::Keeper;
use super::protocol::{BudgetChange, KeeperEvent, KeeperRequest, ParentChange};
use super::shared::{Attached, Command, Fact, Shared, send_last};
use super::watcher;

/// How long the keeper waits for an answer of pid 1. After this time, the keeper asks the backend whether the bottle is
/// paused.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);

/// How long a client waits at most until its order to stop or allow requests to models has taken effect.
const CHANGE_APPLIED_WITHIN: Duration = Duration::from_secs(10);

/// The message for a request that is refused because the bottle is ending.
const ENDING: &str = "the bottle is ending";

impl Handler for Shared {
    fn connected(&self) -> &watch::Sender<usize> {
        &self.connected
    }

    fn keeper(&self) -> Keeper {
        Keeper::Running
    }

    async fn answer(self: Arc<Self>, request: Request, parsed: KeeperRequest) {
        answer(request, parsed, self).await;
    }
}

async fn answer(request: Request, parsed: KeeperRequest, shared: Arc<Shared>) {
    match parsed {
        KeeperRequest::Guest(inner) => forward(request, &inner, &shared).await,
        KeeperRequest::Watch => watcher::serve(request, &shared).await,
        KeeperRequest::Notices => send_notices(request.accept(), &shared).await,
        KeeperRequest::Stop { grace_ms } => {
            let stream = request.accept();
            let (events, mut notices) = mpsc::channel(1);
            let _ = shared.commands.send(Command::Stop { grace_ms, events }).await;
            // The owner task drops the sender immediately, unless the bottle is already being torn down.
            if let Some(notice) = notices.recv().await {
                let _ = stream.message(&notice).await;
            }
            send_end(&stream, &shared).await;
        }
        KeeperRequest::FindDelay => {
            run_command(request, &shared, |events| Command::FindDelay { events }).await
        }
        KeeperRequest::Activity => {
            let stream = request.accept();
            let report = activity::report(&shared).await;
            send_last(&stream, &KeeperEvent::Activity(report)).await;
        }
        KeeperRequest::Detach => {
            let stream = request.accept();
            // The detachment is recorded before the answer, so that the client's next command finds a detached bottle.
            send_last(&stream, &answer_to(shared.record(Fact::Detached).await, KeeperEvent::Detached)).await;
        }
        KeeperRequest::Commit => {
            let options = CommitOptions::default();
            run_command(request, &shared, |events| Command::Commit { options, events }).await;
        }
        KeeperRequest::CommitAs(options) => {
            run_command(request, &shared, |events| Command::Commit { options, events }).await;
        }
        KeeperRequest::RemoveSnapshot => {
            let which = Removal::All;
            run_command(request, &shared, |events| Command::RemoveSnapshot { which, events }).await;
        }
        KeeperRequest::RemoveOneSnapshot { name } => {
            let which = Removal::One(name);
            run_command(request, &shared, |events| Command::RemoveSnapshot { which, events }).await;
        }
        KeeperRequest::Pulled { at } => {
            let stream = request.accept();
            send_last(&stream, &answer_to(shared.record(Fact::Pulled(at)).await, KeeperEvent::Done)).await;
        }
        KeeperRequest::Answer(response) => {
            let stream = request.accept();
            let event = match shared.asker.answer(*response).await {
                Ok(results) => KeeperEvent::Answered(results),
                Err(error) => KeeperEvent::Refused(format!("{:#}", anyhow::Error::new(error))),
            };
            send_last(&stream, &event).await;
        }
        KeeperRequest::ChangeRoutes(change) => {
            let stream = request.accept();
            let event = match shared.decisions.change_routes(*change).await {
                Ok((mut report, of_parent)) => {
                    if let Some(change) = of_parent {
                        report.not_followed = shared.children.change(change).await;
                    }
                    KeeperEvent::RoutesChanged(Box::new(report))
                }
                Err(error) => KeeperEvent::Refused(format!("{error:#}")),
            };
            send_last(&stream, &event).await;
        }
        KeeperRequest::ReplaceSecrets(new) => {
            let event = match shared.replace_secrets(*new).await {
                Ok(()) => KeeperEvent::Done,
                Err(error) => KeeperEvent::Refused(format!("{error:#}")),
            };
            send_last(&request.accept(), &event).await;
        }
        KeeperRequest::Ask(question) => {
            let event = match shared.asker.propose(*question).await {
                Ok(answer) => {
                    // The answer's future only has to run to completion. Its result is not needed, because the proxy
                    // applies the answer.
                    tokio::spawn(answer);
                    KeeperEvent::Done
                }
                Err(why) => {
                    KeeperEvent::Refused(format!("cannot add the proposal to the supervise queue: {why}"))
                }
            };
            send_last(&request.accept(), &event).await;
        }
        KeeperRequest::Permit { question, approves } => {
            let stream = request.accept();
            tokio::select! {
                answer = shared.permit(*question, approves) => {
                    send_last(&stream, &KeeperEvent::Decision(answer)).await;
                }
                () = stream.closed() => {}
            }
        }
        KeeperRequest::Budget { order, by } => {
            let children = shared.children.change(ParentChange::Budget { order, by: by.clone() });
            let own = shared.change_budget(order, &by);
            let event = match tokio::join!(children, own).0.as_slice() {
                [] => KeeperEvent::Done,
                failed => KeeperEvent::Refused(format!("it was carried out, but {}", failed.join("; "))),
            };
            send_last(&request.accept(), &event).await;
        }
        KeeperRequest::OfParent(change) => {
            let stream = request.accept();
            let event = match shared.follow_parent(*change).await {
                Ok(()) => KeeperEvent::Done,
                Err(error) => KeeperEvent::Refused(format!("{error:#}")),
            };
            send_last(&stream, &event).await;
        }
        KeeperRequest::Offer => {
            *shared.offer.lock().unwrap_or_else(PoisonError::into_inner) = Some(request.accept());
        }
        // [`Keeper::refusal`] has already refused these requests.
        KeeperRequest::Launch(_) | KeeperRequest::Adopt { .. } | KeeperRequest::Open { .. } => {}
    }
}

/// Returns the answer to a request that had to be recorded: `done` if it was recorded, and otherwise the reason why it
/// was not.
pub(super) fn answer_to(recorded: Option<io::Result<()>>, done: KeeperEvent) -> KeeperEvent {
    match recorded {
        Some(Ok(())) => done,
        Some(Err(error)) => KeeperEvent::Refused(format!("cannot write the bottle's record: {error}")),
        None => KeeperEvent::Refused(ENDING.to_owned()),
    }
}

/// Sends a client's command to the task that owns the bottle, and forwards the events of this task to the client.
async fn run_command(
    request: Request,
    shared: &Shared,
    command: impl FnOnce(mpsc::Sender<KeeperEvent>) -> Command,
) {
    let stream = request.accept();
    let (sender, mut events) = mpsc::channel(16);
    let _ = shared.commands.send(command(sender)).await;
    let mut last = None;
    while let Some(event) = events.recv().await {
        if stream.message(&event).await.is_err() {
            // The command continues without its client.
            return;
        }
        last = Some(event);
    }
    if matches!(last, None | Some(KeeperEvent::Copied(_))) {
        let _ = stream.message(&KeeperEvent::Refused(ENDING.to_owned())).await;
    }
    let _ = stream.end().await;
}

/// Forwards a request to the guest, unless the bottle is paused.
async fn forward(request: Request, inner: &GuestRequest, shared: &Shared) {
    let guest = shared.guest().await;
    if let Some(hint) = shared.pause(&guest).await {
        let message = format!("the bottle is paused; {hint}");
        let failure = GuestEvent::Failed(Failure { kind: FailureKind::BadState, message });
        let stream = request.accept();
        let _ = stream.message(&failure).await;
        let _ = stream.end().await;
        return;
    }
    if let GuestRequest::Attach(Attach { process: None, .. }) = inner {
        shared.attached.send_modify(|a| *a = Attached { now: a.now + 1, ever: true });
        connect(request, inner, &guest).await;
        shared.attached.send_modify(|a| a.now -= 1);
    } else {
        connect(request, inner, &guest).await;
    }
}

impl Shared {
    /// Asks the user to approve a command. An approval that is valid for the whole run is recorded before the answer is
    /// sent.
    async fn permit(&self, question: Question, approves: Vec<ApprovedCommand>) -> Answer {
        let answer = self.asker.ask(question).await;
        if let Answer::Decided(response) = &answer
            && response.status == Status::Approved
            && response.scope != Scope::Once
        {
            let _ = self.record(Fact::ApprovedCommands(approves)).await;
        }
        answer
    }

    /// Applies a change of the parent (the bottle that started this bottle) to this bottle.
    async fn follow_parent(&self, change: ParentChange) -> anyhow::Result<()> {
        match change {
            ParentChange::Routes { edit, before, after, by } => {
                self.decisions.follow(&before, &after, edit, &by).await
            }
            ParentChange::Budget { order, by } => {
                self.change_budget(order, &by).await;
                Ok(())
            }
            ParentChange::Locked(why) => self.decisions.lock(why).await,
        }
    }

    /// Applies an order of the user to stop or allow requests to models. Records the order in the bottle's record. For
    /// an order to freeze or kill the bottle, sends the owner task the command to end the bottle.
    async fn change_budget(&self, change: BudgetChange, by: &str) {
        self.decisions.budget_changed(by, change).await;
        let (stopped, policy) = match Effect::of(change) {
            Effect::Stopped(stopped, policy) => (stopped, policy),
            Effect::Ends(policy) => {
                let why = "the user ordered it with `bottle budget stop`".to_owned();
                let _ = self.commands.send(Command::Enforce { policy, why }).await;
                return;
            }
        };
        // The change is recorded, so that a keeper that adopts the bottle applies it again.
        let _ = self.record(Fact::Stopped(policy)).await;
        self.stopped.send_replace(stopped);
        let mut applied = self.applied.subscribe();
        let is_applied = applied.wait_for(|applied| *applied == stopped);
        // A timeout is ignored: if the sidecars do not answer, all traffic of the bottle is blocked anyway.
        let _ = tokio::time::timeout(CHANGE_APPLIED_WITHIN, is_applied).await;
    }

    /// Returns the channel to the guest. Waits while the keeper reconnects to the guest.
    async fn guest(&self) -> Channel {
        let mut guest = self.guest.subscribe();
        // `self` owns the sender of the watch channel, so `wait_for` returns only when there is a channel to the guest.
        let connected = guest.wait_for(Option::is_some).await.ok().and_then(|guest| guest.clone());
        match connected {
            Some(guest) => guest,
            None => std::future::pending().await,
        }
    }

    /// If pid 1 does not answer because the bottle was paused by something other than `bottle`, returns a hint how the
    /// user can continue the bottle.
    async fn pause(&self, guest: &Channel) -> Option<String> {
        let answers = async {
            let mut stream = guest.open(&GuestRequest::Status).await.ok()?;
            stream.next().await
        };
        if tokio::time::timeout(ANSWERS_WITHIN, answers).await.is_ok() {
            return None;
        }
        let (answer, hint) = oneshot::channel();
        let _ = self.commands.send(Command::FindPause { answer }).await;
        hint.await.ok().flatten()
    }
}

/// Forwards a request to the guest.
pub(super) async fn connect(request: Request, inner: &GuestRequest, guest: &Channel) {
    match guest.open(inner).await {
        Ok(stream) => splice(request.accept(), stream).await,
        Err(error) => request.refuse(&format!("cannot reach the bottle's guest: {error}")).await,
    }
}

/// Sends buffered and new notices to a client. When the bottle has ended, sends the event about its end.
async fn send_notices(stream: Stream, shared: &Shared) {
    let (buffered, mut receiver) = shared.notices.subscribe();
    let mut ended = shared.ended.subscribe();
    for notice in buffered {
        if stream.message(&KeeperEvent::Notice(notice)).await.is_err() {
            return;
        }
    }
    loop {
        let notice = tokio::select! {
            biased;
            notice = receiver.recv() => notice,
            _ = ended.wait_for(Option::is_some) => break,
        };
        let sent = match notice {
            Ok(notice) => stream.message(&KeeperEvent::Notice(notice)).await,
            // A slow client misses the oldest notices.
            Err(broadcast::error::RecvError::Lagged(_)) => continue,
            Err(broadcast::error::RecvError::Closed) => break,
        };
        if sent.is_err() {
            return;
        }
    }
    send_end(&stream, shared).await;
}

/// Waits until the bottle has ended, and sends the client how the bottle ended.
async fn send_end(stream: &Stream, shared: &Shared) {
    let mut ended = shared.ended.subscribe();
    let ended = ended.wait_for(Option::is_some).await.ok().and_then(|ended| ended.clone());
    if let Some(ended) = ended {
        send_last(stream, &KeeperEvent::Ended(ended)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request that cannot be recorded, for example on a full disk, is refused and must not end the bottle.
    #[test]
    fn an_answer_says_whether_the_request_is_recorded() {
        let failed = io::Error::from(io::ErrorKind::StorageFull);
        let refused = |why: &str| KeeperEvent::Refused(why.to_owned());
        for (recorded, answer) in [
            (Some(Ok(())), KeeperEvent::Detached),
            (Some(Err(failed)), refused("cannot write the bottle's record: no storage space")),
            (None, refused(ENDING)),
        ] {
            assert_eq!(answer_to(recorded, KeeperEvent::Detached), answer);
        }
    }
}
