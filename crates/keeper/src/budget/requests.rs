//! The lease requests of one connection to the proxy, and the decisions about these requests. This module is pure: it
//! reads no clock and sends no messages.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use bottle_host::budget::{OnSpent, Window};
use bottle_policy::decide::Reason;
use bottle_policy::names::Slug;
use bottle_protocol::session::lease::{BudgetKey, LeaseAnswer, LeaseRequest};

use super::budgets::LeaseOutcome;
use super::pending::{PendingRequest, Step};
use super::question;
use super::stopped::Stopped;
use crate::ledger::Shortage;

/// How long a request waits while the ledger cannot be used. After this time, the request is denied.
const LEDGER_TIMEOUT: Duration = Duration::from_secs(30);

/// The requests without an answer, and the warnings that the user has already received about them.
#[derive(Debug)]
pub(super) struct Requests {
    slug: Slug,
    pending: BTreeMap<BudgetKey, PendingRequest>,
    /// The keys of budgets that the user was asked to raise and did not raise. Requests for such a key are denied
    /// immediately, until the ledger grants tokens to one of them.
    refused: BTreeSet<BudgetKey>,
    /// Whether the user was warned that the ledger cannot be used.
    ledger_warned: bool,
    /// Whether the user was warned that requests wait for a per-minute limit.
    minute_warned: bool,
}

/// The decision about a request before the keeper asks the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Before {
    /// Ask the ledger for this lease.
    Lease(LeaseRequest),
    /// Send this answer to the proxy.
    Answer(LeaseAnswer),
    /// Do nothing; the request waits.
    Wait,
}

/// An action that results from a decision about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    /// Send this answer to the proxy.
    Answer(LeaseAnswer),
    /// Send this warning to the user.
    Warn(String),
    /// Record that the policy was enforced, with this result.
    Record(Shortage, OnSpent, &'static str),
    /// Pause the bottle and ask the user. Contains the time that the user has to answer.
    Ask(Shortage, Duration),
    /// Freeze or kill the bottle.
    End(Shortage, OnSpent),
}

impl Requests {
    pub(super) fn new(slug: Slug) -> Self {
        Self {
            slug,
            pending: BTreeMap::new(),
            refused: BTreeSet::new(),
            ledger_warned: false,
            minute_warned: false,
        }
    }

    pub(super) fn add(&mut self, request: LeaseRequest, now: Instant) {
        self.pending.insert(request.key.clone(), PendingRequest::new(request, now));
    }

    /// The keys of the requests without an answer.
    pub(super) fn keys(&self) -> Vec<BudgetKey> {
        self.pending.keys().cloned().collect()
    }

    /// Whether a request waits until the user raises a budget.
    pub(super) fn wait_for_user(&self) -> bool {
        self.pending.values().any(PendingRequest::waits_for_user)
    }

    /// Records in all requests that wait for the user that the user did not raise the limit of this shortage.
    pub(super) fn refuse(&mut self, shortage: &Shortage) {
        self.pending.values_mut().for_each(|pending| pending.refuse(shortage));
    }

    pub(super) fn before(&mut self, key: &BudgetKey, stopped: Stopped) -> Before {
        let Some(pending) = self.pending.get(key) else { return Before::Wait };
        match stopped {
            Stopped::Paused => Before::Wait,
            Stopped::CutOff => {
                let why = "the user stopped them with `bottle budget stop`".to_owned();
                Before::Answer(self.deny(key, Reason::BudgetSpent, why))
            }
            Stopped::No => Before::Lease(pending.request.clone()),
        }
    }

    /// Returns the actions that follow from `outcome`, which is the ledger's answer, or the reason why the ledger
    /// cannot be used.
    pub(super) fn after(
        &mut self,
        key: &BudgetKey,
        outcome: Result<LeaseOutcome, String>,
        now: Instant,
    ) -> Vec<Action> {
        match outcome {
            Ok(LeaseOutcome::Unlimited) => {
                self.pending.remove(key);
                vec![Action::Answer(LeaseAnswer::Unlimited { key: key.clone() })]
            }
            Ok(LeaseOutcome::Granted(granted)) => {
                let needed = self.pending.remove(key).and_then(|pending| pending.request.needed);
                // A request for 0 tokens is granted even if nothing is left.
                if needed.is_some_and(|needed| needed > 0) {
                    self.refused.remove(key);
                }
                vec![Action::Answer(LeaseAnswer::Granted { key: key.clone(), granted })]
            }
            Ok(LeaseOutcome::Short(shortage, rules)) => {
                let refused = self.refused.contains(key);
                let Some(pending) = self.pending.get_mut(key) else { return Vec::new() };
                let step = pending.step(&shortage, &rules, refused, now);
                self.short(key, shortage, step)
            }
            Err(why) => self.unknown(key, &why, now),
        }
    }

