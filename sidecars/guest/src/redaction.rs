//! Replaces the secret values of the bottle in the output that clients read.
//!
//! A client reads output by position, and a position counts the bytes that a process wrote. A client may therefore read
//! a secret value in two parts. Each part of the output is searched together with the bytes before and after it. If the
//! log contains only the beginning or only the end of a value, this fragment is replaced if it has at least eight
//! bytes. The output of attached terminals is not changed.
//!
//! - `stream`: output that is sent immediately and not stored

mod stream;

use std::ops::Range;

use bottle_policy::secret::Secret;
use bottle_protocol::session::process::REDACTED;
use bytes::Bytes;

pub(crate) use self::stream::StreamRedaction;
use crate::scrollback::OutputLog;

/// The minimum length in bytes of a value that is replaced. Shorter values also occur in unrelated text.
const SHORTEST: usize = 8;

/// The maximum length in bytes of a line of a value that is searched as a whole. A longer line is searched in pieces.
const LONGEST: usize = 8192;

/// The secret values that are replaced in output.
#[derive(Debug, Default)]
pub(crate) struct Redaction {
    values: Vec<Secret>,
    /// The length of the longest value.
    longest: usize,
}

impl Redaction {
    /// Prepares the search for `values`. Each line of a value is searched separately, because a terminal changes line
    /// breaks.
    pub(crate) fn new<'s>(values: impl Iterator<Item = &'s Secret>) -> Self {
        let lines = values.flat_map(|value| value.expose().split(['\r', '\n']));
        let pieces = lines.flat_map(pieces).filter(|piece| piece.len() >= SHORTEST);
        let values: Vec<Secret> = pieces.map(|piece| Secret::new(piece.to_owned())).collect();
        let longest = values.iter().map(|value| value.expose().len()).max().unwrap_or(0);
        Self { values, longest }
    }

    /// Replaces secret values in `bytes`, a part of `log` that begins at the position `start`.
    pub(crate) fn apply(&self, log: &OutputLog, start: u64, bytes: Bytes) -> Bytes {
        if self.values.is_empty() || bytes.is_empty() {
            return bytes;
        }
        let around = self.longest as u64;
        let end = start + bytes.len() as u64;
        let (from, window) = log.window(start.saturating_sub(around)..end.saturating_add(around));
        replace(start, bytes, &self.spans(from, &window))
    }

    /// Returns the positions of values and of fragments of values in a window that begins at `from`, in order and
    /// without overlaps.
    fn spans(&self, from: u64, window: &[u8]) -> Vec<Range<u64>> {
        let mut spans = self.whole(window);
        for value in &self.values {
            let value = value.expose().as_bytes();
            // `last` is the longest prefix of the value at the end of the window. `first` is the longest suffix of the
            // value at the beginning of the window.
            let parts = (SHORTEST..value.len()).rev();
            let last =
                parts.clone().find(|&length| window.ends_with(value.get(..length).unwrap_or_default()));
            spans.extend(last.map(|length| window.len() - length..window.len()));
            let first = parts
                .clone()
                .find(|&length| window.starts_with(value.get(value.len() - length..).unwrap_or_default()));
            spans.extend(first.map(|length| 0..length));
        }
        merged(from, spans)
    }

    /// Returns the ranges of complete values, in any order.
    fn whole(&self, window: &[u8]) -> Vec<Range<usize>> {
        let mut spans = Vec::new();
        for value in &self.values {
            let value = value.expose().as_bytes();
            spans.extend(all_places(window, value).map(|at| at..at + value.len()));
        }
        spans
    }
}

