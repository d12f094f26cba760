//! Consecutive connections on one byte stream, such as the standard streams of a container.
//!
//! A container engine can attach clients to such a stream one after the other. Neither end of the stream sees where the
//! connection of a new client begins. Bytes that are written while no client is attached may be lost, even in the
//! middle of a frame. A keeper process that is killed may leave a partial frame in the stream. Each connection
//! therefore marks its beginning and its end:
//!
//! ```text
//! to the container   … cut ┃ RUN zeros │ MARK │ nonce │ hello, frames … ┃ RUN zeros │ MARK │ nonce │ …
//! from the container … cut ┃ (RUN zeros) │ MARK │ nonce │ hello, frames … ┃ …
//! ```
//! - A run of [`RUN`] zero bytes ends the previous connection. No frame contains a run of this length: requests and
//!   messages are JSON, which contains no zero bytes, and data frames and reset messages are shorter than the run.
//! - A mark and a nonce, together called the opening, begin a connection. The container answers with the same mark and
//!   nonce as its first bytes. The host skips everything before this answer. Bytes from earlier connections cannot
//!   contain a new nonce.
//! - Each side ends a connection with another run of zeros, because neither side can close the stream. The container
//!   answers the host's run with a run of zeros. Until the container's run arrives, the host's last bytes may still be
//!   in transit, and an engine could deliver them after the first bytes of the next connection.
//!
//! One effect of an interrupted data frame remains visible: the zeros of the run may complete the frame. The frame's
//! stream then receives these zeros as data before the stream is reset together with the connection.
//!
//! Only the processes at the two ends of the stream may have write access to it, because this protocol protects against
//! accidents and not against attackers. The output of a bottle's processes is sent inside frames. This output cannot
//! end a connection, because a frame is too short for a run of zeros. This output cannot imitate an answer either,
//! because the bottle's processes cannot guess the nonce.

mod container;
mod host;

pub use container::{Connection, Rejoinable};
pub use host::{Rejoined, rejoin};

use bottle_protocol::session::frame::MAX_DATA;

/// The number of zero bytes that end a connection. A run is longer than the longest payload that may consist of zeros,
/// together with the headers around this payload.
pub const RUN: usize = 2 * MAX_DATA;

/// The mark that follows the zeros at the beginning of a connection. The first byte of the mark is not zero, so that
/// the receiver can tell where the zeros end and the mark begins.
const MARK: [u8; 16] = *b"\x7fbottle-rejoin\n\xfe";

/// A number that identifies one connection.
type Nonce = [u8; 16];

/// The length of an opening, in bytes: the mark and the nonce.
const OPENING: usize = MARK.len() + size_of::<Nonce>();

fn opening(nonce: Nonce) -> [u8; OPENING] {
    let mut bytes = [0; OPENING];
    bytes[..MARK.len()].copy_from_slice(&MARK);
    bytes[MARK.len()..].copy_from_slice(&nonce);
    bytes
}

/// Counts the zeros at the end of the bytes received so far, up to a [`RUN`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Zeros(usize);

impl Zeros {
    /// Counts the zeros at the end of `bytes`, which must not contain a run.
    fn at_end_of(bytes: &[u8]) -> Self {
        Self(bytes.iter().rev().take_while(|byte| **byte == 0).count())
    }

    fn is_run(self) -> bool {
        self.0 >= RUN
    }

    /// Continues the count with `bytes`, the bytes that were received next. If a run becomes complete, returns the
    /// position after the run.
    fn count(&mut self, bytes: &[u8]) -> Option<usize> {
        for (at, byte) in bytes.iter().enumerate() {
            self.0 = if *byte == 0 { self.0 + 1 } else { 0 };
            if self.is_run() {
                return Some(at + 1);
            }
        }
        None
    }
}

/// Finds the opening of a connection in received bytes.
#[derive(Debug, Default)]
struct Finder {
    /// The bytes of a possible opening that were received after a run.
    mark: Vec<u8>,
}

