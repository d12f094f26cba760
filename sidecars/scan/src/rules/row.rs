//! What one built-in rule is: a row of a table.

use super::armour::Armour;
use crate::finding::Severity;

/// Which arithmetic a token carries in itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Check {
    /// The last six characters are the CRC-32 of what stands after the prefix, in base 62. A token whose sum
    /// is wrong is only worth a warning.
    Crc32,
}

/// Judges what is before and behind a match.
pub(crate) type Near = fn(&[u8], &[u8]) -> bool;

/// One kind of token or phrase. Rows are constants; a test runs the examples of each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    /// Short name, as it stands in findings and in a user's configuration.
    pub(crate) id: &'static str,
    /// For a user, to be put after "this looks like".
    pub(crate) words: &'static str,
    /// One of these must be there, in either case, or the pattern is never tried. At least three bytes.
    pub(crate) keys: &'static [&'static str],
    /// Over bytes. Begins at the key, unless `lead` lets it begin earlier. Group 1, if it has one, is the secret.
    /// `@=` stands for what may be between a name and its value.
    pub(crate) pattern: &'static str,
    /// How many bytes before the key the pattern may begin.
    pub(crate) lead: usize,
    /// How many bytes from the key on the pattern may see: what bounds its cost.
    pub(crate) longest: usize,
    /// Bits per byte that the secret must have at least, so that `xxxx…` is none.
    pub(crate) entropy: f64,
    /// In place of a pattern: what opens and ends a body of any length.
    pub(crate) armour: Option<Armour>,
    /// What else has to stand near a match: told what is before and behind it, [`BESIDE`] bytes at most of each.
    pub(crate) beside: Option<Near>,
    /// A checksum.
    pub(crate) check: Option<Check>,
    /// What a match is worth.
    pub(crate) severity: Severity,
    /// Texts in which it is found: `<36w>` stands for so many made-up characters, see the test.
    #[cfg_attr(not(test), expect(dead_code, reason = "read by the test of the tables"))]
    pub(crate) like: &'static [&'static str],
    /// Texts in which it is not.
    #[cfg_attr(not(test), expect(dead_code, reason = "read by the test of the tables"))]
    pub(crate) unlike: &'static [&'static str],
}

/// How far from a match something else counts as near.
pub(super) const BESIDE: usize = 3000;

/// Bits per byte that most secrets have at least: `xxxx` has not, and words have.
pub(super) const USUAL_FLOOR: f64 = 2.5;

/// A row with the usual bounds.
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
        lead: 0,
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

/// A row of a key that stands in lines, as long as it is.
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
    /// The pattern may begin `bytes` before the key.
    pub(crate) const fn lead(mut self, bytes: usize) -> Self {
        self.lead = bytes;
        self
    }

    /// The pattern may reach `bytes` from the key on.
    pub(crate) const fn reach(mut self, bytes: usize) -> Self {
        self.longest = bytes;
        self
    }

    /// A match only where this is true of what is near it, in whatever order the parts of the whole stand.
    pub(crate) const fn beside(mut self, near: Near) -> Self {
        self.beside = Some(near);
        self
    }

    /// Another floor than the usual one.
    pub(crate) const fn entropy(mut self, bits: f64) -> Self {
        self.entropy = bits;
        self
    }

    /// With a checksum in its last six characters.
    pub(crate) const fn crc(mut self) -> Self {
        self.check = Some(Check::Crc32);
        self
    }

    /// Worth a warning only.
    pub(crate) const fn warn(mut self) -> Self {
        self.severity = Severity::Warn;
        self
    }
}
