//! What git answers to a push, packet by packet, and what the gate puts in between.

use bytes::{Bytes, BytesMut};

use crate::head::{DIGITS, length};
use crate::messages::NO_ROOM;

/// The most that a packet of a side band carries, without digits and band.
const MOST: usize = 65_515;

/// A packet of a side band: 1 is the answer, 2 is for the user's eyes.
fn side(band: u8, text: &[u8]) -> Vec<u8> {
    let text = &text[..text.len().min(MOST)];
    let mut packet = format!("{:04x}", text.len() + DIGITS + 1).into_bytes();
    packet.push(band);
    packet.extend_from_slice(text);
    packet
}

/// The answer to a push that git has not even seen to its end.
pub(crate) fn refusal(sentence: &str) -> Bytes {
    let report = format!("{:04x}unpack refused\n0000", "unpack refused\n".len() + DIGITS);
    let mut answer = side(2, format!("the git gate refused the push: {sentence}\n").as_bytes());
    answer.extend(side(1, report.as_bytes()));
    answer.extend(b"0000");
    answer.into()
}

/// Reads git's answer as it goes by, and says what to do where git says only what is wrong.
#[derive(Default)]
pub(crate) struct ReportStatus {
    held: BytesMut,
    /// What comes is not of a side band; it goes by as it is.
    other: bool,
    said: bool,
}

impl ReportStatus {
    /// The next piece: what can go on of it.
    pub(crate) fn feed(&mut self, piece: Bytes) -> Bytes {
        if self.other {
            return piece;
        }
        self.held.extend_from_slice(&piece);
        let mut on = BytesMut::new();
        while let Some(digits) = self.held.get(..DIGITS) {
            match (length(digits), self.held.get(DIGITS)) {
                (Some(0), _) => on.extend(self.held.split_to(DIGITS)),
                (Some(length), Some(1..=3)) if length > DIGITS => {
                    if self.held.len() < length {
                        break;
                    }
                    let packet = self.held.split_to(length);
                    on.extend_from_slice(&packet);
                    self.next_step(&packet, &mut on);
                }
                (Some(_), None) => break,
                _ => {
                    self.other = true;
                    on.extend(self.held.split());
                    break;
                }
            }
        }
        on.freeze()
    }

    /// What is left of an answer that ended.
    pub(crate) fn rest(&mut self) -> Bytes {
        self.held.split().freeze()
    }

    fn next_step(&mut self, packet: &[u8], on: &mut BytesMut) {
        let words = b"No space left on device";
        if !self.said && packet.windows(words.len()).any(|window| window == words) {
            self.said = true;
            on.extend_from_slice(&side(2, format!("\n{NO_ROOM}\n").as_bytes()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(bytes: &[u8], pieces: usize) -> Vec<u8> {
        let mut told = ReportStatus::default();
        let mut on = Vec::new();
        for piece in bytes.chunks(pieces) {
            on.extend(told.feed(Bytes::copy_from_slice(piece)));
        }
        on.extend(told.rest());
        on
    }

    #[test]
    fn a_full_disk_is_said_once_and_the_rest_goes_by() {
        let full = side(2, b"fatal: write error: No space left on device\n");
        let answer = [full.clone(), full, side(1, b"000eunpack ok\n0000"), b"0000".to_vec()].concat();
        for pieces in [1, 5, 1 << 20] {
            let told = String::from_utf8(through(&answer, pieces)).expect("text");
            assert_eq!(told.matches(NO_ROOM).count(), 1, "{told}");
            assert!(told.ends_with("unpack ok\n00000000"), "{told}");
        }
        for plain in [&b"000eunpack ok\n0000"[..], b"zzzz", b"0000", b"00", b"ffff\x02cut"] {
            assert_eq!(through(plain, 1), plain);
        }
    }

    proptest::proptest! {
        #[test]
        fn nothing_is_lost(bytes: Vec<u8>, pieces in 1_usize..9) {
            proptest::prop_assert_eq!(through(&bytes, pieces), bytes);
        }
    }
}