    /// Returns the actions for a request when a limit has too few tokens left.
    fn short(&mut self, key: &BudgetKey, shortage: Shortage, step: Step) -> Vec<Action> {
        match step {
            Step::Wait => self.explain_wait(&shortage).into_iter().collect(),
            Step::Ask(for_at_most) => vec![Action::Ask(shortage, for_at_most)],
            Step::Deny => {
                let why = question::denial(&shortage);
                let mut actions = Vec::new();
                if self.refused.insert(key.clone()) {
                    let warning = format!("{}: {why}", self.slug);
                    actions.push(Action::Record(shortage, OnSpent::Cutoff, "requests to models are denied"));
                    actions.push(Action::Warn(warning));
                }
                actions.push(Action::Answer(self.deny(key, Reason::BudgetSpent, why)));
                actions
            }
            Step::End(policy) => vec![
                Action::Record(shortage.clone(), policy, "the bottle ends"),
                Action::End(shortage, policy),
            ],
        }
    }

    /// Returns a warning that explains why requests wait for up to a minute. Returns `None` if the user already
    /// received this warning.
    fn explain_wait(&mut self, shortage: &Shortage) -> Option<Action> {
        let is_new = shortage.declared.limit.window == Window::Minute
            && !std::mem::replace(&mut self.minute_warned, true);
        let why = question::cause(shortage);
        is_new.then(|| Action::Warn(format!("{}: requests to models wait up to a minute: {why}", self.slug)))
    }

    /// Returns the actions for a request while the ledger cannot be used. After [`LEDGER_TIMEOUT`], the request is
    /// denied.
    fn unknown(&mut self, key: &BudgetKey, why: &str, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        if !std::mem::replace(&mut self.ledger_warned, true) {
            let text = format!("requests to models wait, because their budget is unknown: {why}");
            actions.push(Action::Warn(text));
        }
        if self.pending.get_mut(key).is_some_and(|pending| pending.is_late(now, LEDGER_TIMEOUT)) {
            let why = "the ledger of this machine cannot be used".to_owned();
            actions.push(Action::Answer(self.deny(key, Reason::BudgetUnknown, why)));
        }
        actions
    }

    fn deny(&mut self, key: &BudgetKey, reason: Reason, why: String) -> LeaseAnswer {
        self.pending.remove(key);
        LeaseAnswer::Denied { key: key.clone(), reason, why }
    }
}

#[cfg(test)]
mod tests {
    use bottle_host::budget::{Declared, Limit, Scope};

    use super::super::budgets::OnShortage;
    use super::*;
    use crate::ledger::Standing;

    const KEY: BudgetKey = BudgetKey::Provider;

    fn request() -> LeaseRequest {
        LeaseRequest { key: KEY, granted: 0, returned: 0, in_progress: 0, needed: Some(20) }
    }

    fn requests(now: Instant) -> Requests {
        let mut requests = Requests::new("demo".parse().expect("a slug"));
        requests.add(request(), now);
        requests
    }

    fn shortage(window: Window, may_pass: bool) -> Shortage {
        let limit = Limit { key: "claude".to_owned(), window, tokens: 100 };
        Shortage {
            declared: Declared { scope: Scope::Host, limit, origin: "settings.yml:1".to_owned() },
            standing: Standing { spent: 90, reserved: 0, limit: 100 },
            needed: 20,
            may_pass,
        }
    }

    fn short(policy: OnSpent, window: Window, may_pass: bool) -> Result<LeaseOutcome, String> {
        let rules = OnShortage { policy, pause: Duration::from_secs(60), can_ask: true };
        Ok(LeaseOutcome::Short(shortage(window, may_pass), rules))
    }

    fn denied(reason: Reason, why: String) -> Action {
        Action::Answer(LeaseAnswer::Denied { key: KEY, reason, why })
    }

    #[test]
    fn the_user_stops_requests_before_the_ledger_is_asked() {
        let now = Instant::now();
        let why = "the user stopped them with `bottle budget stop`".to_owned();
        let answer = LeaseAnswer::Denied { key: KEY, reason: Reason::BudgetSpent, why };
        for (stopped, wanted, waits) in [
            (Stopped::No, Before::Lease(request()), true),
            (Stopped::Paused, Before::Wait, true),
            (Stopped::CutOff, Before::Answer(answer), false),
        ] {
            let mut requests = requests(now);
            assert_eq!(requests.before(&KEY, stopped), wanted, "{stopped:?}");
            assert_eq!(requests.keys().is_empty(), !waits, "{stopped:?}");
        }
        assert_eq!(Requests::new("demo".parse().expect("a slug")).before(&KEY, Stopped::No), Before::Wait);
    }

