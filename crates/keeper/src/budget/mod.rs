//! Grants the proxy leases on budgets, and enforces budgets that are spent.
//!
//! ```text
//! proxy ─ lease request ─► enforcer ─► ledger ─► granted, unlimited ─► proxy
//!                             ▲            └─ too little left ─► policy
//!                             │  pause: the request waits, pid 1 pauses the bottle, the user is asked
//!           top-up, answer ───┘  cutoff: the request is denied · freeze: snapshot, stop · kill: end
//! ```
//! A request waits at the proxy, which has not sent a byte of the request upstream. When the ledger grants the tokens
//! of the request, the proxy sends it, no matter which process raised the budget. All state of this module can be lost:
//! the proxy sends the same requests to a new keeper again, and the bottle's record stores how the user stopped them.
//!
//! - `budgets`: the budgets of the bottle, and the ledger · `question`: the texts about a spent budget
//! - `requests`: the waiting requests, and the decisions about them · `pending`: one waiting request, and why it waits
//! - `stopped`: how the user stopped requests

mod budgets;
mod pending;
mod question;
mod requests;
pub(super) mod stopped;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bottle_channel::{Channel, StreamSender};
use bottle_host::budget::OnSpent;
use bottle_host::causes;
use bottle_protocol::queue::{Answer, Status};
use bottle_protocol::session::bundle::BundleRequest;
use bottle_protocol::session::guest::{GuestEvent, GuestRequest};
use bottle_protocol::session::lease::{BudgetKey, LeaseAnswer, LeaseRequest};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::protocol::Notice;
use super::shared::{Command, Fact, Shared};
use crate::ledger::Shortage;
use budgets::OnShortage;
pub(super) use budgets::{Budgets, end_leases};
use requests::{Action, Before, Requests};
use stopped::Stopped;

/// The interval at which the enforcer asks the ledger again for waiting requests. A top-up by another process takes
/// effect within this time.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// How long pid 1 may take to pause or continue the bottle.
const PAUSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves the proxy's requests for leases until the bundle ends.
pub(super) async fn serve(bundle: Channel, guest: Channel, shared: Arc<Shared>, budgets: Budgets) {
    let Ok(stream) = bundle.open(&BundleRequest::Leases).await else { return };
    let (proxy, mut requests) = stream.split();
    let (answers, mut answered) = mpsc::channel(4);
    let mut changes = shared.stopped.subscribe();
    let mut enforcer = Enforcer {
        requests: Requests::new(budgets.slug.clone()),
        hold: budgets.hold.clone(),
        proxy,
        guest,
        shared,
        budgets,
        question: None,
        answers,
    };
    let stopped = *changes.borrow_and_update();
    if stopped == Stopped::No {
        // If an earlier keeper paused the bottle, the bottle stays paused until the first retry, so that the proxy has
        // time to send its requests again.
        enforcer.shared.applied.send_replace(stopped);
    } else {
        enforcer.apply(stopped).await;
    }
    let mut retry = tokio::time::interval_at(tokio::time::Instant::now() + RETRY_INTERVAL, RETRY_INTERVAL);
    retry.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            request = requests.message::<LeaseRequest>() => match request {
                Ok(request) => enforcer.request(request).await,
                Err(_) => return,
            },
            changed = changes.changed() => {
                if changed.is_err() {
                    return;
                }
                let stopped = *changes.borrow_and_update();
                enforcer.apply(stopped).await;
            }
            Some((shortage, answer)) = answered.recv() => enforcer.answered(shortage, answer).await,
            _ = retry.tick(), if enforcer.needs_retry() => enforcer.retry().await,
        }
    }
}

/// The state of one connection to the proxy.
struct Enforcer {
    proxy: StreamSender,
    guest: Channel,
    shared: Arc<Shared>,
    budgets: Budgets,
    requests: Requests,
    /// The reason for which the bottle is paused. `None` if the bottle is not paused.
    hold: Option<String>,
    /// The cause of the question that waits for the user's answer, and the task that waits for this answer.
    question: Option<(String, JoinHandle<()>)>,
    answers: mpsc::Sender<(Shortage, Answer)>,
}

impl Drop for Enforcer {
    fn drop(&mut self) {
        self.withdraw_question();
    }
}

impl Enforcer {
    /// Whether a retry is necessary: a request waits, or the bottle is paused for a request that may no longer exist.
    fn needs_retry(&self) -> bool {
        !self.requests.keys().is_empty() || (self.hold.is_some() && self.stopped() != Stopped::Paused)
    }

    /// Whether and how the user stopped the requests.
    fn stopped(&self) -> Stopped {
        *self.shared.stopped.borrow()
    }

    async fn request(&mut self, request: LeaseRequest) {
        if request.needed.is_none() {
            if let Err(error) = self.budgets.take_back(&request).await {
                tracing::warn!("cannot record unused tokens: {}", causes::one_line(&error));
            }
            return;
        }
        let key = request.key.clone();
        self.requests.add(request, Instant::now());
        self.try_key(&key).await;
        self.settle_pause().await;
    }

    /// Asks the ledger again for the tokens of all waiting requests.
    async fn retry(&mut self) {
        for key in self.requests.keys() {
            self.try_key(&key).await;
        }
        self.settle_pause().await;
    }

    /// Asks the ledger for the tokens of a waiting request, and answers the request if possible.
    async fn try_key(&mut self, key: &BudgetKey) {
        match self.requests.before(key, self.stopped()) {
            Before::Wait => {}
            Before::Answer(answer) => self.carry_out(Action::Answer(answer)).await,
            Before::Lease(request) => {
                let outcome = self.budgets.lease(&request).await.map_err(|error| causes::one_line(&error));
                for action in self.requests.after(key, outcome, Instant::now()) {
                    self.carry_out(action).await;
                }
            }
        }
    }

