//! Parses git's response to a push (`report-status` in a side band), and inserts messages of the gate and the
//! reasons of the upstream.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use bytes::{Bytes, BytesMut};

use crate::agent_messages::DISK_FULL;
use crate::push_head::{DIGITS, length};

/// The maximum number of payload bytes in a side-band packet, without the length and the band number. Longer text is
/// cut off.
const MOST: usize = 65_515;

/// The maximum size in bytes of a report in which reasons are replaced. Even the report for the maximum number of refs
/// in a push is smaller, unless the ref names are very long.
const MOST_REPORT: usize = 1 << 20;

/// The upstream's reason for each ref of a push that the upstream refused. The map is set before git reports the result
/// of the push, and only if the upstream accepted no ref.
pub(crate) type Reasons = Arc<OnceLock<HashMap<String, String>>>;

/// Encodes a side-band packet. Band 1 carries the response, and band 2 carries messages for the user.
fn side_band(band: u8, text: &[u8]) -> Vec<u8> {
    let text = &text[..text.len().min(MOST)];
    let mut packet = format!("{:04x}", text.len() + DIGITS + 1).into_bytes();
    packet.push(band);
    packet.extend_from_slice(text);
    packet
}

/// Returns the response to a push that the gate refuses before git has read the complete push.
pub(crate) fn refusal(sentence: &str) -> Bytes {
    let report = format!("{:04x}unpack refused\n0000", "unpack refused\n".len() + DIGITS);
    let mut answer = side_band(2, format!("the git gate refused the push: {sentence}\n").as_bytes());
    answer.extend(side_band(1, report.as_bytes()));
    answer.extend(b"0000");
    answer.into()
}

/// Parses git's response while the response is streamed. Adds a hint after the error for a full disk, which git does
/// not explain. git's reason for a refused ref names the gate's hook, so the parser replaces this reason by the
/// upstream's reason.
#[derive(Default)]
pub(crate) struct ReportStatus {
    reasons: Reasons,
    buffer: BytesMut,
    /// The report so far. Empty if there are no reasons to insert.
    report: Vec<u8>,
    /// Whether the response has no side band and is therefore forwarded unchanged.
    passthrough: bool,
    hinted: bool,
}

impl ReportStatus {
    pub(crate) fn new(reasons: Reasons) -> Self {
        Self { reasons, ..Self::default() }
    }

    /// Parses the next chunk, and returns the bytes to send to the client.
    pub(crate) fn feed(&mut self, chunk: Bytes) -> Bytes {
        if self.passthrough {
            return chunk;
        }
        self.buffer.extend_from_slice(&chunk);
        let mut output = BytesMut::new();
        while let Some(digits) = self.buffer.get(..DIGITS) {
            match (length(digits), self.buffer.get(DIGITS)) {
                (Some(0), _) => {
                    output.extend(self.take_report());
                    output.extend(self.buffer.split_to(DIGITS));
                }
                (Some(length), Some(&band @ 1..=3)) if length > DIGITS => {
                    if self.buffer.len() < length {
                        break;
                    }
                    let packet = self.buffer.split_to(length);
                    let has_room = self.report.len() + packet.len() <= MOST_REPORT;
                    if band == 1 && has_room && self.reasons.get().is_some() {
                        self.report.extend_from_slice(&packet[DIGITS + 1..]);
                        continue;
                    }
                    output.extend(self.take_report());
                    output.extend_from_slice(&packet);
                    self.add_hint(&packet, &mut output);
                }
                (Some(_), None) => break,
                _ => {
                    self.passthrough = true;
                    output.extend(self.take_report());
                    output.extend(self.buffer.split());
                    break;
                }
            }
        }
        output.freeze()
    }

    /// Returns the remaining buffered bytes at the end of the response.
    pub(crate) fn finish(&mut self) -> Bytes {
        let mut rest = BytesMut::from(&self.take_report()[..]);
        rest.extend(self.buffer.split());
        rest.freeze()
    }

    /// Takes the report so far, inserts the upstream's reasons, and encodes the result.
    fn take_report(&mut self) -> Vec<u8> {
        let report = std::mem::take(&mut self.report);
        match self.reasons.get() {
            Some(reasons) => {
                with_reasons(&report, reasons).chunks(MOST).flat_map(|part| side_band(1, part)).collect()
            }
            None => report,
        }
    }

    /// Adds a hint to `output` after the first packet that reports a full disk.
    fn add_hint(&mut self, packet: &[u8], output: &mut BytesMut) {
        let words = b"No space left on device";
        if !self.hinted && packet.windows(words.len()).any(|window| window == words) {
            self.hinted = true;
            output.extend_from_slice(&side_band(2, format!("\n{DISK_FULL}\n").as_bytes()));
        }
    }
}

