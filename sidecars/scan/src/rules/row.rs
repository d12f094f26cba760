//! One built-in rule, as a row of a table.

use super::armour::Armour;
use crate::finding::Severity;

/// A checksum in a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Check {
    /// The last six characters are the CRC-32 of the characters after the prefix, in base 62. A token with a
    /// wrong checksum only warns.
    Crc32,
}

/// Checks the text before and after a match.
pub(crate) type Near = fn(&[u8], &[u8]) -> bool;

/// One kind of token or phrase. Rows are constants; a test runs each row's examples.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    /// The rule's id, as in findings and the user's configuration.
    pub(crate) id: &'static str,
    /// The description for the user, to follow "this looks like".
    pub(crate) words: &'static str,
    /// The pattern runs only at one of these keys, in either case. At least three bytes.
    pub(crate) keys: &'static [&'static str],
    /// A byte pattern. Begins at the key, or up to `lookbehind` bytes before. Group 1, if present, is the secret.
    /// `@=` matches the text between a name and its value.
    pub(crate) pattern: &'static str,
    /// The most bytes before the key at which the pattern may begin.
    pub(crate) lookbehind: usize,
    /// The most bytes from the key on that the pattern reads; bounds its cost.
    pub(crate) longest: usize,
    /// The least entropy of the secret, in bits per byte, so that `xxxx…` does not match.
    pub(crate) entropy: f64,
    /// Instead of a pattern: the start and end of a body of any length.
    pub(crate) armour: Option<Armour>,
    /// A condition on the text around a match: gets at most [`BESIDE`] bytes before and after.
    pub(crate) beside: Option<Near>,
    /// The checksum, if any.
    pub(crate) check: Option<Check>,
    /// The severity of a match.
    pub(crate) severity: Severity,
    /// Matching examples; `<36w>` stands for generated characters, see the test.
    #[cfg_attr(not(test), expect(dead_code, reason = "read by the test of the tables"))]
    pub(crate) like: &'static [&'static str],
    /// Examples that must not match.
    #[cfg_attr(not(test), expect(dead_code, reason = "read by the test of the tables"))]
    pub(crate) unlike: &'static [&'static str],
}

/// The most bytes around a match that count as near.
pub(super) const BESIDE: usize = 3000;

/// The usual entropy floor, in bits per byte: `xxxx` is below it, words are above.
pub(super) const USUAL_FLOOR: f64 = 2.5;

/// Makes a row with the usual bounds.
pub(crate) const fn row(
    id: &'static str,
    words: &'static str,
    keys: &'static [&'static str],
    pattern: &'static str,
    like: &'static [&'static str],
    unlike: &'static [&'static str],
) -> Row {
    Row {
        id,
        words,
        keys,
        pattern,
        lookbehind: 0,
        longest: 512,
        entropy: USUAL_FLOOR,
        armour: None,
        beside: None,
        check: None,
        severity: Severity::Block,
        like,
        unlike,
    }
}

/// Makes a row for a PEM-like key of any length.
pub(crate) const fn armoured(
    id: &'static str,
    words: &'static str,
    keys: &'static [&'static str],
    armour: Armour,
    like: &'static [&'static str],
    unlike: &'static [&'static str],
) -> Row {
    let mut made = row(id, words, keys, "", like, unlike);
    made.armour = Some(armour);
    made
}

impl Row {
    /// Lets the pattern begin up to `bytes` before the key.
    pub(crate) const fn lookbehind(mut self, bytes: usize) -> Self {
        self.lookbehind = bytes;
        self
    }

    /// Lets the pattern read `bytes` from the key on.
    pub(crate) const fn reach(mut self, bytes: usize) -> Self {
        self.longest = bytes;
        self
    }

    /// Requires this condition on the text around a match, in any order of the parts.
    pub(crate) const fn beside(mut self, near: Near) -> Self {
        self.beside = Some(near);
        self
    }

    /// Sets another entropy floor.
    pub(crate) const fn entropy(mut self, bits: f64) -> Self {
        self.entropy = bits;
        self
    }

    /// Requires a checksum in the last six characters.
    pub(crate) const fn crc(mut self) -> Self {
        self.check = Some(Check::Crc32);
        self
    }

    /// Lowers the severity to a warning.
    pub(crate) const fn warn(mut self) -> Self {
        self.severity = Severity::Warn;
        self
    }
}
