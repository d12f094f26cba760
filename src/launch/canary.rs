//! A secret that opens nothing, under a name that invites: whoever sends it away was looking for secrets.

use std::collections::BTreeMap;

use bottle_contract::canary;
use bottle_contract::session::guest::SecretText;
use rand::RngExt as _;
use rand::seq::IndexedRandom as _;

/// First words of names, as projects and hosts have them.
const FIRST: [&str; 16] = [
    "HARBOR", "BEACON", "ATLAS", "ORCHID", "SUMMIT", "RIVER", "COBALT", "MERCURY", "CEDAR", "FALCON",
    "AURORA", "GRANITE", "LANTERN", "MERIDIAN", "PRAIRIE", "ZEPHYR",
];
/// What the secret would be for.
const SECOND: [&str; 8] = ["CIPHER", "DEPLOY", "SIGNING", "BACKUP", "LEDGER", "BILLING", "SYNC", "ADMIN"];
/// What it would be.
const LAST: [&str; 4] = ["SECRET", "TOKEN", "KEY", "PASSWORD"];

/// Random characters of a value.
const LENGTH: usize = 32;

/// One launch's canary: a variable of the agent's environment, known to the proxy.
#[derive(Debug, Clone)]
pub struct Canary {
    /// The variable.
    pub name: String,
    /// Its value.
    pub value: SecretText,
}

impl Canary {
    /// A new one, under a name that `taken` does not hold.
    #[must_use]
    pub fn draw<V>(taken: &BTreeMap<String, V>) -> Self {
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
    fn each_launch_has_another_and_none_hides_a_variable() {
        let none = BTreeMap::<String, ()>::new();
        let (one, other) = (Canary::draw(&none), Canary::draw(&none));
        assert_ne!(one.value, other.value);
        assert!(canary::is_canary(&one.name, one.value.0.expose()));
        let taken: BTreeMap<String, ()> = (0..200).map(|_| (Canary::draw(&none).name, ())).collect();
        for _ in 0..20 {
            assert!(!taken.contains_key(&Canary::draw(&taken).name));
        }
    }
}
