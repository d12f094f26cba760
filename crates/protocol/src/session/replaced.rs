//! The values that the user set for credentials while the bottle runs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::guest::SecretText;

/// The maximum number of values. If there are more, the oldest replaced value is dropped: a token that was replaced so
/// often has expired.
pub const REPLACED_MAX: usize = 256;

/// The values that replaced the values of the launch, oldest first. The processes that search for secrets also search
/// for values that were replaced since, because these values may still be valid.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ReplacedValues(Vec<(String, SecretText)>);

impl ReplacedValues {
    /// Adds new values by the name of their slot. The newest value of a slot is dropped only if there are no other
    /// values to drop.
    pub fn add(&mut self, values: &BTreeMap<String, SecretText>) {
        for (slot, value) in values {
            self.0.retain(|(of, old)| of != slot || old != value);
            self.0.push((slot.clone(), value.clone()));
        }
        while self.0.len() > REPLACED_MAX {
            let is_replaced = |at: usize, slot: &str| self.0[at + 1..].iter().any(|(later, _)| later == slot);
            let oldest = self.0.iter().enumerate().position(|(at, (slot, _))| is_replaced(at, slot));
            self.0.remove(oldest.unwrap_or(0));
        }
    }

    /// Adds values that were set later.
    pub fn append(&mut self, later: Self) {
        for (slot, value) in later.0 {
            self.add(&BTreeMap::from([(slot, value)]));
        }
    }

    /// All values, oldest first.
    pub fn values(&self) -> impl Iterator<Item = &SecretText> {
        self.0.iter().map(|(_, value)| value)
    }

    /// Whether no value was ever replaced.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_newest_value_of_each_slot() {
        let mut replaced = ReplacedValues::default();
        let mut add =
            |slot: &str, value: &str| replaced.add(&BTreeMap::from([(slot.to_owned(), value.into())]));
        add("a", "first-of-a");
        add("b", "first-of-b");
        add("a", "second-of-a");
        add("a", "first-of-a");
        (0..2 * REPLACED_MAX).for_each(|number| add("c", &format!("{number} of c")));
        let values: Vec<&str> = replaced.values().map(|value| value.0.expose()).collect();
        assert_eq!(values.len(), REPLACED_MAX);
        assert_eq!(values[..2], ["first-of-b", "first-of-a"]);
        assert_eq!(values.last().copied(), Some("511 of c"));
        let mut earlier = ReplacedValues(vec![("a".into(), "x".into()), ("a".into(), "y".into())]);
        earlier.append(ReplacedValues(vec![("a".into(), "x".into()), ("b".into(), "z".into())]));
        let values: Vec<&str> = earlier.values().map(|value| value.0.expose()).collect();
        assert_eq!(values, ["y", "x", "z"]);
    }
}
