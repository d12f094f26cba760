//! The lease of one [`BudgetKey`], and the requests that wait for tokens of this lease. The code is pure: it reads no
//! clock, takes no lock and sends no message.

use std::collections::VecDeque;
use std::time::Instant;

use bottle_protocol::session::lease::{BudgetKey, LeaseRequest};
use tokio::sync::oneshot;

use super::{Answer, AnswerSender};
use crate::bounds;

/// The lease of one [`BudgetKey`].
pub(super) struct KeyLease {
    limit: Limit,
    /// The tokens that no request has reserved. Negative after responses that used more than their reservations.
    available: i64,
    /// The tokens that requests in progress have reserved.
    reserved: u64,
    /// The tokens that the keeper granted since the launch.
    granted: u64,
    /// The tokens that the proxy returned to the keeper since the launch.
    returned: u64,
    /// Whether [`Self::returned`] changed since the last message to the keeper.
    must_return: bool,
    /// The requests that wait, oldest first.
    waiting: VecDeque<Waiting>,
    /// Whether the proxy has sent a lease request that the connected keeper has not answered yet.
    asked: bool,
    used_at: Instant,
}

/// Whether a budget limits the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Limit {
    Unknown,
    /// At this time, the keeper answered that no budget limits the key.
    Unlimited(Instant),
    Limited,
}

struct Waiting {
    tokens: u64,
    since: Instant,
    answer: AnswerSender,
}

/// The immediate result of a reservation.
pub(super) enum Ready {
    /// The request has its tokens.
    Reserved,
    /// No budget limits the key. `refresh` states whether to ask the keeper again. The request does not wait for the
    /// new answer.
    Unlimited { refresh: bool },
    /// The request waits for this answer.
    Waits(Answer),
    /// Too many requests wait.
    Full,
}

/// A request that no longer waits. `tokens` is `None` if no budget limits the key, or if the client has disconnected.
pub(super) struct Grant {
    pub(super) tokens: Option<u64>,
    pub(super) answer: AnswerSender,
}

