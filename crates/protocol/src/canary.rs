//! Generates canaries: decoy secrets that grant no access and that the guest's isolation probe recognizes.

use sha2::{Digest, Sha256};

/// The characters of a canary. Common API keys use the same characters.
const LETTERS: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

/// Length of the checksum at the end of a canary, in characters.
const CHECKSUM: usize = 8;

/// Generates the canary for the variable `name`: one character per random byte, then a checksum that
/// [`is_canary`] verifies.
#[must_use]
pub fn value(name: &str, random: &[u8]) -> String {
    let body: String = random.iter().map(|byte| letter(*byte)).collect();
    let checksum = checksum(name, &body);
    body + &checksum
}

/// Whether `value` is a canary that [`value`] generated for the variable `name`. Another value matches only by chance.
#[must_use]
pub fn is_canary(name: &str, value: &str) -> bool {
    let Some((body, end)) = value.len().checked_sub(CHECKSUM).and_then(|at| value.split_at_checked(at))
    else {
        return false;
    };
    !body.is_empty() && checksum(name, body) == end
}

fn checksum(name: &str, body: &str) -> String {
    let digest = Sha256::new().chain_update(name).chain_update([0]).chain_update(body).finalize();
    digest.iter().take(CHECKSUM).map(|byte| letter(*byte)).collect()
}

fn letter(byte: u8) -> char {
    char::from(LETTERS[usize::from(byte) % LETTERS.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognizes_its_own_canaries_only() {
        let made = value("HARBOR_SYNC_KEY", &[7; 32]);
        assert_eq!(made.len(), 40);
        assert!(is_canary("HARBOR_SYNC_KEY", &made));
        assert!(!is_canary("HARBOR_SYNC_TOKEN", &made));
        for other in ["", "short", "Zq7Kd93vXwpT2mB8ySe4Lh5Rf0NcQw1Er2Ty3Ui4", "ünicode-ünicode-ü"] {
            assert!(!is_canary("HARBOR_SYNC_KEY", other), "{other}");
        }
    }
}
