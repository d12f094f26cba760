//! A secret that opens nothing, and how the bottle's own probe tells it from one that does.

use sha2::{Digest, Sha256};

/// Characters of a value: what keys are made of.
const LETTERS: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

/// Characters at the end of a value that follow from the rest.
const SEAL: usize = 8;

/// The canary of these random bytes for the variable `name`: as many characters, and a few that make it known
/// to [`is_one`].
#[must_use]
pub fn value(name: &str, random: &[u8]) -> String {
    let body: String = random.iter().map(|byte| letter(*byte)).collect();
    let seal = seal(name, &body);
    body + &seal
}

/// Whether `value` was made by [`value`] for this variable. No key of somebody's is, but by chance.
#[must_use]
pub fn is_one(name: &str, value: &str) -> bool {
    let Some((body, end)) = value.len().checked_sub(SEAL).and_then(|at| value.split_at_checked(at)) else {
        return false;
    };
    !body.is_empty() && seal(name, body) == end
}

fn seal(name: &str, body: &str) -> String {
    let digest = Sha256::new().chain_update(name).chain_update([0]).chain_update(body).finalize();
    digest.iter().take(SEAL).map(|byte| letter(*byte)).collect()
}

fn letter(byte: u8) -> char {
    char::from(LETTERS[usize::from(byte) % LETTERS.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_canary_is_known_and_nothing_else_is() {
        let made = value("HARBOR_SYNC_KEY", &[7; 32]);
        assert_eq!(made.len(), 40);
        assert!(is_one("HARBOR_SYNC_KEY", &made));
        assert!(!is_one("HARBOR_SYNC_TOKEN", &made));
        for other in ["", "short", "Zq7Kd93vXwpT2mB8ySe4Lh5Rf0NcQw1Er2Ty3Ui4", "ünicode-ünicode-ü"] {
            assert!(!is_one("HARBOR_SYNC_KEY", other), "{other}");
        }
    }
}
