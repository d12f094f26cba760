//! Replaces secret values in output that is sent immediately and not stored.

use bytes::Bytes;

use super::{Redaction, SHORTEST, merged, replace};

/// The maximum number of bytes that are buffered because they may be the beginning of a secret value.
const PENDING_MAX: usize = 64 * 1024;

/// One stream of output. Bytes that may be the beginning of a secret value are buffered until more output arrives.
#[derive(Debug)]
pub(crate) struct StreamRedaction<'r> {
    redaction: &'r Redaction,
    pending: Vec<u8>,
}

impl Redaction {
    /// Creates the redaction of one stream.
    pub(crate) fn stream(&self) -> StreamRedaction<'_> {
        StreamRedaction { redaction: self, pending: Vec::new() }
    }

    /// Returns the length of the longest suffix of `bytes` that is the beginning of a value.
    fn begun(&self, bytes: &[u8]) -> usize {
        let of_value = |value: &[u8]| {
            let mut lengths = (1..value.len().min(bytes.len() + 1)).rev();
            lengths.find(|&length| bytes.ends_with(value.get(..length).unwrap_or_default()))
        };
        self.values.iter().filter_map(|value| of_value(value.expose().as_bytes())).max().unwrap_or(0)
    }
}

impl StreamRedaction<'_> {
    /// Adds output, and returns the redacted bytes that can be sent.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Bytes {
        if self.redaction.values.is_empty() {
            return Bytes::copy_from_slice(bytes);
        }
        self.pending.extend_from_slice(bytes);
        let spans = merged(0, self.redaction.whole(&self.pending));
        let mut cut = self.pending.len() - self.redaction.begun(&self.pending);
        // The last bytes of a complete value may also be the beginning of another value. In this case, the complete
        // value is buffered too.
        let at = cut as u64;
        if let Some(divided) = spans.iter().find(|span| span.start < at && at < span.end) {
            cut = usize::try_from(divided.start).unwrap_or(0);
        }
        if self.pending.len() - cut > PENDING_MAX {
            return self.finish();
        }
        let rest = self.pending.split_off(cut);
        let sent = std::mem::replace(&mut self.pending, rest);
        replace(0, sent.into(), &spans)
    }

    /// Returns the buffered bytes. The beginning of a value is replaced if it has at least [`SHORTEST`] bytes.
    pub(crate) fn finish(&mut self) -> Bytes {
        let pending = std::mem::take(&mut self.pending);
        let mut spans = self.redaction.whole(&pending);
        let begun = self.redaction.begun(&pending);
        if begun >= SHORTEST {
            spans.push(pending.len() - begun..pending.len());
        }
        replace(0, pending.into(), &merged(0, spans))
    }
}

#[cfg(test)]
mod tests {
    use bottle_policy::secret::Secret;
    use proptest::prelude::*;

    use super::*;

    const VALUES: [&str; 3] = ["hunter2-hunter2", "hunter2-other", "other-value"];

    fn redaction() -> Redaction {
        let values = VALUES.map(|value| Secret::new(value.to_owned()));
        Redaction::new(values.iter())
    }

    fn sent(text: &str, lengths: &[usize]) -> String {
        let redaction = redaction();
        let mut stream = redaction.stream();
        let (mut rest, mut sent) = (text.as_bytes(), Vec::new());
        for length in lengths.iter().copied().cycle() {
            if rest.is_empty() {
                break;
            }
            let (part, after) = rest.split_at(length.clamp(1, rest.len()));
            sent.extend_from_slice(&stream.push(part));
            rest = after;
        }
        sent.extend_from_slice(&stream.finish());
        String::from_utf8_lossy(&sent).into_owned()
    }

    #[test]
    fn values_that_arrive_in_parts_are_replaced() {
        for (text, expected) in [
            ("a hunter2-hunter2 b", "a [REDACTED] b"),
            ("hunter2-hunter2hunter2-hunter2", "[REDACTED][REDACTED]"),
            ("hunter2-other-value!", "[REDACTED]!"),
            ("hunter2-hunter3", "hunter2-hunter3"),
            ("the end: hunter2-hun", "the end: [REDACTED]"),
            ("the end: hunter2", "the end: hunter2"),
            ("", ""),
        ] {
            for lengths in [&[1000][..], &[1], &[3, 7], &[12]] {
                assert_eq!(sent(text, lengths), expected, "{text:?} in {lengths:?}");
            }
        }
    }

    #[test]
    fn only_the_beginning_of_a_value_waits() {
        let redaction = redaction();
        let mut stream = redaction.stream();
        assert_eq!(stream.push(b"password: "), "password: ");
        assert_eq!(stream.push(b"hunt"), "");
        assert_eq!(stream.push(b"ing\n"), "hunting\n");
        let endless = Redaction::new([Secret::new("a".repeat(9))].iter());
        let mut stream = endless.stream();
        let sent: usize = (0..200).map(|_| stream.push(&[b'a'; 1024]).len()).sum();
        assert!(sent < 100 && stream.pending.len() <= PENDING_MAX, "{sent}");
    }

    proptest! {
        #[test]
        fn no_value_is_sent_in_any_parts(
            text in prop::collection::vec(
                prop_oneof![Just("hunter2-hunter2"), Just("hunter2-"), Just("other"), Just("-value"), Just("x")],
                0..12,
            ),
            lengths in prop::collection::vec(1_usize..40, 1..6),
        ) {
            let text = text.concat();
            let parts = sent(&text, &lengths);
            prop_assert!(VALUES.iter().all(|value| !parts.contains(value)), "{}", parts);
            prop_assert_eq!(parts, sent(&text, &[usize::MAX]));
        }
    }
}
