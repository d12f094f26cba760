//! A waiting request for a lease. This module is pure: it reads no clock and sends no messages.

use std::time::{Duration, Instant};

use bottle_host::budget::{Declared, OnSpent, Window};
use bottle_protocol::session::lease::LeaseRequest;

use super::budgets::OnShortage;
use crate::ledger::Shortage;

/// A request for tokens that other requests have reserved waits at least this long before it is denied.
const SHORTAGE_TIMEOUT: Duration = Duration::from_secs(30);

/// A request for tokens of a per-minute limit waits at least this long before it is denied.
const MINUTE_TIMEOUT: Duration = Duration::from_secs(90);

/// A request that the keeper has not answered yet.
#[derive(Debug)]
pub(super) struct PendingRequest {
    pub(super) request: LeaseRequest,
    since: Instant,
    state: State,
}

/// The reason why a request has no answer yet.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// The request is new.
    New,
    /// Other requests have reserved the tokens that the request needs.
    WaitsForOthers,
    /// The user was asked to raise a limit. Contains the time of the question.
    WaitsForUser(Instant),
    /// The user was asked to raise this limit and did not raise it.
    Refused(Declared),
    /// The bottle is about to end.
    Ends,
    /// The ledger cannot be used. Contains the time of the first failure.
    Unknown(Instant),
}

/// The next step for a request when a limit has too few tokens left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Try again later.
    Wait,
    /// Pause the bottle and ask the user. Contains the time that the user has to answer.
    Ask(Duration),
    /// Deny the request.
    Deny,
    /// Freeze or kill the bottle.
    End(OnSpent),
}

impl PendingRequest {
    pub(super) fn new(request: LeaseRequest, now: Instant) -> Self {
        Self { request, since: now, state: State::New }
    }

    /// Decides the next step of the request. `refused` is set if the user was asked for an earlier request and did not
    /// raise the budget.
    pub(super) fn step(
        &mut self,
        shortage: &Shortage,
        rules: &OnShortage,
        refused: bool,
        now: Instant,
    ) -> Step {
        if self.state == State::Ends {
            return Step::Wait;
        }
        if matches!(&self.state, State::Refused(limit) if *limit == shortage.declared) || refused {
            return Step::Deny;
        }
        if shortage.may_pass {
            self.state = State::WaitsForOthers;
            let least = match shortage.declared.limit.window {
                Window::Minute => MINUTE_TIMEOUT,
                Window::Run | Window::Day | Window::Month | Window::Total => SHORTAGE_TIMEOUT,
            };
            let late = now.duration_since(self.since) >= rules.pause.max(least);
            return if late { Step::Deny } else { Step::Wait };
        }
        match (rules.policy, rules.pause()) {
            (OnSpent::Cutoff, _) | (OnSpent::Pause, None) => Step::Deny,
            (policy @ (OnSpent::Freeze | OnSpent::Kill), _) => {
                self.state = State::Ends;
                Step::End(policy)
            }
            (OnSpent::Pause, Some(pause)) => match self.state {
                State::WaitsForUser(asked) if now.duration_since(asked) >= pause => Step::Deny,
                State::WaitsForUser(asked) => Step::Ask(pause.saturating_sub(now.duration_since(asked))),
                _ => {
                    self.state = State::WaitsForUser(now);
                    Step::Ask(pause)
                }
            },
        }
    }

    /// If the request waits for the user, records that the user did not raise the limit of this shortage.
    pub(super) fn refuse(&mut self, shortage: &Shortage) {
        if self.waits_for_user() {
            self.state = State::Refused(shortage.declared.clone());
        }
    }

    pub(super) fn waits_for_user(&self) -> bool {
        matches!(self.state, State::WaitsForUser(_))
    }

