//! `BOTTLE_SENSITIVE_PREFIXES`: variables whose values must not leave a bottle, though nothing gives them to one.
//!
//! The same values stand in files of a project, in shell histories, in what an agent is told: whoever marks them
//! has the guards know them wherever they come from.

use std::collections::BTreeSet;

use bottle_contract::secret::Secret;
use bottle_contract::session::guest::SecretText;
use bottle_scan::SHORTEST_ANYWHERE;

use super::{Plan, Value};
use crate::host::Host;

/// The variable.
pub const VARIABLE: &str = "BOTTLE_SENSITIVE_PREFIXES";

/// More bytes than this, of all values together, are refused: they are sent at every launch.
const MOST_BYTES: usize = 128 << 10;

/// What is marked.
#[derive(Debug, Default)]
pub struct SensitiveEnv {
    /// The values, each once.
    pub values: Vec<SecretText>,
    /// The variables they are of, for a user.
    pub names: Vec<String>,
    /// Variables whose value is too short to be looked for.
    pub short: Vec<String>,
}

/// Prefixes that cannot be meant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SensitiveEnvError {
    /// No part of a variable's name.
    #[error("{VARIABLE} names {0:?}, which no variable's name begins with")]
    NoPrefix(String),
    /// Everything that would be marked is too long.
    #[error("{VARIABLE} marks more than {} KiB of values", MOST_BYTES >> 10)]
    TooLarge,
}

impl SensitiveEnv {
    /// The values of the host's variables, and of the bottle's own, whose names begin with one of the prefixes.
    ///
    /// # Errors
    /// [`SensitiveEnvError`], naming the prefix.
    pub fn of(host: &Host, plan: &Plan) -> Result<Self, SensitiveEnvError> {
        let prefixes = prefixes(host.var(VARIABLE).unwrap_or_default())?;
        let has = |name: &str| prefixes.iter().any(|prefix| name.starts_with(prefix)) && name != VARIABLE;
        let theirs = host.env.iter().filter_map(|(name, value)| Some((name.to_str()?, value.to_str()?)));
        let own = plan.env.iter().filter_map(|(name, value)| match value {
            Value::Literal(text) => Some((name.as_str(), text.as_str())),
            // It is a known secret already.
            Value::Secret(_) => None,
        });
        let mut marked = Self::default();
        let mut seen = BTreeSet::new();
        let mut bytes = 0;
        for (name, value) in theirs.chain(own).filter(|(name, _)| has(name)) {
            let value = value.trim();
            if value.len() < SHORTEST_ANYWHERE {
                marked.short.push(name.to_owned());
                continue;
            }
            if !marked.names.iter().any(|known| known == name) {
                marked.names.push(name.to_owned());
            }
            if seen.insert(value) {
                bytes += value.len();
                marked.values.push(SecretText(Secret::new(value.to_owned())));
            }
        }
        if bytes > MOST_BYTES { Err(SensitiveEnvError::TooLarge) } else { Ok(marked) }
    }
}

/// Separated by commas, colons or spaces.
fn prefixes(text: &str) -> Result<Vec<&str>, SensitiveEnvError> {
    let words = text.split([',', ':', ' ', '\t', '\n']).filter(|word| !word.is_empty());
    words
        .map(|word| {
            let name = word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            let good = name && !word.starts_with(|first: char| first.is_ascii_digit());
            if good { Ok(word) } else { Err(SensitiveEnvError::NoPrefix(word.to_owned())) }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_beginnings_of_names() {
        assert_eq!(prefixes(""), Ok(vec![]));
        assert_eq!(prefixes(" AWS_,STRIPE_:_x "), Ok(vec!["AWS_", "STRIPE_", "_x"]));
        for wrong in ["AWS_*", "1X", "A-B", "é"] {
            assert_eq!(prefixes(wrong), Err(SensitiveEnvError::NoPrefix(wrong.to_owned())));
        }
    }
}
