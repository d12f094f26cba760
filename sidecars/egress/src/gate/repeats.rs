//! Counts how often the same request to a model is sent in a row. An agent in a loop sends it again and again.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

use bottle_contract::session::lease::BudgetKey;

use crate::bounds;

/// The last request of each key.
pub(crate) struct Repeats {
    /// How often the same request may be sent. `None` if there is no limit.
    limit: Option<u32>,
    hasher: RandomState,
    last: Mutex<HashMap<BudgetKey, Last>>,
}

/// A request, and how often it was sent.
struct Last {
    hash: u64,
    count: u32,
}

impl Repeats {
    pub(crate) fn new(limit: Option<u32>) -> Self {
        Self { limit, hasher: RandomState::new(), last: Mutex::default() }
    }

    /// Notes a request. Returns the limit if the request exceeds it. A request without a known text is not compared.
    pub(crate) fn exceeded(&self, key: &BudgetKey, path: &str, text: &[u8]) -> Option<u32> {
        let limit = self.limit.filter(|_| !text.is_empty())?;
        let hash = self.hasher.hash_one((path, text));
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() >= bounds::LEASE_KEYS && !last.contains_key(key) {
            last.clear();
        }
        let last = last.entry(key.clone()).or_insert(Last { hash, count: 0 });
        if last.hash != hash {
            *last = Last { hash, count: 0 };
        }
        last.count = last.count.saturating_add(1);
        (last.count > limit).then_some(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_equal_requests_in_a_row() {
        let repeats = Repeats::new(Some(2));
        let (claude, other) = (BudgetKey::Provider, BudgetKey::Host("llm.example".to_owned()));
        let exceeds = |key, path, text: &str| repeats.exceeded(key, path, text.as_bytes()).is_some();
        assert_eq!([(); 4].map(|()| exceeds(&claude, "/a", "x")), [false, false, true, true]);
        assert!(!exceeds(&other, "/a", "x"), "another key");
        assert!(!exceeds(&claude, "/b", "x"), "another path");
        assert_eq!(["x", "x", "y", "x"].map(|text| exceeds(&claude, "/a", text)), [false; 4]);
        assert_eq!([(); 4].map(|()| exceeds(&claude, "/a", "")), [false; 4], "unknown texts");
        let unlimited = Repeats::new(None);
        assert_eq!([(); 9].map(|()| unlimited.exceeded(&claude, "/a", b"x")), [None; 9]);
    }
}
