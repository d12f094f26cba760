//! `BOTTLE_SENSITIVE_PREFIXES`: the prefixes of host variables whose values the sidecars block, although the bottle
//! does not get these variables.
//!
//! Project files, shell histories and prompts may contain the same values, so an agent may find them. The sidecars
//! block the values wherever they come from.

use std::collections::BTreeSet;

use bottle_host::Host;
use bottle_policy::secret::Secret;
use bottle_protocol::session::guest::SecretText;
use bottle_scan::SHORTEST_ANYWHERE;

use super::{Plan, Value};

/// The name of the variable that lists the prefixes.
pub const VARIABLE: &str = "BOTTLE_SENSITIVE_PREFIXES";

/// The maximum total size of the values in bytes. The size is limited because every launch sends all values to the
/// sidecars. Larger values are an error.
const MAX_BYTES: usize = 128 << 10;

/// The variables whose values are sensitive.
#[derive(Debug, Default)]
pub struct SensitiveEnv {
    /// The values of the sensitive variables, without duplicates.
    pub values: Vec<SecretText>,
    /// The variables' names, for messages.
    pub names: Vec<String>,
    /// The names of variables whose value is too short to scan for.
    pub short: Vec<String>,
}

/// Why sensitive variables cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SensitiveEnvError {
    /// A prefix is not the beginning of a valid variable name.
    #[error("{VARIABLE} names {0:?}, which no variable's name begins with")]
    NoPrefix(String),
    /// The total size of the values exceeds [`MAX_BYTES`].
    #[error("{VARIABLE} marks more than {} KiB of values", MAX_BYTES >> 10)]
    TooLarge,
}

impl SensitiveEnv {
    /// Collects the variables of the host and of the bottle whose names begin with one of the prefixes.
    ///
    /// # Errors
    /// Returns [`SensitiveEnvError`] if a prefix is invalid or the values are too large.
    pub fn of(host: &Host, plan: &Plan) -> Result<Self, SensitiveEnvError> {
        let prefixes = prefixes(host.var(VARIABLE).unwrap_or_default())?;
        let has = |name: &str| prefixes.iter().any(|prefix| name.starts_with(prefix)) && name != VARIABLE;
        let from_host = host.env.iter().filter_map(|(name, value)| Some((name.to_str()?, value.to_str()?)));
        let from_bottle = plan.env.iter().filter_map(|(name, value)| match value {
            Value::Literal(text) => Some((name.as_str(), text.as_str())),
            // The value of this variable is already a known secret.
            Value::Secret(_) => None,
        });
        let mut sensitive = Self::default();
        let mut seen = BTreeSet::new();
        let mut bytes = 0;
        for (name, value) in from_host.chain(from_bottle).filter(|(name, _)| has(name)) {
            let value = value.trim();
            if value.len() < SHORTEST_ANYWHERE {
                sensitive.short.push(name.to_owned());
                continue;
            }
            if !sensitive.names.iter().any(|known| known == name) {
                sensitive.names.push(name.to_owned());
            }
            if seen.insert(value) {
                bytes += value.len();
                sensitive.values.push(SecretText(Secret::new(value.to_owned())));
            }
        }
        if bytes > MAX_BYTES { Err(SensitiveEnvError::TooLarge) } else { Ok(sensitive) }
    }
}

/// Parses a list of prefixes that are separated by commas, colons or spaces.
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
    fn parses_prefixes_of_variable_names() {
        assert_eq!(prefixes(""), Ok(vec![]));
        assert_eq!(prefixes(" AWS_,STRIPE_:_x "), Ok(vec!["AWS_", "STRIPE_", "_x"]));
        for wrong in ["AWS_*", "1X", "A-B", "é"] {
            assert_eq!(prefixes(wrong), Err(SensitiveEnvError::NoPrefix(wrong.to_owned())));
        }
    }
}
