//! Replaces known secrets in output that is read in parts, in all their spellings.
//!
//! A part may begin or end in the middle of a secret. A reader that has the whole output therefore searches a part
//! together with the bytes around it. A reader of a stream holds back bytes that may be the beginning of a secret.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use aho_corasick::AhoCorasick;
use bottle_policy::secret::Secret;
use zeroize::Zeroizing;

use crate::redact::{SHORTEST_ANYWHERE, TooLarge, search};
use crate::secret_spellings::{self, Form};

/// The maximum length in bytes of a line of a value that is searched as a whole. A longer line is searched in pieces.
const LONGEST: usize = 8192;

/// The maximum number of bytes that a stream holds back because they may be the beginning of a secret.
const PENDING_MAX: usize = 64 * 1024;

/// The known secrets, prepared for the search in output. Each line of a value is searched separately, because a
/// terminal changes line breaks. Lines with fewer than [`SHORTEST_ANYWHERE`] bytes are not searched.
///
/// As for a [`crate::Redactor`], the search ignores the case of letters, and its tables cannot be wiped.
pub struct OutputRedactor {
    search: AhoCorasick,
    /// The spellings in lower case, sorted.
    forms: Vec<Form>,
    /// The spellings in lower case, each reversed, sorted.
    reversed: Vec<Form>,
    longest: usize,
    /// The text that replaces a secret.
    mask: &'static str,
}

impl fmt::Debug for OutputRedactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutputRedactor").field("forms", &self.forms.len()).finish_non_exhaustive()
    }
}

