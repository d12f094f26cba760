//! Defines [`Row`], the description of one built-in rule in the tables of rules.

use super::pem_keys::Armour;
use crate::finding::Severity;

/// A checksum that tokens of one kind contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Check {
    /// The last six characters are the CRC-32, in base 62, of the other characters after the prefix. A token
    /// with a wrong checksum is only a warning.
    Crc32,
}

/// Checks a condition on the text before and the text after a match.
pub(crate) type Near = fn(&[u8], &[u8]) -> bool;

/// Checks a condition on the name of a secret. The arguments are the text before the match, the matched text before the
/// secret, and the secret.
pub(crate) type Place = fn(&[u8], &[u8], &[u8]) -> bool;

/// One kind of token or phrase. All rows are constants, and a test runs the examples of each row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    /// The rule's id, as it appears in findings and in the user's configuration.
    pub(crate) id: &'static str,
    /// A description for the user, which completes the sentence "this looks like …".
    pub(crate) words: &'static str,
    /// The fixed strings that the text is searched for. The pattern runs only where one of them is found. Case is
    /// ignored. Each key has at least three bytes.
    pub(crate) keys: &'static [&'static str],
    /// A regular expression on bytes. A match begins at the key, or at most `lookbehind` bytes before it. If the
    /// pattern has groups, the first group that matches is the secret. The shorthands `@=`, `@~` and `@!` match the text
    /// between a name and its value. The shorthand `@//` matches a login in a URL.
    pub(crate) pattern: &'static str,
    /// The maximum number of bytes before the key at which a match may begin.
    pub(crate) lookbehind: usize,
    /// The maximum number of bytes, counted from the start of the key, that the pattern reads. This limit bounds the
    /// cost of the pattern.
    pub(crate) longest: usize,
    /// The minimum entropy of the secret, in bits per byte. This floor prevents matches of text such as `xxxx…`.
    pub(crate) entropy: f64,
    /// The marks around the body of a private key. The rules for private keys use them instead of a pattern, because a
    /// body may have any length.
    pub(crate) armour: Option<Armour>,
    /// A condition on the text around a match. The function receives at most [`BESIDE`] bytes before the match and at
    /// most [`BESIDE`] bytes after the match.
    pub(crate) beside: Option<Near>,
    /// A condition on the name of the secret, for rules whose key is a part of the name and not of the secret. The
    /// function receives at most [`BESIDE`] bytes before the match. The key may then stand within a longer word.
    pub(crate) place: Option<Place>,
    /// The minimum number of consecutive hexadecimal digits in the secret, or 0. The pattern runs only where the text
    /// contains such a run, because a search for the run costs less than the pattern.
    pub(crate) hex_digits: usize,
    /// The checksum of the token, if it has one.
    pub(crate) check: Option<Check>,
    /// The severity of a match.
    pub(crate) severity: Severity,
    /// Examples that must match. The test replaces a placeholder such as `<36w>` by 36 generated characters.
    #[cfg_attr(not(test), expect(dead_code, reason = "read by the test of the tables"))]
    pub(crate) like: &'static [&'static str],
    /// Examples that must not match.
    #[cfg_attr(not(test), expect(dead_code, reason = "read by the test of the tables"))]
    pub(crate) unlike: &'static [&'static str],
}

/// The maximum number of bytes on each side of a match that a condition in `Row::beside` receives.
pub(super) const BESIDE: usize = 3000;

/// The usual minimum entropy of a secret, in bits per byte. The entropy of `xxxx` is below this floor, and the entropy
/// of words is above it.
pub(super) const USUAL_FLOOR: f64 = 2.5;

/// Builds a row with the usual limits.
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
        place: None,
        hex_digits: 0,
        check: None,
        severity: Severity::Block,
        like,
        unlike,
    }
}

/// Builds the row of a PEM-like key, which may have any length.
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
    /// Allows a match to begin up to `bytes` bytes before the key.
    pub(crate) const fn lookbehind(mut self, bytes: usize) -> Self {
        self.lookbehind = bytes;
        self
    }

    /// Allows the pattern to read up to `bytes` bytes, counted from the start of the key.
    pub(crate) const fn reach(mut self, bytes: usize) -> Self {
        self.longest = bytes;
        self
    }

    /// Adds a condition on the text before and after a match. The condition is used for formats in which other fields
    /// may precede or follow the secret.
    pub(crate) const fn beside(mut self, near: Near) -> Self {
        self.beside = Some(near);
        self
    }

    /// Adds a condition on the name of the secret. The key of the rule may then stand within a longer word.
    pub(crate) const fn place(mut self, is_place: Place) -> Self {
        self.place = Some(is_place);
        self
    }

    /// Runs the pattern only where the text contains at least `count` consecutive hexadecimal digits.
    pub(crate) const fn hex_digits(mut self, count: usize) -> Self {
        self.hex_digits = count;
        self
    }

    /// Replaces the usual entropy floor.
    pub(crate) const fn entropy(mut self, bits: f64) -> Self {
        self.entropy = bits;
        self
    }

    /// Expects a checksum in the last six characters.
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
