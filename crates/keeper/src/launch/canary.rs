//! Generates canary secrets: worthless values under names that look valuable. An agent that sends such a value is
//! exfiltrating secrets.

use std::collections::BTreeMap;

use bottle_protocol::canary;
use bottle_protocol::session::guest::SecretText;
use rand::RngExt as _;
use rand::seq::IndexedRandom as _;

/// First words of variable names. These words resemble the names of projects and hosts.
const FIRST: [&str; 16] = [
    "HARBOR", "BEACON", "ATLAS", "ORCHID", "SUMMIT", "RIVER", "COBALT", "MERCURY", "CEDAR", "FALCON",
    "AURORA", "GRANITE", "LANTERN", "MERIDIAN", "PRAIRIE", "ZEPHYR",
];
/// Second words, which suggest a purpose.
const SECOND: [&str; 8] = ["CIPHER", "DEPLOY", "SIGNING", "BACKUP", "LEDGER", "BILLING", "SYNC", "ADMIN"];
/// Last words, which suggest a kind of secret.
const LAST: [&str; 4] = ["SECRET", "TOKEN", "KEY", "PASSWORD"];

/// The number of random characters in a value.
const LENGTH: usize = 32;

/// The canary of one launch: a variable in the agent's environment. The proxy scans requests for the variable's value.
#[derive(Debug, Clone)]
pub struct Canary {
    /// The variable's name.
    pub name: String,
    /// The variable's value.
    pub value: SecretText,
}

impl Canary {
    /// Generates a canary whose name is not in `taken`.
    #[must_use]
    pub fn generate<V>(taken: &BTreeMap<String, V>) -> Self {
        let mut random = rand::rng();
        let name = loop {
            let mut word = |words: &[&'static str]| *words.choose(&mut random).unwrap_or(&"VAULT");
            let name = format!("{}_{}_{}", word(&FIRST), word(&SECOND), word(&LAST));
            if !taken.contains_key(&name) {
                break name;
            }
        };
        let mut bytes = [0; LENGTH];
        random.fill(&mut bytes[..]);
        let value = canary::value(&name, &bytes);
        Self { name, value: value.as_str().into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canaries_differ_and_shadow_no_variable() {
        let none = BTreeMap::<String, ()>::new();
        let (one, other) = (Canary::generate(&none), Canary::generate(&none));
        assert_ne!(one.value, other.value);
        assert!(canary::is_canary(&one.name, one.value.0.expose()));
        let taken: BTreeMap<String, ()> = (0..200).map(|_| (Canary::generate(&none).name, ())).collect();
        for _ in 0..20 {
            assert!(!taken.contains_key(&Canary::generate(&taken).name));
        }
    }
}