/// Replaces the reasons in the lines `ng REF REASON` of a report. Everything after a malformed line stays unchanged.
fn with_reasons(mut report: &[u8], reasons: &HashMap<String, String>) -> Vec<u8> {
    let mut output = Vec::new();
    while let Some(length) = report.get(..DIGITS).and_then(length) {
        let end = length.max(DIGITS);
        let Some(line) = report.get(..end) else { break };
        report = &report[end..];
        let name =
            line[DIGITS..].strip_prefix(b"ng ").and_then(|rest| rest.split(|byte| *byte == b' ').next());
        let name = name.and_then(|name| std::str::from_utf8(name).ok());
        match name.and_then(|name| reasons.get_key_value(name)) {
            Some((name, reason)) => {
                let line = format!("ng {name} {reason}\n");
                output.extend(format!("{:04x}{line}", line.len() + DIGITS).into_bytes());
            }
            None => output.extend_from_slice(line),
        }
    }
    output.extend_from_slice(report);
    output
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &[u8], size: usize) -> Vec<u8> {
        parse_with(bytes, size, Reasons::default())
    }

    fn parse_with(bytes: &[u8], size: usize, reasons: Reasons) -> Vec<u8> {
        let mut report = ReportStatus::new(reasons);
        let mut output = Vec::new();
        for chunk in bytes.chunks(size) {
            output.extend(report.feed(Bytes::copy_from_slice(chunk)));
        }
        output.extend(report.finish());
        output
    }

    #[test]
    fn adds_one_hint_about_a_full_disk_and_passes_the_rest() {
        let full = side_band(2, b"fatal: write error: No space left on device\n");
        let answer = [full.clone(), full, side_band(1, b"000eunpack ok\n0000"), b"0000".to_vec()].concat();
        for size in [1, 5, 1 << 20] {
            let output = String::from_utf8(parse(&answer, size)).expect("text");
            assert_eq!(output.matches(DISK_FULL).count(), 1, "{output}");
            assert!(output.ends_with("unpack ok\n00000000"), "{output}");
        }
        for plain in [&b"000eunpack ok\n0000"[..], b"zzzz", b"0000", b"00", b"ffff\x02cut"] {
            assert_eq!(parse(plain, 1), plain);
        }
    }

    fn reasons() -> Reasons {
        let reasons = [("refs/heads/a", "no"), ("refs/heads/b", "hook declined")];
        let owned = reasons.map(|(name, reason)| (name.to_owned(), reason.to_owned()));
        Arc::new(OnceLock::from(HashMap::from(owned)))
    }

    #[test]
    fn replaces_the_reasons_of_refused_refs() {
        let packets = |lines: &[&str]| {
            let packet = |line: &&str| format!("{:04x}{line}", line.len() + DIGITS);
            lines.iter().map(packet).collect::<String>() + "0000"
        };
        let report = packets(&[
            "unpack ok\n",
            "ng refs/heads/a pre-receive hook declined\n",
            "ng refs/heads/b\n",
            "ng refs/heads/c why\n",
            "ok refs/heads/a\n",
        ]);
        let expected = packets(&[
            "unpack ok\n",
            "ng refs/heads/a no\n",
            "ng refs/heads/b\n",
            "ng refs/heads/c why\n",
            "ok refs/heads/a\n",
        ]);
        let (report, expected) = (report.as_bytes(), expected.as_bytes());
        let message = side_band(2, b"message");
        for cut in [1, 20, report.len()] {
            let parts: Vec<u8> = report.chunks(cut).flat_map(|part| side_band(1, part)).collect();
            let answer = [message.clone(), parts, b"0000".to_vec()].concat();
            for size in [1, 7, 1 << 20] {
                let output = parse_with(&answer, size, reasons());
                let expected = [message.clone(), side_band(1, expected), b"0000".to_vec()].concat();
                assert_eq!(output, expected, "{}", String::from_utf8_lossy(&output));
            }
            assert_eq!(parse(&answer, 7), answer);
        }
        // A truncated or malformed report is forwarded unchanged.
        for report in [&report[..30], b"zzzz", b"0001", b"ffffng refs/heads/a x"] {
            let answer = side_band(1, report);
            assert_eq!(parse_with(&answer, 3, reasons()), answer);
        }
    }

    proptest::proptest! {
        #[test]
        fn never_panics_on_any_report(report: Vec<u8>, size in 1_usize..9) {
            let _ = parse_with(&side_band(1, &report), size, reasons());
        }

        #[test]
        fn passes_every_byte_in_order(bytes: Vec<u8>, size in 1_usize..9) {
            proptest::prop_assert_eq!(parse(&bytes, size), bytes);
        }
    }
}