impl KeyLease {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            limit: Limit::Unknown,
            available: 0,
            reserved: 0,
            granted: 0,
            returned: 0,
            must_return: false,
            waiting: VecDeque::new(),
            asked: false,
            used_at: now,
        }
    }

    /// Whether no budget limits the key, so that this lease can be dropped without losing tokens.
    pub(super) fn is_unlimited(&self) -> bool {
        matches!(self.limit, Limit::Unlimited(_)) && !self.asked && !self.must_return
    }

    /// Whether a budget limits the key.
    #[cfg(test)]
    pub(super) fn is_limited(&self) -> bool {
        self.limit == Limit::Limited
    }

    /// Reserves tokens for a request, or appends the request to the queue.
    pub(super) fn reserve(&mut self, tokens: u64, now: Instant) -> Ready {
        self.used_at = now;
        if let Limit::Unlimited(since) = self.limit {
            let stale = now.duration_since(since) >= bounds::LEASE_REFRESH;
            return Ready::Unlimited { refresh: stale && !self.asked };
        }
        if self.limit == Limit::Limited && self.waiting.is_empty() && self.take(tokens) {
            return Ready::Reserved;
        }
        self.waiting.retain(|waiting| !waiting.answer.is_closed());
        if self.waiting.len() >= bounds::LEASE_WAITING {
            return Ready::Full;
        }
        let (answer, receiver) = oneshot::channel();
        self.waiting.push_back(Waiting { tokens, since: now, answer });
        Ready::Waits(receiver)
    }

    /// Ends a reservation of `reserved` tokens after a response that used `used` tokens.
    pub(super) fn settle(&mut self, reserved: u64, used: u64, now: Instant) {
        self.used_at = now;
        self.reserved = self.reserved.saturating_sub(reserved);
        if self.limit == Limit::Limited {
            self.available = self.available.saturating_add(signed(reserved)).saturating_sub(signed(used));
        }
    }

    /// Reserves tokens for the waiting requests in order, as long as the lease has enough tokens. Removes these
    /// requests from the queue.
    pub(super) fn serve(&mut self) -> Vec<Grant> {
        let mut served = Vec::new();
        while let Some(first) = self.waiting.front() {
            let tokens = match self.limit {
                Limit::Unknown => break,
                Limit::Unlimited(_) => None,
                // A client that disconnected needs no tokens.
                Limit::Limited if first.answer.is_closed() => None,
                Limit::Limited => {
                    let tokens = first.tokens;
                    if !self.take(tokens) {
                        break;
                    }
                    Some(tokens)
                }
            };
            if let Some(Waiting { answer, .. }) = self.waiting.pop_front() {
                served.push(Grant { tokens, answer });
            }
        }
        served
    }

    /// Records the total number of tokens that the keeper has granted since the launch.
    pub(super) fn granted(&mut self, granted: u64) {
        self.asked = false;
        self.limit = Limit::Limited;
        let more = granted.saturating_sub(self.granted);
        self.granted += more;
        self.available = self.available.saturating_add(signed(more));
    }

    /// Records that no budget limits the key.
    pub(super) fn unlimited(&mut self, now: Instant) {
        self.asked = false;
        self.limit = Limit::Unlimited(now);
    }

    /// Removes all requests from the queue, because the keeper denied them.
    pub(super) fn denied(&mut self) -> Vec<AnswerSender> {
        self.asked = false;
        self.waiting.drain(..).map(|waiting| waiting.answer).collect()
    }

    /// Returns all tokens that no request has reserved to the keeper. The proxy asks the keeper for a new lease before
    /// the next reservation.
    pub(super) fn revoke(&mut self) {
        self.give_back();
        self.limit = Limit::Unknown;
    }

    /// Returns the available tokens to the keeper if no request has used the lease for [`bounds::LEASE_IDLE`]. Also
    /// returns them if they do not suffice for a request that has waited for [`bounds::LEASE_SHARED_AFTER`].
    pub(super) fn give_back_unused(&mut self, now: Instant) {
        let unused = match self.waiting.front() {
            Some(first) => self.asked && now.duration_since(first.since) >= bounds::LEASE_SHARED_AFTER,
            None => self.reserved == 0 && now.duration_since(self.used_at) >= bounds::LEASE_IDLE,
        };
        if unused {
            self.give_back();
        }
    }

    /// Whether a request waits although the lease has available tokens, because these tokens do not suffice.
    pub(super) fn has_too_little(&self) -> bool {
        !self.waiting.is_empty() && self.available > 0
    }

    fn give_back(&mut self) {
        if let Ok(unused @ 1..) = u64::try_from(self.available) {
            self.available = 0;
            self.returned += unused;
            self.must_return = true;
        }
    }

    /// Forgets the unanswered lease request, because the keeper disconnected.
    pub(super) fn forget_request(&mut self) {
        self.asked = false;
        // The last message about returned tokens may be lost, so it is sent again. A repeated message has no effect,
        // because it contains totals.
        self.must_return = self.returned > 0;
    }

    /// Returns the next message to the keeper, if a message is necessary.
    pub(super) fn request(&mut self, key: &BudgetKey, now: Instant) -> Option<LeaseRequest> {
        while self.waiting.pop_front_if(|waiting| waiting.answer.is_closed()).is_some() {}
        let stale = matches!(self.limit, Limit::Unlimited(since) if now.duration_since(since) >= bounds::LEASE_REFRESH
            && now.duration_since(self.used_at) < bounds::LEASE_REFRESH);
        let needed = match self.waiting.front() {
            _ if self.asked => None,
            Some(first) => {
                Some(u64::try_from(signed(first.tokens).saturating_sub(self.available)).unwrap_or(0))
            }
            None => stale.then_some(0),
        };
        if needed.is_none() && !std::mem::take(&mut self.must_return) {
            return None;
        }
        self.must_return = false;
        self.asked |= needed.is_some();
        let Self { granted, returned, reserved, .. } = *self;
        Some(LeaseRequest { key: key.clone(), granted, returned, in_progress: reserved, needed })
    }

    fn take(&mut self, tokens: u64) -> bool {
        // A reservation of 0 tokens only asks whether a budget limits the key. It succeeds even if `available` is
        // negative.
        let enough = tokens == 0 || self.available >= signed(tokens);
        if enough {
            self.available = self.available.saturating_sub(signed(tokens));
            self.reserved = self.reserved.saturating_add(tokens);
        }
        enough
    }
}