impl Finder {
    /// Searches `bytes` for the end of an opening. `zeros` is the count of the bytes that were received before `bytes`.
    /// If an opening ends in `bytes`, returns the position after the opening and the nonce. Otherwise, returns the
    /// length of `bytes` and `None`.
    fn search(&mut self, zeros: &mut Zeros, bytes: &[u8]) -> (usize, Option<Nonce>) {
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            if !zeros.is_run() {
                at += zeros.count(rest).unwrap_or(rest.len());
            } else if let Some(nonce) = self.take(zeros, rest[0]) {
                return (at + 1, Some(nonce));
            } else {
                at += 1;
            }
        }
        (at, None)
    }

    /// Handles one byte that follows a run of zeros. Returns the nonce if the byte completes an opening.
    fn take(&mut self, zeros: &mut Zeros, byte: u8) -> Option<Nonce> {
        if self.mark.is_empty() && byte == 0 {
            // A run may be longer than [`RUN`].
            return None;
        }
        self.mark.push(byte);
        if self.mark.len() < OPENING {
            return None;
        }
        // If an opening was cut off, the last bytes in `mark` may be the first zeros of the next connection.
        *zeros = Zeros::at_end_of(&self.mark);
        let opening = std::mem::take(&mut self.mark);
        opening.strip_prefix(&MARK).and_then(|nonce| nonce.try_into().ok())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NONCE: Nonce = [7; 16];

    fn preamble() -> Vec<u8> {
        [vec![0; RUN], opening(NONCE).to_vec()].concat()
    }

    /// Searches `bytes` in pieces of `size` bytes. Returns the nonce and the bytes after the nonce.
    fn find(bytes: &[u8], size: usize) -> Option<(Nonce, Vec<u8>)> {
        let (mut finder, mut zeros, mut at) = (Finder::default(), Zeros::default(), 0);
        for piece in bytes.chunks(size) {
            let (taken, found) = finder.search(&mut zeros, piece);
            at += taken;
            if let Some(nonce) = found {
                return Some((nonce, bytes[at..].to_vec()));
            }
            assert_eq!(taken, piece.len());
        }
        None
    }

    #[test]
    fn finds_an_opening_after_any_bytes_and_only_with_its_run() {
        let whole = preamble();
        let cases: Vec<(Vec<u8>, bool)> = vec![
            (whole.clone(), true),
            ([&[0; 99][..], &whole].concat(), true),
            ([b"half a frame", &whole[..]].concat(), true),
            (whole[1..].to_vec(), false),
            ([&whole[..RUN], b"x", &whole[RUN..]].concat(), false),
            ([&whole[..9], b"x", &whole[9..]].concat(), false),
            ([&whole[..9], b"x", &whole].concat(), true),
            (opening(NONCE).to_vec(), false),
        ];
        for (number, (bytes, found)) in cases.into_iter().enumerate() {
            let bytes = [&bytes[..], b"hello"].concat();
            let expected = found.then(|| (NONCE, b"hello".to_vec()));
            assert_eq!(find(&bytes, 4096), expected, "case {number}");
        }
    }

    #[test]
    fn a_truncated_opening_does_not_hide_the_next_one() {
        let whole = preamble();
        // The second loop cuts the opening inside the nonce. Zeros then complete the nonce to a different one, for
        // which no host waits.
        for cut in RUN - 2..RUN + MARK.len() {
            let bytes = [&whole[..cut], &whole, b"hello"].concat();
            assert_eq!(find(&bytes, 1000), Some((NONCE, b"hello".to_vec())), "cut at {cut}");
        }
        for cut in RUN + MARK.len()..whole.len() {
            let bytes = [&whole[..cut], &whole, b"hello"].concat();
            let (other, rest) = find(&bytes, 1000).expect("an opening");
            assert_ne!(other, NONCE);
            let (mut finder, mut zeros) = (Finder::default(), Zeros::at_end_of(&other));
            let (taken, found) = finder.search(&mut zeros, &rest);
            assert_eq!((found, &rest[taken..]), (Some(NONCE), &b"hello"[..]), "cut at {cut}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn preceding_bytes_and_splits_do_not_hide_an_opening(
            before in prop::collection::vec(prop_oneof![3 => Just(0u8), 1 => any::<u8>()], 0..300),
            size in 1usize..5000,
            nonce: Nonce,
        ) {
            let bytes = [&before[..], &[0; RUN], &opening(nonce), b"hello"].concat();
            prop_assert_eq!(find(&bytes, size), Some((nonce, b"hello".to_vec())));
        }

        #[test]
        fn finds_nothing_without_a_run(bytes in prop::collection::vec(any::<u8>(), 0..9000)) {
            prop_assert_eq!(find(&bytes, 100), None);
        }
    }
}
