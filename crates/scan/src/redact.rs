//! Masks known secrets in log lines.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use aho_corasick::{AhoCorasick, AhoCorasickKind, Match};
use bottle_policy::secret::Secret;

use crate::secret_spellings::{self, Form};

/// The text that replaces a secret.
pub const MASK: &str = "[redacted]";

/// Secrets of at least this many bytes are masked at any position of a text and in every supported encoding. Shorter
/// secrets would match by chance in encoded text, so they are masked only if they appear unencoded and as a complete
/// word.
pub const SHORTEST_ANYWHERE: usize = 8;

/// The minimum length of a secret that is masked, in bytes. Short values such as `1` or `yes` are easy to guess, and
/// masking such values would garble every line.
pub const SHORTEST_MASKED: usize = 4;

/// The error that the known secrets exceed the capacity of one search, which is several gigabytes, or that one secret
/// is longer than the search allows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the known secrets are too large to search for")]
pub struct TooLarge;

/// Masks known secrets in every supported encoding and in upper or lower case, in one pass. A secret shorter than
/// [`SHORTEST_ANYWHERE`] is masked only as a complete word. A secret shorter than [`SHORTEST_MASKED`] is not masked.
/// The complete value is masked, including its public parts. Agents cannot see logs and screens, so a mask reveals
/// nothing to an agent.
///
/// Callers must redact a text before truncating it, because a truncated secret is not found. The search tables contain
/// the secrets and cannot be wiped, so a redactor must exist only in processes that are not dumpable. Intermediate
/// copies of the secrets are wiped from memory.
pub struct Redactor {
    search: AhoCorasick,
    /// For each pattern of `search`: whether only a complete word is a match.
    whole_word: Vec<bool>,
}

impl Redactor {
    /// Prepares a redactor for `secrets`. Whitespace at the start and end of a value is ignored.
    ///
    /// # Errors
    /// Fails with [`TooLarge`] if the search cannot be built. In this case, the caller must log nothing.
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a Secret>) -> Result<Self, TooLarge> {
        let mut patterns = Vec::new();
        let mut whole_word = Vec::new();
        for secret in secrets {
            let value = secret.expose().trim();
            if value.len() < SHORTEST_MASKED {
                continue;
            }
            let short = value.len() < SHORTEST_ANYWHERE;
            let forms =
                if short { vec![secret_spellings::plain(value)] } else { secret_spellings::all(value) };
            whole_word.extend(forms.iter().map(|_| short));
            patterns.extend(forms);
        }
        Ok(Self { search: search(&patterns)?, whole_word })
    }

    /// Replaces every secret in `text` by [`MASK`]. The result is borrowed if `text` contains no secret.
    #[must_use]
    pub fn redact<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match self.redact_bytes(text.as_bytes()) {
            Cow::Borrowed(_) => Cow::Borrowed(text),
            // All search patterns begin and end at character boundaries, so this conversion is lossless.
            Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
        }
    }

    /// Works like [`redact`](Self::redact), but for text that may be invalid UTF-8.
    #[must_use]
    pub fn redact_bytes<'t>(&self, text: &'t [u8]) -> Cow<'t, [u8]> {
        self.redact_with_offsets(text, &mut [])
    }

    /// Works like [`redact_bytes`](Self::redact_bytes). Also changes `offsets`, which are sorted offsets in `text`, to
    /// the offsets of the same places in the result. An offset inside a secret becomes the end of its mask.
    #[must_use]
    pub fn redact_with_offsets<'t>(&self, text: &'t [u8], offsets: &mut [usize]) -> Cow<'t, [u8]> {
        let found = self.found(text);
        if found.is_empty() {
            return Cow::Borrowed(text);
        }
        let mut kept = Vec::with_capacity(text.len());
        let mut at = 0;
        let mut offsets = offsets.iter_mut().peekable();
        for range in found {
            while let Some(offset) = offsets.next_if(|offset| **offset <= range.start) {
                *offset = kept.len() + *offset - at;
            }
            kept.extend_from_slice(&text[at..range.start]);
            kept.extend_from_slice(MASK.as_bytes());
            at = range.end;
            while let Some(offset) = offsets.next_if(|offset| **offset < at) {
                *offset = kept.len();
            }
        }
        offsets.for_each(|offset| *offset = kept.len() + *offset - at);
        kept.extend_from_slice(&text[at..]);
        Cow::Owned(kept)
    }

    /// Returns the sorted ranges of all secrets in `text`. Overlapping ranges are merged, so that no part of a secret
    /// remains.
    fn found(&self, text: &[u8]) -> Vec<Range<usize>> {
        let counts =
            |hit: &Match| !self.whole_word[hit.pattern().as_usize()] || is_whole_word(text, &hit.range());
        merged(self.search.find_overlapping_iter(text).filter(counts).map(|hit| hit.range()))
    }
}

