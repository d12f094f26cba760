//! One byte stream for one connection after another: a container's standard streams.
//!
//! An engine attaches such a stream again and again, and it has no beginning that both ends see: what is
//! written while nobody is attached is thrown away at any byte, and a killed keeper leaves half a frame
//! behind. So each connection says where it begins, and where it ends:
//!
//! ```text
//! to the inside      … cut ┃ RUN zeros │ MARK │ nonce │ hello, frames … ┃ RUN zeros │ MARK │ nonce │ …
//! from the inside    … cut ┃ (RUN zeros) │ MARK │ nonce │ hello, frames … ┃ …
//! ```
//! - [`RUN`] zero bytes end what was before them. No frame holds so many in a row: requests and messages
//!   are JSON, which has none, and data and sentences are shorter.
//! - The mark and a nonce open a connection. The inside repeats both as its first bytes, and the host
//!   passes over everything before them: nothing old can carry a nonce that was drawn a moment ago.
//! - Either side closes a connection with another run of zeros, because neither can close the stream.
//!
//! The one trace that a cut leaves: the zeros may fill up a data frame that was cut in the middle, so
//! that its stream gets them before it is reset with the connection.
//!
//! Only the two ends may be able to write to the stream; what is here keeps accidents apart, not
//! attackers. What a bottle's processes say travels inside frames and can neither hold a run nor guess a
//! nonce.

mod host;
mod inside;

pub use host::{Rejoined, rejoin};
pub use inside::{Connection, Rejoinable};

use bottle_contract::session::frame::MAX_DATA;

/// Zeros that end a connection: more than the longest payload that may be all zeros, with the headers
/// around it.
pub const RUN: usize = 2 * MAX_DATA;

/// What follows the zeros when a connection begins. It starts with no zero, or the run would have no end.
const MARK: [u8; 16] = *b"\x7fbottle-rejoin\n\xfe";

/// Names one connection.
type Nonce = [u8; 16];

/// The mark with its nonce.
const OPENING: usize = MARK.len() + size_of::<Nonce>();

fn opening(nonce: Nonce) -> [u8; OPENING] {
    let mut bytes = [0; OPENING];
    bytes[..MARK.len()].copy_from_slice(&MARK);
    bytes[MARK.len()..].copy_from_slice(&nonce);
    bytes
}

/// The zeros at the end of what was seen, up to a [`RUN`] of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Zeros(usize);

impl Zeros {
    /// Those at the end of `bytes`, which have no run among them.
    fn behind(bytes: &[u8]) -> Self {
        Self(bytes.iter().rev().take_while(|byte| **byte == 0).count())
    }

    fn is_run(self) -> bool {
        self.0 >= RUN
    }

    /// Counts on; where in `bytes` a run is complete, if it is.
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

/// Finds where a connection begins.
#[derive(Debug, Default)]
struct Finder {
    /// What came after a run so far.
    mark: Vec<u8>,
}

impl Finder {
    /// Looks through `bytes`, which go on from where `zeros` counted to. How many were taken, and the
    /// nonce if a connection begins behind them; otherwise all were.
    fn look(&mut self, zeros: &mut Zeros, bytes: &[u8]) -> (usize, Option<Nonce>) {
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

    /// One byte behind a run.
    fn take(&mut self, zeros: &mut Zeros, byte: u8) -> Option<Nonce> {
        if self.mark.is_empty() && byte == 0 {
            // A run may be longer than it has to be.
            return None;
        }
        self.mark.push(byte);
        if self.mark.len() < OPENING {
            return None;
        }
        // An opening that was cut goes on with the zeros of the next one.
        *zeros = Zeros::behind(&self.mark);
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

    /// What is found, and what is left behind it, when the bytes come in pieces of `size`.
    fn find(bytes: &[u8], size: usize) -> Option<(Nonce, Vec<u8>)> {
        let (mut finder, mut zeros, mut at) = (Finder::default(), Zeros::default(), 0);
        for piece in bytes.chunks(size) {
            let (taken, found) = finder.look(&mut zeros, piece);
            at += taken;
            if let Some(nonce) = found {
                return Some((nonce, bytes[at..].to_vec()));
            }
            assert_eq!(taken, piece.len());
        }
        None
    }

    #[test]
    fn an_opening_is_found_behind_anything_and_only_with_its_run() {
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
    fn an_opening_that_was_cut_anywhere_does_not_hide_the_next_one() {
        let whole = preamble();
        // Inside the nonce a cut makes another nonce of it: nobody waits for that one.
        for cut in RUN - 2..RUN + MARK.len() {
            let bytes = [&whole[..cut], &whole, b"hello"].concat();
            assert_eq!(find(&bytes, 1000), Some((NONCE, b"hello".to_vec())), "cut at {cut}");
        }
        for cut in RUN + MARK.len()..whole.len() {
            let bytes = [&whole[..cut], &whole, b"hello"].concat();
            let (other, rest) = find(&bytes, 1000).expect("an opening");
            assert_ne!(other, NONCE);
            let (mut finder, mut zeros) = (Finder::default(), Zeros::behind(&other));
            let (taken, found) = finder.look(&mut zeros, &rest);
            assert_eq!((found, &rest[taken..]), (Some(NONCE), &b"hello"[..]), "cut at {cut}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn no_bytes_before_and_no_pieces_hide_an_opening(
            before in prop::collection::vec(prop_oneof![3 => Just(0u8), 1 => any::<u8>()], 0..300),
            size in 1usize..5000,
            nonce: Nonce,
        ) {
            let bytes = [&before[..], &[0; RUN], &opening(nonce), b"hello"].concat();
            prop_assert_eq!(find(&bytes, size), Some((nonce, b"hello".to_vec())));
        }

        #[test]
        fn without_a_run_nothing_is_found(bytes in prop::collection::vec(any::<u8>(), 0..9000)) {
            prop_assert_eq!(find(&bytes, 100), None);
        }
    }
}