    #[test]
    fn each_answer_of_the_ledger_leads_to_actions() {
        let now = Instant::now();
        let spent = || shortage(Window::Total, false);
        let (cause, denial) = (question::cause(&shortage(Window::Minute, true)), question::denial(&spent()));
        let minute = format!("demo: requests to models wait up to a minute: {cause}");
        let unknown = "requests to models wait, because their budget is unknown: no disk".to_owned();
        let result = "requests to models are denied";
        let end =
            |policy| vec![Action::Record(spent(), policy, "the bottle ends"), Action::End(spent(), policy)];
        // Each entry: the ledger's answer, the resulting actions, the actions when the ledger gives the same answer
        // again, and whether the request still waits afterwards.
        for (outcome, actions, again, waits) in [
            (
                Ok(LeaseOutcome::Unlimited),
                vec![Action::Answer(LeaseAnswer::Unlimited { key: KEY })],
                vec![Action::Answer(LeaseAnswer::Unlimited { key: KEY })],
                false,
            ),
            (
                Ok(LeaseOutcome::Granted(7)),
                vec![Action::Answer(LeaseAnswer::Granted { key: KEY, granted: 7 })],
                vec![Action::Answer(LeaseAnswer::Granted { key: KEY, granted: 7 })],
                false,
            ),
            (
                short(OnSpent::Cutoff, Window::Total, false),
                vec![
                    Action::Record(spent(), OnSpent::Cutoff, result),
                    Action::Warn(format!("demo: {denial}")),
                    denied(Reason::BudgetSpent, denial.clone()),
                ],
                vec![denied(Reason::BudgetSpent, denial)],
                false,
            ),
            (
                short(OnSpent::Pause, Window::Total, false),
                vec![Action::Ask(spent(), Duration::from_secs(60))],
                vec![Action::Ask(spent(), Duration::from_secs(60))],
                true,
            ),
            (short(OnSpent::Kill, Window::Total, false), end(OnSpent::Kill), Vec::new(), true),
            (short(OnSpent::Freeze, Window::Total, false), end(OnSpent::Freeze), Vec::new(), true),
            (short(OnSpent::Kill, Window::Total, true), Vec::new(), Vec::new(), true),
            (short(OnSpent::Kill, Window::Minute, true), vec![Action::Warn(minute)], Vec::new(), true),
            (Err("no disk".to_owned()), vec![Action::Warn(unknown)], Vec::new(), true),
        ] {
            let mut requests = requests(now);
            assert_eq!(requests.after(&KEY, outcome.clone(), now), actions, "{outcome:?}");
            assert_eq!(!requests.keys().is_empty(), waits, "{outcome:?}");
            if !waits {
                requests.add(request(), now);
            }
            assert_eq!(requests.after(&KEY, outcome.clone(), now), again, "{outcome:?}");
        }
    }

    #[test]
    fn a_ledger_that_stays_unusable_denies() {
        let now = Instant::now();
        let mut requests = requests(now);
        let failed = || Err("no disk".to_owned());
        assert_eq!(requests.after(&KEY, failed(), now).len(), 1, "a warning");
        let why = "the ledger of this machine cannot be used".to_owned();
        let late = requests.after(&KEY, failed(), now + LEDGER_TIMEOUT);
        assert_eq!(late, [denied(Reason::BudgetUnknown, why)]);
        assert!(requests.keys().is_empty());
    }

    #[test]
    fn a_limit_that_the_user_did_not_raise_denies_until_the_ledger_grants() {
        let now = Instant::now();
        let mut requests = requests(now);
        let spent = || short(OnSpent::Pause, Window::Total, false);
        assert!(matches!(requests.after(&KEY, spent(), now)[..], [Action::Ask(..)]));
        assert!(requests.wait_for_user());
        requests.refuse(&shortage(Window::Total, false));
        assert!(!requests.wait_for_user());
        let is_denied =
            |actions: &[Action]| matches!(actions.last(), Some(Action::Answer(LeaseAnswer::Denied { .. })));
        assert!(is_denied(&requests.after(&KEY, spent(), now)));
        requests.add(request(), now);
        assert!(is_denied(&requests.after(&KEY, spent(), now)), "the next one at once");
        // The proxy asks with 0 tokens whether a budget limits the key.
        requests.add(LeaseRequest { needed: Some(0), ..request() }, now);
        let granted = Action::Answer(LeaseAnswer::Granted { key: KEY, granted: 0 });
        assert_eq!(requests.after(&KEY, Ok(LeaseOutcome::Granted(0)), now), [granted]);
        requests.add(request(), now);
        assert!(is_denied(&requests.after(&KEY, spent(), now)), "still refused");
        requests.add(request(), now);
        requests.after(&KEY, Ok(LeaseOutcome::Granted(20)), now);
        requests.add(request(), now);
        assert!(matches!(requests.after(&KEY, spent(), now)[..], [Action::Ask(..)]), "asked again");
    }
}
