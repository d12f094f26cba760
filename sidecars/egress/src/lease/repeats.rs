//! Counts how often the same request to a model is sent in a row. An agent that is stuck in a loop repeats a request
//! many times.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use bottle_protocol::session::lease::BudgetKey;

use crate::bounds;

/// The last request for each budget key.
pub(crate) struct Repeats {
    /// How often the same request may be sent in a row. `None` if there is no limit.
    limit: Option<u32>,
    last: Mutex<HashMap<BudgetKey, Last>>,
}

/// A request, and how often it was sent in a row.
struct Last {
    path: String,
    fingerprint: u64,
    count: u32,
}

impl Repeats {
    pub(crate) fn new(limit: Option<u32>) -> Self {
        Self { limit, last: Mutex::default() }
    }

    /// Whether there is no limit.
    pub(crate) fn is_unlimited(&self) -> bool {
        self.limit.is_none()
    }

    /// Records a request. Returns the limit if the request exceeds it. Two requests are the same if they have the same
    /// path and the model reads the same prompt, even if their encodings differ.
    pub(crate) fn exceeded(&self, key: &BudgetKey, path: &str, fingerprint: u64) -> Option<u32> {
        let limit = self.limit?;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() >= bounds::LEASE_KEYS && !last.contains_key(key) {
            last.clear();
        }
        let new = || Last { path: path.to_owned(), fingerprint, count: 0 };
        let last = last.entry(key.clone()).or_insert_with(new);
        if last.fingerprint != fingerprint || last.path != path {
            *last = new();
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
        let exceeds = |key, path, prompt| repeats.exceeded(key, path, prompt).is_some();
        assert_eq!([(); 4].map(|()| exceeds(&claude, "/a", 1)), [false, false, true, true]);
        assert!(!exceeds(&other, "/a", 1), "another key");
        assert!(!exceeds(&claude, "/b", 1), "another path");
        assert_eq!([1, 1, 2, 1].map(|prompt| exceeds(&claude, "/a", prompt)), [false; 4]);
        let unlimited = Repeats::new(None);
        assert_eq!([(); 9].map(|()| unlimited.exceeded(&claude, "/a", 1)), [None; 9]);
    }
}
