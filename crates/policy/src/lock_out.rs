//! Locks a bottle that repeatedly sends parts of credentials that its agent does not hold.
//!
//! Each denial because of a known secret tells the agent whether its text is part of that secret. An honest mistake
//! causes a few such hits; more indicate that the agent is guessing. The egress proxy and the git gate report each new
//! [`Piece`] to their bundle, which counts the pieces of the whole bottle (`bottle_daemon::Lockout`). When the count
//! reaches [`HITS`], the bundle locks the entire bottle until the run ends.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::names::Slug;

/// The number of distinct pieces, over all requests and pushes, that locks a bottle. Repeating the same pasted
/// credential counts as one piece, or as two if an encoding changes its letters. An agent that guesses learns
/// at most this many facts about the secrets.
pub const HITS: usize = 5;

/// The minimum number of letters and digits for a match that ignores case and punctuation.
const LETTERS_ALONE: usize = 12;

/// Identifies a piece of a secret that a text contains. The value does not depend on the place or the common encoding
/// in which the piece was found, so that the values of different sidecars can be compared. The value does not contain
/// the piece.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Piece([u8; 32]);

impl Piece {
    /// Identifies the piece `matched`, which consists of the characters of the secret that a text contains.
    #[must_use]
    pub fn of(matched: &[u8]) -> Self {
        let is_letter = |byte: &&u8| byte.is_ascii_alphanumeric();
        let mut hash = Sha256::new_with_prefix(b"bottle piece\0");
        if matched.iter().filter(is_letter).count() < LETTERS_ALONE {
            hash.update(matched);
        } else {
            // The scanner also searches for only the letters and digits of a secret, ignoring case. Both searches must
            // identify the same text as the same piece.
            matched.iter().filter(is_letter).for_each(|byte| hash.update([byte.to_ascii_lowercase()]));
        }
        Self(hash.finalize().into())
    }
}

/// Formats the first bytes, which suffice to distinguish pieces.
impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, second, third, fourth, ..] = self.0;
        write!(f, "Piece({first:02x}{second:02x}{third:02x}{fourth:02x})")
    }
}

/// The denial message while a bottle is locked. The message is the same for every request and push, so the message
/// reveals nothing about a secret.
pub const SENTENCE: &str = "This bottle is locked: it sent parts of credentials that its agent does not hold, again \
                            and again. Every request and every push is denied now. Only the user can end that: \
                            `bottle stop` ends this run, and `bottle resume` or `bottle start` begins a new one, \
                            which is not locked. Stop here and tell the user.";

/// Why a bottle is locked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockOut {
    /// The daemon that found the last piece: `egress` or `git-gate`.
    pub daemon: String,
    /// The number of distinct pieces that all daemons of the bottle found.
    pub hits: usize,
    /// The destinations of the pieces: hosts, or repositories of the git gate. The number of destinations is at most
    /// `hits`. No destination contains a secret.
    pub places: Vec<String>,
    /// The parent of this bottle, if this bottle is locked only because its parent is locked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Slug>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_does_not_depend_on_case_and_punctuation_unless_it_is_short() {
        let same = |one: &str, other: &str| Piece::of(one.as_bytes()) == Piece::of(other.as_bytes());
        assert!(same("Zq7-Kd93vXwpT2m", "zq7kd93vxwpt2m"));
        assert!(!same("Zq7-Kd93vXwpT2m", "Zq7-Kd93vXwpT2"));
        // The text has too few letters for the search that ignores punctuation, so every character is compared.
        assert!(!same("a!b@c#d$e%f^", "a!b@c#d$e%f"));
    }
}