/// Builds the search for patterns.
pub(crate) fn search(patterns: &[Form]) -> Result<AhoCorasick, TooLarge> {
    AhoCorasick::builder()
        .kind(Some(AhoCorasickKind::ContiguousNFA))
        // Case is ignored, because a log line contains host names in lower case even if the client sent capitals.
        .ascii_case_insensitive(true)
        .build(patterns.iter().map(|form| form.as_slice()))
        .map_err(|_| TooLarge)
}

/// Sorts ranges, and merges ranges that overlap or touch.
pub(crate) fn merged(ranges: impl Iterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    let mut ranges: Vec<_> = ranges.collect();
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    ranges.dedup_by(|next, merged| {
        let joins = next.start <= merged.end;
        if joins {
            merged.end = merged.end.max(next.end);
        }
        joins
    });
    ranges
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redactor").field("patterns", &self.whole_word.len()).finish_non_exhaustive()
    }
}

fn is_whole_word(text: &[u8], range: &Range<usize>) -> bool {
    let outside = |byte: Option<&u8>| byte.is_none_or(|byte| !byte.is_ascii_alphanumeric());
    let before = range.start.checked_sub(1).and_then(|at| text.get(at));
    outside(before) && outside(text.get(range.end))
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
    use proptest::prelude::*;

    use super::*;

    fn redactor(secrets: &[&str]) -> Redactor {
        let secrets: Vec<Secret> = secrets.iter().map(|text| Secret::new((*text).to_owned())).collect();
        Redactor::new(&secrets).expect("redactor")
    }

    #[test]
    fn masks_secrets_only() {
        let redactor = redactor(&["sk-ant-0123456789", "pass"]);
        for (text, masked) in [
            ("nothing here", "nothing here"),
            ("key=sk-ant-0123456789&x", "key=[redacted]&x"),
            ("sk-ant-0123456789sk-ant-0123456789", "[redacted]"),
            ("736b2d616e742d30313233343536373839", "[redacted]"),
            ("a pass, passport, by-pass", "a [redacted], passport, by-[redacted]"),
            ("ünd sk-ant-0123456789 ü", "ünd [redacted] ü"),
            ("Sk-Ant-0123456789.example.com", "[redacted].example.com"),
            ("a PASS, Passport", "a [redacted], Passport"),
            ("https://example.com/SK%2DANT%2d0123456789", "https://example.com/[redacted]"),
        ] {
            assert_eq!(redactor.redact(text), masked, "{text}");
        }
        assert!(matches!(redactor.redact("plain"), Cow::Borrowed("plain")));
        assert_eq!(redactor.redact_bytes(b"\xffsk-ant-0123456789\xfe"), b"\xff[redacted]\xfe".as_slice());
    }

    #[test]
    fn offsets_move_with_the_text() {
        let redactor = redactor(&["hunter2-hunter2"]);
        let mut offsets: Vec<usize> = (0..=21).collect();
        let masked = redactor.redact_with_offsets(b"a: hunter2-hunter2 b\n", &mut offsets);
        assert_eq!(masked.as_ref(), b"a: [redacted] b\n");
        let inside = [13; 14];
        assert_eq!(offsets, [&[0, 1, 2, 3][..], &inside, &[13, 14, 15, 16]].concat());
        let mut untouched = [1, 2];
        let _ = redactor.redact_with_offsets(b"abc", &mut untouched);
        assert_eq!(untouched, [1, 2]);
    }

    #[test]
    fn masks_overlapping_secrets_completely() {
        let redactor = redactor(&["abcdefgh1234", "1234stuvwxyz", "efgh"]);
        assert_eq!(redactor.redact("<abcdefgh1234stuvwxyz>"), "<[redacted]>");
    }

    #[test]
    fn ignores_very_short_values() {
        let redactor = redactor(&["", "1", "yes", "\n"]);
        assert_eq!(redactor.redact("1 yes 11"), "1 yes 11");
        assert!(!format!("{redactor:?}").contains("yes"));
    }

    proptest! {
        #[test]
        fn masks_every_spelling(secret in "[ -~é]{6}[!-~]{6}", before in "[a-z]{0,4}", after in "[a-z]{0,4}") {
            let secret = secret.trim().to_owned();
            prop_assume!(secret.len() >= SHORTEST_ANYWHERE);
            let redactor = redactor(&[&secret]);
            let joined = format!("{before}{secret}{after}");
            let json = serde_json::Value::from(joined.as_str()).to_string();
            for text in [joined.clone(), json, hex::encode(&joined), STANDARD.encode(&joined), URL_SAFE_NO_PAD.encode(&joined)] {
                let redacted = redactor.redact(&text);
                prop_assert!(redacted.contains(MASK), "{text}");
                prop_assert!(!redacted.contains(secret.as_str()));
            }
        }

        #[test]
        fn no_bytes_panic(secrets in prop::collection::vec(any::<String>(), 0..4), text in prop::collection::vec(any::<u8>(), 0..200)) {
            let secrets: Vec<Secret> = secrets.into_iter().map(Secret::new).collect();
            let redactor = Redactor::new(&secrets).expect("redactor");
            let _ = redactor.redact_bytes(&text);
        }
    }
}