impl OutputRedactor {
    /// Prepares the search for `secrets`, which `mask` replaces.
    ///
    /// # Errors
    /// Fails with [`TooLarge`] if the search cannot be built. In this case, the caller must show no output.
    pub fn new<'s>(
        secrets: impl IntoIterator<Item = &'s Secret>,
        mask: &'static str,
    ) -> Result<Self, TooLarge> {
        let lines = secrets.into_iter().flat_map(|secret| secret.expose().split(['\r', '\n']));
        let pieces = lines.map(str::trim).flat_map(pieces).filter(|piece| piece.len() >= SHORTEST_ANYWHERE);
        let forms = pieces.flat_map(secret_spellings::all);
        let forms = sorted(forms.map(|form| Zeroizing::new(form.to_ascii_lowercase())));
        let reversed = sorted(forms.iter().map(|form| Zeroizing::new(form.iter().rev().copied().collect())));
        let longest = forms.iter().map(|form| form.len()).max().unwrap_or(0);
        Ok(Self { search: search(&forms)?, forms, reversed, longest, mask })
    }

    /// Whether there are no secrets to find.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.forms.is_empty()
    }

    /// The number of bytes before and after a part that [`Self::redact_part`] needs.
    #[must_use]
    pub fn reach(&self) -> usize {
        self.longest
    }

    /// Replaces the secrets in a complete text.
    #[must_use]
    pub fn redact<'t>(&self, text: &'t [u8]) -> Cow<'t, [u8]> {
        self.replace(text, 0, &merged(self.whole(text)))
    }

    /// Replaces the secrets in the bytes `part` of `window`. The window also contains [`Self::reach`] bytes before and
    /// after the part, if the output has them. A secret that begins before the part is removed without a mask, because
    /// its mask is in an earlier part. If the window begins or ends in the middle of a secret, the fragment of the
    /// secret is replaced if it has at least [`SHORTEST_ANYWHERE`] bytes.
    #[must_use]
    pub fn redact_part<'t>(&self, window: &'t [u8], part: Range<usize>) -> Cow<'t, [u8]> {
        let part = part.start.min(window.len())..part.end.min(window.len());
        let Some(bytes) = window.get(part.clone()).filter(|_| !self.is_empty()) else {
            return Cow::Borrowed(window.get(part).unwrap_or_default());
        };
        self.replace(bytes, part.start, &self.around(window))
    }

    /// Replaces the secrets in consecutive parts of `window`, as [`Self::redact_part`] does. The first part begins at
    /// `start`, and `lengths` are the lengths of the parts.
    pub fn redact_parts<'t>(
        &self,
        window: &'t [u8],
        start: usize,
        lengths: impl Iterator<Item = usize>,
    ) -> impl Iterator<Item = Cow<'t, [u8]>> {
        let spans = self.around(window);
        let mut next = start;
        lengths.map(move |length| {
            let start = next.min(window.len());
            next = start.saturating_add(length).min(window.len());
            // The spans are sorted and do not overlap.
            let first = spans.partition_point(|span| span.end <= start);
            let end = spans.partition_point(|span| span.start < next).max(first);
            self.replace(&window[start..next], start, &spans[first..end])
        })
    }

    /// Returns the ranges to replace in a window of an output, sorted and without overlaps: the secrets, and the
    /// fragments of secrets at both ends.
    fn around(&self, window: &[u8]) -> Vec<Range<usize>> {
        let mut spans = self.whole(window);
        let last = self.begun(window);
        spans.extend((last >= SHORTEST_ANYWHERE).then(|| window.len() - last..window.len()));
        let first = self.ended(window);
        spans.extend((first >= SHORTEST_ANYWHERE).then_some(0..first));
        merged(spans)
    }

    /// Begins the redaction of one stream.
    #[must_use]
    pub fn stream(&self) -> StreamRedactor<'_> {
        StreamRedactor { redactor: self, pending: Vec::new() }
    }

    /// Returns the ranges of all secrets, in any order. Overlapping occurrences are included, so that the result does
    /// not depend on the beginning of the text.
    fn whole(&self, text: &[u8]) -> Vec<Range<usize>> {
        if self.is_empty() {
            return Vec::new();
        }
        self.search.find_overlapping_iter(text).map(|found| found.range()).collect()
    }

    /// Returns the length of the longest suffix of `text` that is the beginning of a longer spelling.
    fn begun(&self, text: &[u8]) -> usize {
        let tail = &text[text.len() - text.len().min(self.longest.saturating_sub(1))..];
        longest_beginning(&self.forms, &Zeroizing::new(tail.to_ascii_lowercase()))
    }

    /// Returns the length of the longest prefix of `text` that is the end of a longer spelling.
    fn ended(&self, text: &[u8]) -> usize {
        let head = &text[..text.len().min(self.longest.saturating_sub(1))];
        let reversed = head.iter().rev().map(u8::to_ascii_lowercase).collect::<Vec<u8>>();
        longest_beginning(&self.reversed, &Zeroizing::new(reversed))
    }

    /// Replaces the spans in `bytes`, which begin at the position `start`.
    fn replace<'t>(&self, bytes: &'t [u8], start: usize, spans: &[Range<usize>]) -> Cow<'t, [u8]> {
        let end = start + bytes.len();
        let mut inside = spans.iter().filter(|span| span.start < end && span.end > start).peekable();
        if inside.peek().is_none() {
            return Cow::Borrowed(bytes);
        }
        let mut replaced = Vec::with_capacity(bytes.len());
        let mut done = 0;
        for span in inside {
            let (from, to) = (span.start.saturating_sub(start), (span.end - start).min(bytes.len()));
            replaced.extend_from_slice(&bytes[done..from.max(done)]);
            if span.start >= start {
                replaced.extend_from_slice(self.mask.as_bytes());
            }
            done = to;
        }
        replaced.extend_from_slice(&bytes[done..]);
        Cow::Owned(replaced)
    }
}

/// One stream of output. Bytes that may be the beginning of a secret are held back until more output arrives.
#[derive(Debug)]
pub struct StreamRedactor<'r> {
    redactor: &'r OutputRedactor,
    pending: Vec<u8>,
}

impl StreamRedactor<'_> {
    /// Adds output, and returns the redacted bytes that can be shown.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        if self.redactor.is_empty() {
            return bytes.to_vec();
        }
        self.pending.extend_from_slice(bytes);
        let spans = merged(self.redactor.whole(&self.pending));
        let mut cut = self.pending.len() - self.redactor.begun(&self.pending);
        // The last bytes of a complete secret may also be the beginning of another secret. In this case, the complete
        // secret is held back too.
        if let Some(divided) = spans.iter().find(|span| span.start < cut && cut < span.end) {
            cut = divided.start;
        }
        if self.pending.len() - cut > PENDING_MAX {
            return self.finish();
        }
        let rest = self.pending.split_off(cut);
        let shown = std::mem::replace(&mut self.pending, rest);
        self.redactor.replace(&shown, 0, &spans).into_owned()
    }

    /// Returns the bytes that are held back. The beginning of a secret is replaced if it has at least
    /// [`SHORTEST_ANYWHERE`] bytes.
    pub fn finish(&mut self) -> Vec<u8> {
        let pending = std::mem::take(&mut self.pending);
        let mut spans = self.redactor.whole(&pending);
        let begun = self.redactor.begun(&pending);
        spans.extend((begun >= SHORTEST_ANYWHERE).then(|| pending.len() - begun..pending.len()));
        self.redactor.replace(&pending, 0, &merged(spans)).into_owned()
    }
}

