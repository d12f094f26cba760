//! Counts hits on secrets that the agent does not hold, and locks the daemon when a limit is reached
//! ([`bottle_contract::lock_out`]).
//!
//! ```text
//! hit ─► new? ─► counted ─► limit? ─► locked ─► the bundle ─► every other daemon, the keeper
//!                                      ▲                      │
//!                                      └──────── lock ◄───────┘
//! ```
//! A daemon has a single counter, not one for each connection or host, and nothing from the bottle resets it.
//! A locked daemon denies all requests, and stays locked until the run ends.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use bottle_contract::lock_out::LockOut;
use sha2::{Digest, Sha256};
use tokio::sync::watch;

/// The lock of one daemon, with its hit counter.
#[derive(Debug)]
pub struct Lockout {
    daemon: &'static str,
    /// The number of distinct hits that locks the daemon. With `None`, hits are not counted, and only
    /// [`Self::lock`] locks the daemon.
    bound: Option<usize>,
    counted: Mutex<Counted>,
    /// Whether `why` is set, as a cheap check.
    locked: AtomicBool,
    why: watch::Sender<Option<LockOut>>,
}

/// The hits and destinations that were counted. Neither set has more entries than the limit of hits.
#[derive(Debug, Default)]
struct Counted {
    hits: HashSet<[u8; 32]>,
    places: BTreeSet<String>,
}

impl Lockout {
    /// Creates an unlocked daemon's lock with a limit of `bound` distinct hits. With `None`, hits are not
    /// counted.
    #[must_use]
    pub fn new(daemon: &'static str, bound: Option<usize>) -> Self {
        let (counted, locked, why) = (Mutex::default(), AtomicBool::new(false), watch::Sender::new(None));
        Self { daemon, bound, counted, locked, why }
    }

    /// Counts a hit on the secret with number `secret`. `text` is the part of the request or push that
    /// matched. `place` is the host or repository to which the agent sent it. The same text of the same secret counts only once, wherever and however often it is sent.
    pub fn hit(&self, secret: usize, text: &[u8], place: &str) {
        let Some(bound) = self.bound else { return };
        let hit = Sha256::new().chain_update(secret.to_le_bytes()).chain_update(text).finalize().into();
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        // Hits after the limit need not be counted, because the daemon is locked.
        if counted.hits.len() >= bound || !counted.hits.insert(hit) {
            return;
        }
        counted.places.insert(place.to_owned());
        if counted.hits.len() == bound {
            let places = counted.places.iter().cloned().collect();
            self.lock(LockOut { daemon: self.daemon.to_owned(), hits: bound, places });
        }
    }

    /// Locks the daemon. If it is already locked, the first reason is kept.
    pub fn lock(&self, why: LockOut) {
        self.locked.store(true, Ordering::SeqCst);
        self.why.send_if_modified(|first| {
            let unlocked = first.is_none();
            first.get_or_insert(why);
            unlocked
        });
    }

    /// Whether the daemon is locked and must deny all requests.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.locked.load(Ordering::SeqCst)
    }

    /// Waits until the daemon is locked.
    pub async fn locked(&self) -> LockOut {
        let mut why = self.why.subscribe();
        loop {
            if let Some(why) = why.borrow_and_update().clone() {
                return why;
            }
            if why.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn why(lockout: &Lockout) -> Option<LockOut> {
        lockout.why.borrow().clone()
    }

    #[tokio::test]
    async fn counts_distinct_hits_once_each() {
        let lockout = Lockout::new("egress", Some(3));
        for place in ["a.example", "b.example", "a.example"].repeat(50) {
            lockout.hit(0, b"the same text", place);
        }
        lockout.hit(1, b"the same text", "c.example");
        assert!(!lockout.is_locked() && why(&lockout).is_none());
        let waiting = lockout.locked();
        lockout.hit(0, b"another text", "b.example");
        assert!(lockout.is_locked());
        let places = ["a.example", "b.example", "c.example"].map(str::to_owned).into();
        let first = LockOut { daemon: "egress".to_owned(), hits: 3, places };
        assert_eq!(waiting.await, first);
        // Later hits and locks do not change the reason.
        lockout.hit(0, b"a third text", "d.example");
        lockout.lock(LockOut { daemon: "git-gate".to_owned(), hits: 9, places: Vec::new() });
        assert_eq!(lockout.locked().await, first);
    }

    #[test]
    fn without_a_limit_only_an_explicit_lock_locks() {
        let lockout = Lockout::new("egress", None);
        (0..10_000_usize).for_each(|number| lockout.hit(0, &number.to_le_bytes(), "a.example"));
        assert!(!lockout.is_locked());
        lockout.lock(LockOut { daemon: "git-gate".to_owned(), hits: 5, places: Vec::new() });
        assert!(lockout.is_locked());
    }

    proptest! {
        #[test]
        fn locks_at_the_limit_of_distinct_hits_with_bounded_memory(
            bound in 1_usize..8,
            hits in prop::collection::vec((0_usize..3, 0_u8..6), 0..60),
        ) {
            let lockout = Lockout::new("egress", Some(bound));
            let mut different = HashSet::new();
            for (secret, text) in hits {
                lockout.hit(secret, &[text], "a.example");
                different.insert((secret, text));
                prop_assert_eq!(lockout.is_locked(), different.len() >= bound);
            }
            let counted = lockout.counted.lock().expect("no panic");
            prop_assert!(counted.hits.len() <= bound && counted.places.len() <= bound);
        }
    }
}