    /// Records a failure of the ledger. Returns whether the ledger has failed for at least the time `limit`.
    pub(super) fn is_late(&mut self, now: Instant, limit: Duration) -> bool {
        match self.state {
            State::Unknown(since) => now.duration_since(since) >= limit,
            // The question to the user stays open, and the request continues when the ledger works again.
            State::WaitsForUser(_) | State::Ends => false,
            State::New | State::WaitsForOthers | State::Refused(_) => {
                self.state = State::Unknown(now);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bottle_host::budget::{Limit, Scope};
    use bottle_protocol::session::lease::BudgetKey;

    use super::*;
    use crate::ledger::Standing;

    fn shortage(scope: Scope, may_pass: bool) -> Shortage {
        let limit = Limit { key: "claude".to_owned(), window: Window::Total, tokens: 100 };
        Shortage {
            declared: Declared { scope, limit, origin: "settings.yml:1".to_owned() },
            standing: Standing { spent: 90, reserved: 0, limit: 100 },
            needed: 20,
            may_pass,
        }
    }

    fn rules(policy: OnSpent, can_ask: bool) -> OnShortage {
        OnShortage { policy, pause: Duration::from_secs(60), can_ask }
    }

    fn pending(now: Instant) -> PendingRequest {
        let request = LeaseRequest {
            key: BudgetKey::Provider,
            granted: 0,
            returned: 0,
            in_progress: 0,
            needed: Some(20),
        };
        PendingRequest::new(request, now)
    }

    #[test]
    fn asks_until_the_time_is_over_and_then_denies() {
        let now = Instant::now();
        let (mut pending, spent, rules) =
            (pending(now), shortage(Scope::Host, false), rules(OnSpent::Pause, true));
        let at = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(pending.step(&spent, &rules, false, at(0)), Step::Ask(Duration::from_secs(60)));
        assert_eq!(pending.step(&spent, &rules, false, at(45)), Step::Ask(Duration::from_secs(15)));
        assert!(pending.waits_for_user());
        assert_eq!(pending.step(&spent, &rules, false, at(60)), Step::Deny);
    }

    #[test]
    fn a_refused_limit_denies_and_another_limit_asks_again() {
        let now = Instant::now();
        let (mut pending, rules) = (pending(now), rules(OnSpent::Pause, true));
        let (host, ceiling) = (shortage(Scope::Host, false), shortage(Scope::Ceiling, false));
        assert!(matches!(pending.step(&host, &rules, false, now), Step::Ask(_)));
        pending.refuse(&host);
        assert!(!pending.waits_for_user());
        assert_eq!(pending.step(&host, &rules, false, now), Step::Deny);
        assert!(matches!(pending.step(&ceiling, &rules, false, now), Step::Ask(_)));
    }

    #[test]
    fn without_a_user_to_ask_the_policy_comes_at_once() {
        let now = Instant::now();
        let spent = shortage(Scope::Host, false);
        let no_time = OnShortage { pause: Duration::ZERO, ..rules(OnSpent::Pause, true) };
        for (rules, step) in [
            (rules(OnSpent::Pause, false), Step::Deny),
            (no_time, Step::Deny),
            (rules(OnSpent::Cutoff, true), Step::Deny),
            (rules(OnSpent::Freeze, true), Step::End(OnSpent::Freeze)),
            (rules(OnSpent::Kill, false), Step::End(OnSpent::Kill)),
        ] {
            let mut pending = pending(now);
            assert_eq!(pending.step(&spent, &rules, false, now), step);
            if matches!(step, Step::End(_)) {
                assert_eq!(pending.step(&spent, &rules, false, now), Step::Wait, "once");
            }
        }
    }

    #[test]
    fn waits_for_the_reservations_of_other_requests() {
        let now = Instant::now();
        let (mut pending, rules) = (pending(now), rules(OnSpent::Kill, false));
        let reserved = shortage(Scope::Host, true);
        assert_eq!(pending.step(&reserved, &rules, false, now), Step::Wait);
        assert!(!pending.waits_for_user(), "the bottle is not paused");
        assert_eq!(pending.step(&reserved, &rules, false, now + Duration::from_secs(60)), Step::Deny);
        assert_eq!(pending.step(&reserved, &rules, true, now), Step::Deny, "refused before");
    }

    #[test]
    fn an_unknown_budget_is_denied_after_a_while() {
        let now = Instant::now();
        let limit = Duration::from_secs(30);
        let mut unknown = pending(now);
        assert!(!unknown.is_late(now, limit));
        assert!(!unknown.is_late(now + limit / 2, limit));
        assert!(unknown.is_late(now + limit, limit));
        let mut asked = pending(now);
        asked.step(&shortage(Scope::Host, false), &rules(OnSpent::Pause, true), false, now);
        assert!(!asked.is_late(now, limit) && !asked.is_late(now + limit, limit));
    }
}
