//! Grants the proxy leases on budgets, and enforces budgets that are spent.
//!
//! ```text
//! proxy ─ lease request ─► enforcer ─► ledger ─► granted, unlimited ─► proxy
//!                             ▲            └─ too little left ─► policy
//!                             │  pause: the request waits, pid 1 pauses the bottle, the user is asked
//!           top-up, answer ───┘  cutoff: the request is denied · freeze: snapshot, stop · kill: end
//! ```
//! A request waits at the proxy, of which no byte has left. It goes on when the ledger grants its tokens, no matter which
//! process raised the budget. All state of this module can be lost: a new keeper gets the same requests from the proxy
//! again, and finds an order of the user in the bottle's record.
//!
//! - `account`: the budgets of the bottle, and the ledger · `pending`: the requests that wait, and the cause
//! - `question`: what the user is asked · `order`: what the user ordered

mod account;
pub(super) mod order;
mod pending;
mod question;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bottle_channel::{Channel, StreamSender};
use bottle_contract::decide::Reason;
use bottle_contract::queue::{Answer, Status};
use bottle_contract::session::bundle::BundleRequest;
use bottle_contract::session::guest::{GuestEvent, GuestRequest};
use bottle_contract::session::lease::{BudgetKey, LeaseAnswer, LeaseRequest};
use bottle_host::budget::{Policy, Window};
use bottle_host::causes;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use self::order::Order;
use super::protocol::Notice;
use super::shared::{Command, Fact, Shared};
use crate::ledger::Shortage;
pub(super) use account::{Budgets, end_leases};
use account::{LeaseOutcome, Rules};
use pending::{PendingRequest, Step};

/// How often requests that wait are tried again. A top-up by another process takes effect after this time.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// How long a request waits at least for tokens that other requests have reserved.
const SHORTAGE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a request waits at least for tokens of a limit for each minute.
const MINUTE_TIMEOUT: Duration = Duration::from_secs(90);

/// How long a request waits for a ledger that cannot be used. After that, it is denied.
const LEDGER_TIMEOUT: Duration = Duration::from_secs(30);