fn signed(tokens: u64) -> i64 {
    i64::try_from(tokens).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn limited(granted: u64) -> (KeyLease, Instant) {
        let now = Instant::now();
        let mut account = KeyLease::new(now);
        account.granted(granted);
        (account, now)
    }

    fn needed(account: &mut KeyLease, now: Instant) -> Option<Option<u64>> {
        account.request(&BudgetKey::Provider, now).map(|request| request.needed)
    }

    fn waits(ready: Ready) -> Answer {
        match ready {
            Ready::Waits(answer) => answer,
            _ => panic!("the request does not wait"),
        }
    }

    #[test]
    fn a_lease_in_hand_needs_no_message() {
        let (mut account, now) = limited(100);
        assert!(matches!(account.reserve(60, now), Ready::Reserved));
        assert!(matches!(account.reserve(40, now), Ready::Reserved));
        assert_eq!(needed(&mut account, now), None);
        account.settle(60, 10, now);
        assert!(matches!(account.reserve(50, now), Ready::Reserved), "unused tokens are used again");
    }

    #[test]
    fn asks_for_the_missing_tokens_once_and_serves_in_order() {
        let (mut account, now) = limited(100);
        let mut first = waits(account.reserve(150, now));
        let mut second = waits(account.reserve(20, now));
        assert_eq!(needed(&mut account, now), Some(Some(50)));
        assert_eq!(needed(&mut account, now), None, "one request at a time");
        account.granted(150);
        assert_eq!(account.serve().len(), 1);
        assert!(first.try_recv().is_err() && second.try_recv().is_err(), "the lease delivers");
        assert_eq!(needed(&mut account, now), Some(Some(20)));
        account.granted(150);
        assert!(account.serve().is_empty(), "a repeated answer grants nothing");
        account.settle(150, 120, now);
        assert_eq!(account.serve().iter().map(|grant| grant.tokens).collect::<Vec<_>>(), [Some(20)]);
    }

    #[test]
    fn an_overshoot_is_taken_from_the_next_lease() {
        let (mut account, now) = limited(100);
        assert!(matches!(account.reserve(100, now), Ready::Reserved));
        account.settle(100, 130, now);
        let _answer = waits(account.reserve(10, now));
        assert_eq!(needed(&mut account, now), Some(Some(40)));
        assert!(matches!(account.reserve(0, now), Ready::Waits(_)), "behind the first");
    }

    #[test]
    fn a_client_that_disconnects_needs_no_tokens() {
        let (mut account, now) = limited(0);
        drop(waits(account.reserve(10, now)));
        assert_eq!(needed(&mut account, now), None);
        let gone = waits(account.reserve(10, now));
        assert_eq!(needed(&mut account, now), Some(Some(10)));
        drop(gone);
        let _retry = waits(account.reserve(10, now));
        account.granted(10);
        let served: Vec<_> = account.serve().iter().map(|grant| grant.tokens).collect();
        assert_eq!(served, [Some(10)], "a retry replaces the request that disconnected");
    }

    #[test]
    fn without_a_limit_nothing_waits_and_the_keeper_is_asked_again_later() {
        let now = Instant::now();
        let mut account = KeyLease::new(now);
        let _answer = waits(account.reserve(10, now));
        assert_eq!(needed(&mut account, now), Some(Some(10)));
        account.unlimited(now);
        assert_eq!(account.serve().iter().map(|grant| grant.tokens).collect::<Vec<_>>(), [None]);
        assert!(matches!(account.reserve(10, now), Ready::Unlimited { refresh: false }));
        account.settle(0, 500, now);
        let later = now + bounds::LEASE_REFRESH;
        assert!(matches!(account.reserve(10, later), Ready::Unlimited { refresh: true }));
        assert_eq!(needed(&mut account, later), Some(Some(0)));
        account.granted(0);
        assert_eq!(account.available, 0, "responses without a limit take nothing");
    }

    #[test]
    fn a_request_that_waits_long_shares_what_it_has() {
        let (mut account, now) = limited(60);
        let _answer = waits(account.reserve(100, now));
        assert_eq!(needed(&mut account, now), Some(Some(40)));
        assert!(account.has_too_little());
        account.give_back_unused(now);
        assert_eq!(needed(&mut account, now), None, "too early");
        let later = now + bounds::LEASE_SHARED_AFTER;
        account.give_back_unused(later);
        let message = account.request(&BudgetKey::Provider, later).expect("a message");
        assert_eq!((message.returned, message.needed), (60, None));
        assert!(!account.has_too_little());
        // The keeper answers the first message, but the 60 returned tokens are still missing.
        account.granted(100);
        assert!(account.serve().is_empty());
        assert_eq!(needed(&mut account, later), Some(Some(60)));
    }

    #[test]
    fn gives_back_what_is_unused() {
        let (mut account, now) = limited(100);
        assert!(matches!(account.reserve(60, now), Ready::Reserved));
        let later = now + bounds::LEASE_IDLE + Duration::from_secs(1);
        account.give_back_unused(later);
        assert_eq!(needed(&mut account, later), None, "a request is in progress");
        account.settle(60, 25, now);
        account.give_back_unused(later);
        let message = account.request(&BudgetKey::Provider, later).expect("a message");
        assert_eq!((message.granted, message.returned, message.needed), (100, 75, None));
        assert_eq!(account.request(&BudgetKey::Provider, later), None);
        account.forget_request();
        assert!(account.request(&BudgetKey::Provider, later).is_some(), "sent again to the next keeper");
    }

    proptest! {
        /// No tokens of the lease are lost or counted twice.
        #[test]
        fn granted_tokens_are_available_reserved_used_or_returned(
            steps in prop::collection::vec((0_u8..5, 0_u64..100), 1..60),
        ) {
            let (mut account, now) = limited(0);
            let (mut open, mut used, mut answers) = (Vec::new(), 0, Vec::new());
            for (step, tokens) in steps {
                match step {
                    0 => match account.reserve(tokens, now) {
                        Ready::Reserved => open.push(tokens),
                        Ready::Waits(answer) => answers.push(answer),
                        _ => {}
                    },
                    1 => account.granted(account.granted + tokens),
                    2 => drop(answers.pop()),
                    3 => if let Some(reserved) = open.pop() {
                        account.settle(reserved, tokens, now);
                        used += tokens;
                    },
                    _ => account.give_back(),
                }
                open.extend(account.serve().iter().filter_map(|grant| grant.tokens));
                let reserved: u64 = open.iter().sum();
                prop_assert_eq!(account.reserved, reserved);
                let sum = account.available + signed(reserved + used + account.returned);
                prop_assert_eq!(sum, signed(account.granted));
            }
        }
    }
}