    async fn carry_out(&mut self, action: Action) {
        match action {
            // An error is ignored: if the connection is closed, the proxy sends the request to the next keeper.
            Action::Answer(answer) => {
                let _ = self.proxy.message(&answer).await;
            }
            Action::Warn(text) => self.warn(text),
            Action::Record(shortage, policy, result) => self.record(&shortage, policy, result).await,
            Action::Ask(shortage, for_at_most) => self.ask(&shortage, for_at_most).await,
            Action::End(shortage, policy) => {
                // Until the bottle ends, its requests get no answer.
                let why = question::cause(&shortage);
                let _ = self.shared.commands.send(Command::Enforce { policy, why }).await;
            }
        }
    }

    /// Pauses the bottle and asks the user, unless an earlier question still waits for an answer.
    async fn ask(&mut self, shortage: &Shortage, for_at_most: Duration) {
        if self.question.is_some() {
            return;
        }
        let cause = question::cause(shortage);
        self.hold_for(Some(cause.clone())).await;
        self.record(shortage, OnSpent::Pause, "the user was asked").await;
        let (asker, answers, shortage) = (self.shared.asker.clone(), self.answers.clone(), shortage.clone());
        let asked = question::question(&shortage, for_at_most);
        let task = tokio::spawn(async move {
            let answer = asker.ask(asked).await;
            // An error is ignored: the receiver is dropped when the connection to the proxy ends, and the next
            // connection asks the question again.
            let _ = answers.send((shortage, answer)).await;
        });
        self.question = Some((cause, task));
    }

    /// Handles the user's answer, or the expiry of the question.
    async fn answered(&mut self, shortage: Shortage, answer: Answer) {
        self.question = None;
        let raised = match answer {
            Answer::Decided(response) if response.status == Status::Approved => {
                let tokens = question::proposed_tokens(&shortage);
                match self.budgets.top_up(&shortage, tokens, response.decided_by).await {
                    Ok(()) => true,
                    Err(error) => {
                        self.warn(format!("cannot raise the budget: {}", causes::one_line(&error)));
                        false
                    }
                }
            }
            Answer::Decided(_) | Answer::Expired | Answer::Refused(_) => false,
        };
        if !raised {
            self.requests.refuse(&shortage);
        }
        self.retry().await;
    }

    /// Carries out the user's order to stop requests, or to allow them again.
    async fn apply(&mut self, stopped: Stopped) {
        if stopped != Stopped::No {
            // `Revoked` makes the proxy ask the keeper before each further request.
            let _ = self.proxy.message(&LeaseAnswer::Revoked).await;
        }
        // If the user pauses the requests, the bottle must be paused before the waiting requests are handled.
        if stopped == Stopped::Paused {
            self.settle_pause().await;
        }
        self.retry().await;
        self.shared.applied.send_replace(stopped);
    }

    /// Pauses or continues the bottle, as the user's order and the waiting requests require. Withdraws the question if
    /// no request waits for the user any more.
    async fn settle_pause(&mut self) {
        if !self.requests.wait_for_user() {
            self.withdraw_question();
        }
        self.hold_for(self.question.as_ref().map(|(cause, _)| cause.clone())).await;
    }

    /// Pauses or continues the bottle. `question` is the cause of the question that waits for the user's answer.
    async fn hold_for(&mut self, question: Option<String>) {
        let wanted = self.stopped().hold(&self.budgets.slug, question);
        if wanted == self.hold {
            return;
        }
        // A bottle that is already paused, perhaps by an earlier keeper, is not paused again. A second pause would also
        // stop commands that started after the first pause, such as the command for which this keeper adopts the
        // bottle.
        if wanted.is_some() != self.hold.is_some() {
            self.set_paused(wanted.is_some()).await;
        }
        if let Some(why) = &wanted {
            self.warn(format!("{} is paused: {why}", self.budgets.slug));
        }
        self.hold.clone_from(&wanted);
        // `bottle list` and a later keeper read the reason of the pause from the bottle's record.
        let _ = self.shared.record(Fact::BudgetHold(wanted)).await;
    }

    /// Pauses or continues all processes of the bottle. If pid 1 does not answer, the processes continue to run, but
    /// their requests still wait.
    async fn set_paused(&self, pause: bool) {
        let request = if pause { GuestRequest::Pause } else { GuestRequest::Continue };
        let done = async {
            let mut stream = self.guest.open(&request).await.ok()?;
            matches!(stream.receive().await, Ok(GuestEvent::Done)).then_some(())
        };
        if !matches!(tokio::time::timeout(PAUSE_TIMEOUT, done).await, Ok(Some(()))) {
            tracing::warn!(pause, "pid 1 did not pause or continue the bottle");
        }
    }

    fn withdraw_question(&mut self) {
        if let Some((_, task)) = self.question.take() {
            task.abort();
        }
    }

    /// Records in the ledger and in the audit log that a budget was enforced.
    async fn record(&self, shortage: &Shortage, policy: OnSpent, result: &str) {
        if let Err(error) = self.budgets.record(shortage, policy.name(), result).await {
            tracing::warn!("cannot record the enforcement of a budget: {error:#}");
        }
    }

    fn warn(&self, text: String) {
        self.shared.notices.send(Notice::Warning(text));
    }
}

impl OnShortage {
    /// Returns how long a request waits for the user's answer. Returns `None` if requests do not wait, for example
    /// because no user can be asked.
    fn pause(&self) -> Option<Duration> {
        self.can_ask.then_some(self.pause).filter(|pause| !pause.is_zero())
    }
}
