//! Parses git's response to a push (`report-status` in a side band), and inserts messages of the gate.

use bytes::{Bytes, BytesMut};

use crate::agent_messages::DISK_FULL;
use crate::push_head::{DIGITS, length};

/// The maximum number of payload bytes in a side-band packet, not counting its length and band. Longer text
/// is cut off.
const MOST: usize = 65_515;

/// Encodes a side-band packet. Band 1 carries the response, and band 2 messages for the user.
fn side_band(band: u8, text: &[u8]) -> Vec<u8> {
    let text = &text[..text.len().min(MOST)];
    let mut packet = format!("{:04x}", text.len() + DIGITS + 1).into_bytes();
    packet.push(band);
    packet.extend_from_slice(text);
    packet
}

/// The response to a push that the gate refuses before git has read all of it.
pub(crate) fn refusal(sentence: &str) -> Bytes {
    let report = format!("{:04x}unpack refused\n0000", "unpack refused\n".len() + DIGITS);
    let mut answer = side_band(2, format!("the git gate refused the push: {sentence}\n").as_bytes());
    answer.extend(side_band(1, report.as_bytes()));
    answer.extend(b"0000");
    answer.into()
}

/// Parses git's response while it is streamed, and adds a hint after an error that git does not explain.
#[derive(Default)]
pub(crate) struct ReportStatus {
    buffer: BytesMut,
    /// Whether the response has no side band and is therefore forwarded unchanged.
    passthrough: bool,
    hinted: bool,
}

impl ReportStatus {
    /// Parses the next chunk, and returns the bytes to send to the client.
    pub(crate) fn feed(&mut self, chunk: Bytes) -> Bytes {
        if self.passthrough {
            return chunk;
        }
        self.buffer.extend_from_slice(&chunk);
        let mut output = BytesMut::new();
        while let Some(digits) = self.buffer.get(..DIGITS) {
            match (length(digits), self.buffer.get(DIGITS)) {
                (Some(0), _) => output.extend(self.buffer.split_to(DIGITS)),
                (Some(length), Some(1..=3)) if length > DIGITS => {
                    if self.buffer.len() < length {
                        break;
                    }
                    let packet = self.buffer.split_to(length);
                    output.extend_from_slice(&packet);
                    self.add_hint(&packet, &mut output);
                }
                (Some(_), None) => break,
                _ => {
                    self.passthrough = true;
                    output.extend(self.buffer.split());
                    break;
                }
            }
        }
        output.freeze()
    }

    /// Returns the remaining buffered bytes at the end of the response.
    pub(crate) fn finish(&mut self) -> Bytes {
        self.buffer.split().freeze()
    }

    /// Adds a hint after the first packet that reports a full disk.
    fn add_hint(&mut self, packet: &[u8], output: &mut BytesMut) {
        let words = b"No space left on device";
        if !self.hinted && packet.windows(words.len()).any(|window| window == words) {
            self.hinted = true;
            output.extend_from_slice(&side_band(2, format!("\n{DISK_FULL}\n").as_bytes()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &[u8], size: usize) -> Vec<u8> {
        let mut report = ReportStatus::default();
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

    proptest::proptest! {
        #[test]
        fn passes_every_byte_in_order(bytes: Vec<u8>, size in 1_usize..9) {
            proptest::prop_assert_eq!(parse(&bytes, size), bytes);
        }
    }
}