/// Sorts the spans in a window that begins at `from`, and joins overlapping spans. Returns the positions of the spans.
fn merged(from: u64, mut spans: Vec<Range<usize>>) -> Vec<Range<u64>> {
    spans.sort_unstable_by_key(|span| span.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for span in spans {
        let span = from + span.start as u64..from + span.end as u64;
        match merged.last_mut() {
            Some(last) if span.start < last.end => last.end = last.end.max(span.end),
            _ => merged.push(span),
        }
    }
    merged
}

/// Returns all occurrences of a value. Overlapping occurrences are included, so that the result does not depend on the
/// beginning of the window.
fn all_places(window: &[u8], value: &[u8]) -> impl Iterator<Item = usize> {
    let finder = memchr::memmem::Finder::new(value);
    let mut from = 0;
    std::iter::from_fn(move || {
        let at = from + finder.find(window.get(from..)?)?;
        from = at + 1;
        Some(at)
    })
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

/// Replaces the spans in `bytes`, which begins at the position `start`. The bytes of a span that begins before `start`
/// are removed, because the replacement text is in an earlier part.
fn replace(start: u64, bytes: Bytes, spans: &[Range<u64>]) -> Bytes {
    let end = start + bytes.len() as u64;
    let inside: Vec<&Range<u64>> = spans.iter().filter(|span| span.start < end && span.end > start).collect();
    if inside.is_empty() {
        return bytes;
    }
    let offset = |position: u64| usize::try_from(position.saturating_sub(start)).unwrap_or(usize::MAX);
    let mut replaced = Vec::with_capacity(bytes.len());
    let mut done = 0;
    for span in inside {
        replaced.extend_from_slice(bytes.get(done..offset(span.start)).unwrap_or_default());
        if span.start >= start {
            replaced.extend_from_slice(REDACTED.as_bytes());
        }
        done = offset(span.end).min(bytes.len());
    }
    replaced.extend_from_slice(bytes.get(done..).unwrap_or_default());
    replaced.into()
}

#[cfg(test)]
mod tests {
    use bottle_protocol::session::guest::STDOUT;
    use proptest::prelude::*;

    use super::*;
    use crate::scrollback::Piece;

    fn redaction(values: &[&str]) -> Redaction {
        let values: Vec<Secret> = values.iter().map(|&value| Secret::new(value.to_owned())).collect();
        Redaction::new(values.iter())
    }

    async fn log(text: &[u8]) -> OutputLog {
        let log = OutputLog::default();
        log.push(STDOUT, text).await;
        log
    }

    /// Reads the complete log in parts with the given lengths.
    fn read(redaction: &Redaction, log: &OutputLog, lengths: &[usize]) -> String {
        let (mut next, mut text) = (0, Vec::new());
        let mut lengths = lengths.iter().copied().cycle();
        loop {
            let mut behind = next;
            let Some(Piece::Bytes { bytes, .. }) = log.try_next(&mut behind) else { break };
            let taken = lengths.next().unwrap_or(1).clamp(1, bytes.len());
            text.extend_from_slice(&redaction.apply(log, next, bytes.slice(..taken)));
            next += taken as u64;
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    #[tokio::test]
    async fn replaces_values_that_are_read_in_parts() {
        let secrets = redaction(&["hunter2-hunter2", "short", "line-one-of-two\nline-two-of-two\n"]);
        for (text, expected) in [
            ("a hunter2-hunter2 b", "a [REDACTED] b"),
            ("hunter2-hunter2hunter2-hunter2", "[REDACTED][REDACTED]"),
            ("short hunter2 hunter2", "short hunter2 hunter2"),
            ("line-one-of-two\r\nline-two-of-two\r\n", "[REDACTED]\r\n[REDACTED]\r\n"),
            // Only the beginning of the value has arrived, or only the end of the value is still buffered.
            ("password: hunter2-hun", "password: [REDACTED]"),
            ("r2-hunter2 x", "[REDACTED] x"),
            ("password: hunter2", "password: hunter2"),
            ("", ""),
        ] {
            let log = log(text.as_bytes()).await;
            for lengths in [&[100][..], &[1], &[3, 7], &[12]] {
                assert_eq!(read(&secrets, &log, lengths), expected, "{text:?} in {lengths:?}");
            }
        }
    }

    #[tokio::test]
    async fn a_value_that_arrives_in_parts_has_one_mark() {
        let secrets = redaction(&["hunter2-hunter2"]);
        let log = log(b"a hunter2-hun").await;
        let bytes = Bytes::from_static(b"a hunter2-hun");
        assert_eq!(secrets.apply(&log, 0, bytes), "a [REDACTED]");
        log.push(STDOUT, b"ter2 b").await;
        assert_eq!(secrets.apply(&log, 13, Bytes::from_static(b"ter2 b")), " b");
    }

    #[test]
    fn long_values_are_cut_at_characters() {
        let long = "ü".repeat(LONGEST);
        let lengths: Vec<usize> = pieces(&long).map(str::len).collect();
        assert_eq!(lengths, [LONGEST, LONGEST]);
        assert_eq!(redaction(&[&long]).longest, LONGEST);
    }

    proptest! {
        #[test]
        fn no_value_is_read_in_any_parts(
            text in prop::collection::vec(prop_oneof![Just("hunter2-hunter2"), Just("hunter2-"), Just("x"), Just("\n")], 0..12),
            lengths in prop::collection::vec(1_usize..40, 1..6),
        ) {
            let text = text.concat();
            let log = tokio::runtime::Builder::new_current_thread().build().expect("runtime").block_on(log(text.as_bytes()));
            let secrets = redaction(&["hunter2-hunter2"]);
            let parts = read(&secrets, &log, &lengths);
            prop_assert!(!parts.contains("hunter2-hunter2"), "{}", parts);
            prop_assert_eq!(parts, read(&secrets, &log, &[usize::MAX]));
        }
    }
}