/// Time limit for pid 1 to pause or continue the bottle.
const PAUSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves the proxy's requests for leases until the bundle ends.
pub(super) async fn serve(bundle: Channel, guest: Channel, shared: Arc<Shared>, budgets: Budgets) {
    let Ok(stream) = bundle.open(&BundleRequest::Leases).await else { return };
    let (proxy, mut requests) = stream.split();
    let (answers, mut answered) = mpsc::channel(4);
    let mut order = shared.order.subscribe();
    let mut enforcer = Enforcer {
        paused: budgets.was_held,
        proxy,
        guest,
        shared,
        budgets,
        pending: BTreeMap::new(),
        refused: BTreeSet::new(),
        question: None,
        answers,
        ledger_warned: false,
        minute_warned: false,
    };
    let ordered = *order.borrow_and_update();
    if ordered == Order::None {
        // A bottle that an earlier keeper paused stays paused until the proxy has had time to send its requests again.
        enforcer.shared.applied.send_replace(ordered);
    } else {
        enforcer.apply_order(ordered).await;
    }
    let mut retry = tokio::time::interval_at(tokio::time::Instant::now() + RETRY_INTERVAL, RETRY_INTERVAL);
    retry.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            request = requests.message::<LeaseRequest>() => match request {
                Ok(request) => enforcer.request(request).await,
                Err(_) => return,
            },
            changed = order.changed() => {
                if changed.is_err() {
                    return;
                }
                let order = *order.borrow_and_update();
                enforcer.apply_order(order).await;
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
    /// The requests without an answer.
    pending: BTreeMap<BudgetKey, PendingRequest>,
    /// The keys whose budgets the user did not raise. Their requests are denied at once until the ledger grants one.
    refused: BTreeSet<BudgetKey>,
    /// Whether the bottle is paused.
    paused: bool,
    /// The question that waits for the user.
    question: Option<JoinHandle<()>>,
    answers: mpsc::Sender<(Shortage, Answer)>,
    /// Whether the user knows that the ledger cannot be used.
    ledger_warned: bool,
    /// Whether the user knows that requests wait for a limit for each minute.
    minute_warned: bool,
}

impl Drop for Enforcer {
    fn drop(&mut self) {
        self.withdraw_question();
    }
}

impl Enforcer {
    /// Whether a request waits, or the bottle is paused and may have no request any more for which it must be.
    fn needs_retry(&self) -> bool {
        !self.pending.is_empty() || (self.paused && *self.shared.order.borrow() != Order::Pause)
    }

    async fn request(&mut self, request: LeaseRequest) {
        if request.needed.is_none() {
            if let Err(error) = self.budgets.take_back(&request).await {
                tracing::warn!("cannot record unused tokens: {}", causes::one_line(&error));
            }
            return;
        }
        let key = request.key.clone();
        self.pending.insert(key.clone(), PendingRequest::new(request, Instant::now()));
        self.try_key(&key).await;
        self.settle_pause().await;
    }

    /// Tries all requests that wait again.
    async fn retry(&mut self) {
        let keys: Vec<BudgetKey> = self.pending.keys().cloned().collect();
        for key in keys {
            self.try_key(&key).await;
        }
        self.settle_pause().await;
    }

    /// Asks the ledger for the tokens of a request that waits, and answers the request if possible.
    async fn try_key(&mut self, key: &BudgetKey) {
        let Some(request) = self.pending.get(key).map(|pending| pending.request.clone()) else { return };
        let order = *self.shared.order.borrow();
        match order {
            Order::Pause => return,
            Order::Cutoff => {
                let why = "the user stopped them with `bottle budget stop`".to_owned();
                return self.deny(key, Reason::BudgetSpent, why).await;
            }
            Order::None => {}
        }
        let outcome = self.budgets.lease(&request).await;
        let now = Instant::now();
        match outcome {
            Ok(LeaseOutcome::Unlimited) => {
                self.answer(LeaseAnswer::Unlimited { key: key.clone() }, key).await
            }
            Ok(LeaseOutcome::Granted(granted)) => {
                self.refused.remove(key);
                self.answer(LeaseAnswer::Granted { key: key.clone(), granted }, key).await;
            }
            Ok(LeaseOutcome::Short(shortage, rules)) => self.short(key, shortage, &rules, now).await,
            Err(error) => self.unknown(key, &causes::one_line(&error), now).await,
        }
    }

    /// The ledger cannot be used. The request is denied if that does not end soon.
    async fn unknown(&mut self, key: &BudgetKey, why: &str, now: Instant) {
        if !std::mem::replace(&mut self.ledger_warned, true) {
            self.warn(format!("requests to models wait, because their budget is unknown: {why}"));
        }
        let late = self.pending.get_mut(key).is_some_and(|pending| pending.is_late(now, LEDGER_TIMEOUT));
        if late {
            self.deny(key, Reason::BudgetUnknown, "the ledger of this machine cannot be used".to_owned())
                .await;
        }
    }

    /// A limit has too little left for the request.
    async fn short(&mut self, key: &BudgetKey, shortage: Shortage, rules: &Rules, now: Instant) {
        let refused = self.refused.contains(key);
        let Some(pending) = self.pending.get_mut(key) else { return };
        match pending.step(&shortage, rules, refused, now) {
            Step::Wait => self.explain_wait(&shortage),
            Step::Ask(for_at_most) => self.ask(&shortage, for_at_most).await,
            Step::Deny => {
                let why = question::denial(&shortage);
                if self.refused.insert(key.clone()) {
                    self.record(&shortage, Policy::Cutoff, "requests to models are denied").await;
                    self.warn(format!("{}: {why}", self.budgets.slug));
                }
                self.deny(key, Reason::BudgetSpent, why).await;
            }
            Step::End(policy) => self.end(&shortage, policy).await,
        }
    }

    /// Says once why requests take up to a minute.
    fn explain_wait(&mut self, shortage: &Shortage) {
        if shortage.declared.limit.window == Window::Minute
            && !std::mem::replace(&mut self.minute_warned, true)
        {
            let why = question::cause(shortage);
            self.warn(format!("{}: requests to models wait up to a minute: {why}", self.budgets.slug));
        }
    }

    /// Pauses the bottle and asks the user, unless a question waits already.
    async fn ask(&mut self, shortage: &Shortage, for_at_most: Duration) {
        if self.question.is_some() {
            return;
        }
        self.pause(&question::cause(shortage)).await;
        self.record(shortage, Policy::Pause, "the user was asked").await;
        let (asker, answers, shortage) = (self.shared.asker.clone(), self.answers.clone(), shortage.clone());
        let asked = question::question(&shortage, for_at_most);
        self.question = Some(tokio::spawn(async move {
            let answer = asker.ask(asked).await;
            // The receiver ends with the connection; the question is then asked again by the next one.
            let _ = answers.send((shortage, answer)).await;
        }));
    }

    /// The user answered, or did not answer in time.
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
            self.pending.values_mut().for_each(|pending| pending.refuse(&shortage));
        }
        self.retry().await;
    }

    /// Saves and stops the bottle, or ends it. The requests wait until then.
    async fn end(&mut self, shortage: &Shortage, policy: Policy) {
        self.record(shortage, policy, "the bottle ends").await;
        let why = question::cause(shortage);
        let _ = self.shared.commands.send(Command::Enforce { policy, why }).await;
    }

    async fn apply_order(&mut self, order: Order) {
        if order != Order::None {
            // The proxy asks before each further request.
            let _ = self.proxy.message(&LeaseAnswer::Revoked).await;
        }
        if order == Order::Pause {
            let why = format!("by the user; `bottle budget continue {}` lets it go on", self.budgets.slug);
            self.pause(&why).await;
        }
        self.retry().await;
        self.shared.applied.send_replace(order);
    }

    /// Continues the bottle, and withdraws the question, if no request waits for the user any more.
    async fn settle_pause(&mut self) {
        let waits = self.pending.values().any(PendingRequest::waits_for_user);
        if !waits {
            self.withdraw_question();
        }
        let ordered = *self.shared.order.borrow();
        if self.paused && !waits && ordered != Order::Pause {
            self.set_paused(false).await;
            self.record_hold(None).await;
        }
    }

    /// Records why the bottle is paused, for `bottle list` and for a later keeper.
    async fn record_hold(&self, why: Option<String>) {
        let _ = self.shared.record(Fact::BudgetHold(why)).await;
    }

    async fn pause(&mut self, why: &str) {
        // An earlier keeper may have paused the bottle. Another pause would stop commands that started since, such as the
        // one for which this keeper adopts the bottle.
        if !self.paused {
            self.set_paused(true).await;
        }
        self.record_hold(Some(why.to_owned())).await;
        self.warn(format!("{} is paused: {why}", self.budgets.slug));
    }

    /// Pauses or continues all processes of the bottle. If pid 1 does not answer, its processes run on, and their
    /// requests wait.
    async fn set_paused(&mut self, pause: bool) {
        self.paused = pause;
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
        if let Some(question) = self.question.take() {
            question.abort();
        }
    }

    async fn deny(&mut self, key: &BudgetKey, reason: Reason, why: String) {
        self.answer(LeaseAnswer::Denied { key: key.clone(), reason, why }, key).await;
    }

    async fn answer(&mut self, answer: LeaseAnswer, key: &BudgetKey) {
        self.pending.remove(key);
        // If the connection is closed, the proxy asks the next keeper.
        let _ = self.proxy.message(&answer).await;
    }

    /// Records an enforcement in the ledger and in the audit log.
    async fn record(&self, shortage: &Shortage, policy: Policy, result: &str) {
        if let Err(error) = self.budgets.record(shortage, policy.name(), result).await {
            tracing::warn!("cannot record the enforcement of a budget: {error:#}");
        }
    }

    fn warn(&self, text: String) {
        self.shared.notices.send(Notice::Warning(text));
    }
}

impl Rules {
    /// How long a request waits for the user. `None` if no user can be asked.
    fn pause(&self) -> Option<Duration> {
        self.can_ask.then_some(self.pause).filter(|pause| !pause.is_zero())
    }
}