/// Returns the length of the longest suffix of `text` that is the beginning of a longer entry of the sorted list.
fn longest_beginning(sorted: &[Form], text: &[u8]) -> usize {
    let begins = |suffix: &[u8]| {
        let at = sorted.partition_point(|form| form.as_slice() < suffix);
        let mut candidates = sorted[at..].iter().take_while(|form| form.starts_with(suffix));
        candidates.any(|form| form.len() > suffix.len())
    };
    (1..=text.len()).rev().find(|length| begins(&text[text.len() - length..])).unwrap_or(0)
}

fn sorted(forms: impl Iterator<Item = Form>) -> Vec<Form> {
    let mut forms: Vec<Form> = forms.collect();
    forms.sort_unstable_by(|one, other| one.as_slice().cmp(other.as_slice()));
    forms.dedup();
    forms
}

/// Sorts ranges and joins overlapping ranges. Ranges that only touch stay separate, so that the result does not depend
/// on the parts in which the output arrives.
fn merged(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start < last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// Splits a line into pieces of at most [`LONGEST`] bytes.
fn pieces(line: &str) -> impl Iterator<Item = &str> {
    let mut rest = line;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (piece, after) = rest.split_at(rest.floor_char_boundary(LONGEST));
        rest = after;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
    use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
    use proptest::prelude::*;

    use super::*;

    const MASKED: &str = "[REDACTED]";
    const VALUES: [&str; 3] = ["hunter2-hunter2", "hunter2-other", "other-value"];

    fn redactor(values: &[&str]) -> OutputRedactor {
        let values: Vec<Secret> = values.iter().map(|value| Secret::new((*value).to_owned())).collect();
        OutputRedactor::new(&values, MASKED).expect("a redactor")
    }

    /// Reads a text in parts with the given lengths.
    fn read(redactor: &OutputRedactor, text: &[u8], lengths: &[usize]) -> String {
        let (mut at, mut shown) = (0, Vec::new());
        let mut lengths = lengths.iter().cycle();
        while at < text.len() {
            let end = at + (*lengths.next().expect("a length")).clamp(1, text.len() - at);
            let from = at.saturating_sub(redactor.reach());
            let window = &text[from..text.len().min(end + redactor.reach())];
            let part = redactor.redact_part(window, at - from..end - from);
            let (first, second) = ((end - at).min(1), (end - at).saturating_sub(1).min(3));
            let lengths = [0, first, second, end - at - first - second];
            let pieces: Vec<_> = redactor.redact_parts(window, at - from, lengths.into_iter()).collect();
            assert_eq!(pieces.concat(), *part);
            shown.extend_from_slice(&part);
            at = end;
        }
        String::from_utf8_lossy(&shown).into_owned()
    }

    /// Sends a text through a stream in parts with the given lengths.
    fn sent(redactor: &OutputRedactor, text: &[u8], lengths: &[usize]) -> String {
        let mut stream = redactor.stream();
        let (mut rest, mut shown) = (text, Vec::new());
        for length in lengths.iter().copied().cycle() {
            if rest.is_empty() {
                break;
            }
            let (part, after) = rest.split_at(length.clamp(1, rest.len()));
            shown.extend_from_slice(&stream.push(part));
            rest = after;
        }
        shown.extend_from_slice(&stream.finish());
        String::from_utf8_lossy(&shown).into_owned()
    }

    #[test]
    fn replaces_values_that_are_read_in_parts() {
        let secrets = redactor(&["hunter2-hunter2", "short", "line-one-of-two\nline-two-of-two\n"]);
        for (text, expected) in [
            ("a hunter2-hunter2 b", "a [REDACTED] b"),
            ("a HUNTER2-hunter2 b", "a [REDACTED] b"),
            ("hunter2-hunter2hunter2-hunter2", "[REDACTED][REDACTED]"),
            ("short hunter2 hunter2", "short hunter2 hunter2"),
            ("line-one-of-two\r\nline-two-of-two\r\n", "[REDACTED]\r\n[REDACTED]\r\n"),
            // Only the beginning of the value has arrived.
            ("password: hunter2-hun", "password: [REDACTED]"),
            ("password: hunter2", "password: hunter2"),
            ("hunter2-hunter3", "hunter2-hunter3"),
            ("", ""),
        ] {
            for lengths in [&[1000][..], &[1], &[3, 7], &[12]] {
                assert_eq!(read(&secrets, text.as_bytes(), lengths), expected, "{text:?} in {lengths:?}");
                assert_eq!(sent(&secrets, text.as_bytes(), lengths), expected, "{text:?} in {lengths:?}");
            }
        }
        // Only the end of the value is still in the log.
        assert_eq!(read(&secrets, b"r2-hunter2 x", &[1]), "[REDACTED] x");
        assert_eq!(redactor(&[]).redact(b"anything"), Cow::Borrowed(b"anything"));
    }

    #[test]
    fn replaces_every_spelling_in_parts() {
        let secret = "pa/ss \"wörd\"+42%&x";
        let secrets = redactor(&[secret]);
        let within = |before: &str| STANDARD.encode(format!("{before}{secret} and more"));
        for spelling in [
            secret.to_owned(),
            hex::encode(secret),
            hex::encode_upper(secret),
            STANDARD.encode(secret),
            URL_SAFE_NO_PAD.encode(secret),
            within(""),
            within("a"),
            within("ab"),
            utf8_percent_encode(secret, NON_ALPHANUMERIC).to_string(),
            utf8_percent_encode(secret, NON_ALPHANUMERIC).to_string().to_lowercase(),
            serde_json::Value::from(secret).to_string(),
            format!("{secret:?}"),
        ] {
            let text = format!("<{spelling}>");
            for lengths in [&[1000][..], &[1], &[2], &[5, 3], &[17]] {
                for shown in
                    [read(&secrets, text.as_bytes(), lengths), sent(&secrets, text.as_bytes(), lengths)]
                {
                    // Characters of base64 that also encode adjacent bytes may stay.
                    assert!(shown.contains(MASKED) && shown.len() <= MASKED.len() + 20, "{text} → {shown}");
                }
            }
        }
        let long = "A1b2C3d4E5f6G7h8J9k0".repeat(6);
        let secrets = redactor(&[&long]);
        let encoded = STANDARD.encode(format!("{long}\n"));
        for width in [76, 64] {
            let wrapped: Vec<&str> = encoded
                .as_bytes()
                .chunks(width)
                .map(|line| std::str::from_utf8(line).expect("text"))
                .collect();
            let shown = sent(&secrets, wrapped.join("\n").as_bytes(), &[50]);
            assert!(shown.starts_with("[REDACTED]\n[REDACTED]"), "{width}: {shown}");
        }
    }

    #[test]
    fn only_the_beginning_of_a_value_waits() {
        let secrets = redactor(&VALUES);
        let mut stream = secrets.stream();
        assert_eq!(stream.push(b"password: "), b"password: ");
        assert_eq!(stream.push(b"hunt"), b"");
        assert_eq!(stream.push(b"ing\n"), b"hunting\n");
        let endless = redactor(&["a".repeat(9).as_str()]);
        let mut stream = endless.stream();
        let sent: usize = (0..200).map(|_| stream.push(&[b'a'; 1024]).len()).sum();
        assert!(sent < 100 && stream.pending.len() <= PENDING_MAX, "{sent}");
    }

    #[test]
    fn long_values_are_cut_at_characters() {
        let long = "ü".repeat(LONGEST);
        let lengths: Vec<usize> = pieces(&long).map(str::len).collect();
        assert_eq!(lengths, [LONGEST, LONGEST]);
        assert!(redactor(&[&long]).reach() <= PENDING_MAX);
    }

    proptest! {
        #[test]
        fn no_value_is_shown_in_any_parts(
            text in prop::collection::vec(
                prop_oneof![
                    Just("hunter2-hunter2"), Just("hunter2-"), Just("other"), Just("-value"), Just("x"), Just("\n"),
                    Just("aHVudGVyMi1o"), Just("dW50ZXIy"),
                ],
                0..12,
            ),
            lengths in prop::collection::vec(1_usize..40, 1..6),
        ) {
            let (text, secrets) = (text.concat(), redactor(&VALUES));
            for show in [read, sent] {
                let parts = show(&secrets, text.as_bytes(), &lengths);
                prop_assert!(VALUES.iter().all(|value| !parts.contains(value)), "{}", parts);
                prop_assert!(!parts.contains("aHVudGVyMi1odW50ZXIy"), "{}", parts);
                prop_assert_eq!(parts, show(&secrets, text.as_bytes(), &[usize::MAX]));
            }
        }
    }
}
