//! Reads rows of base32 digits in a text, in upper and lower case and in both alphabets of RFC 4648.

use std::ops::Range;

use crate::digits::{Digits, MIN_BYTES, NONE, escape_length, is_hexadecimal, is_of_escape, table, unescaped};
use crate::prefilter::{BLOCK, bit_set, only_if, starts};

/// The minimum number of digits in a row of base32.
const MIN_BASE32: usize = (8 * MIN_BYTES).div_ceil(5);
/// A row of lower-case base32 is decoded only if at least one of 24 characters is a decimal digit, or if the row
/// contains a word of [`LONG_WORD`] digits. Any other row is treated as prose.
const BASE32_DIGITS: usize = 24;
const LONG_WORD: usize = 20;

/// The values of the bytes in each alphabet, or [`NONE`].
pub(crate) const ALPHABETS: [[u8; 256]; 4] = [
    table(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"),
    table(b"abcdefghijklmnopqrstuvwxyz234567"),
    table(b"0123456789ABCDEFGHIJKLMNOPQRSTUV"),
    table(b"0123456789abcdefghijklmnopqrstuv"),
];

/// Returns the rows of at least [`MIN_BASE32`] base32 digits, each with the index of its alphabet. Punctuation and
/// spaces between the digits are ignored. A letter or decimal digit that is not in the alphabet ends the row.
pub(crate) fn rows(text: &[u8]) -> Vec<(usize, Range<usize>)> {
    let mut rows: Vec<(usize, Range<usize>)> = Vec::new();
    let mut ends = [0_usize; 4];
    let mut next = Ends::in_block(text, 0);
    for start in (0..text.len()).step_by(BLOCK) {
        let blocks = [next, Ends::in_block(text, start + BLOCK)];
        next = blocks[1];
        let inside = u64::MAX >> BLOCK.saturating_sub(text.len() - start);
        let of_case = [0, 1].map(|case| row_starts(blocks.map(|block| block.cases[case])) & inside);
        // The alphabets of one case have even numbers. Most blocks have no row, because both cases end it.
        for alphabet in (0..ALPHABETS.len()).filter(|alphabet| of_case[alphabet % 2] != 0) {
            let starts = row_starts(blocks.map(|block| block.of(alphabet))) & inside;
            // A row that begins in an earlier block is added only once.
            while let Some(next) = first_from(starts, ends[alphabet].saturating_sub(start)) {
                let at = start + next;
                let row = row(text, at + usize::from(is_escaped(text, at)), alphabet);
                // If a character that ends the row follows a backslash, `row` is the preceding row.
                let is_new = row.start >= ends[alphabet];
                ends[alphabet] = row.end.max(at + 1);
                if is_new && has_digits(&text[row.clone()], &ALPHABETS[alphabet]) {
                    rows.push((alphabet, row));
                }
            }
        }
    }
    rows
}

/// Returns the position of the first bit of `bits` from the bit `from` on.
fn first_from(bits: u64, from: usize) -> Option<usize> {
    let bits = bits & u64::MAX.checked_shl(u32::try_from(from).ok()?)?;
    (bits != 0).then(|| bits.trailing_zeros() as usize)
}

/// Returns whether `row` contains at least [`MIN_BASE32`] digits.
fn has_digits(row: &[u8], values: &[u8; 256]) -> bool {
    let digits = unescaped(row).flatten().filter(|at| values[usize::from(row[*at])] != NONE);
    digits.take(MIN_BASE32).count() == MIN_BASE32
}

/// Returns the positions of the first of two blocks from which on none of the next [`MIN_BASE32`] characters ends a row.
/// `ends` contains the characters of the blocks that end a row. A long enough row has such a position.
#[expect(clippy::cast_possible_truncation, reason = "the positions in the first block")]
fn row_starts([first, second]: [u64; 2]) -> u64 {
    starts(!(u128::from(first) | u128::from(second) << BLOCK), MIN_BASE32) as u64
}

/// The characters of a block that end rows of base32 digits.
#[derive(Clone, Copy)]
struct Ends {
    /// The alphabets whose rows end at each character, see [`ends_base32`].
    alphabets: [u8; BLOCK],
    /// The characters that end the rows of all alphabets without small letters, and of all those without capital
    /// letters, as bit sets.
    cases: [u64; 2],
}

impl Ends {
    /// Reads the block at `start`. Beyond the text, no character ends a row.
    fn in_block(text: &[u8], start: usize) -> Self {
        // The block with the character before it.
        if let Some(near) = start.checked_sub(1).and_then(|from| text.get(from..)?.first_chunk()) {
            return Self::of_near(near);
        }
        let mut near = [0; BLOCK + 1];
        let there = text.get(start.saturating_sub(1)..).unwrap_or_default();
        let room = &mut near[usize::from(start == 0)..];
        let length = there.len().min(room.len());
        room[..length].copy_from_slice(&there[..length]);
        Self::of_near(&near)
    }

    /// Reads a block. The first byte of `near` precedes the block. This function has no branches, so that the compiler
    /// can vectorize it.
    fn of_near(near: &[u8; BLOCK + 1]) -> Self {
        let mut alphabets = [0; BLOCK];
        for ((end, before), byte) in alphabets.iter_mut().zip(near).zip(&near[1..]) {
            // The letter of an escape ends no row.
            *end = ends_base32(*byte) & u8::from(*before == b'\\').wrapping_sub(1);
        }
        let cases = [0, 1].map(|case| bit_set(&alphabets.map(|ends| (ends & ends >> 2) >> case)));
        Self { alphabets, cases }
    }

    /// Returns the characters that end the rows of `alphabet`, as a bit set.
    fn of(&self, alphabet: usize) -> u64 {
        bit_set(&self.alphabets.map(|ends| ends >> alphabet))
    }
}

/// Returns the base32 alphabets whose rows end at `byte`, as a bit set: the byte is a letter or a decimal digit that is
/// not in the alphabet.
#[inline(always)]
fn ends_base32(byte: u8) -> u8 {
    let is_other_digit = (byte.wrapping_sub(b'0') < 2) | (byte.wrapping_sub(b'8') < 2);
    only_if(is_other_digit, 0b0011)
        | only_if(byte.wrapping_sub(b'A') < 26, 0b1010)
        | only_if(byte.wrapping_sub(b'a') < 26, 0b0101)
        | only_if(byte.wrapping_sub(b'W') < 4, 0b0100)
        | only_if(byte.wrapping_sub(b'w') < 4, 0b1000)
}

/// Returns whether an odd number of backslashes precedes the character at `at`, and the character is the second one of
/// an escape that [`unescaped`] leaves out.
fn is_escaped(text: &[u8], at: usize) -> bool {
    let slashes = text[..at].iter().rev().take_while(|byte| **byte == b'\\').count();
    slashes % 2 == 1 && matches!(text[at], b'n' | b'r' | b't' | b'\\')
}

/// Returns the row of base32 digits that contains the position `at`.
fn row(text: &[u8], at: usize, alphabet: usize) -> Range<usize> {
    let ends = |place: usize| ends_base32(text[place]) >> alphabet & 1 != 0;
    let before = |place: &usize| ends(*place) && !is_of_escape(text, *place);
    let start = (0..at).rev().find(before).map_or(0, |place| place + 1);
    let mut end = at;
    while end < text.len() {
        if text[end..].first_chunk().is_some_and(|block| goes_on(block, alphabet)) {
            end += BLOCK;
            continue;
        }
        let next = text.len().min(end + BLOCK);
        while end < next {
            if ends(end) {
                return start..end;
            }
            end += escape_length(text, end);
        }
    }
    start..text.len()
}

/// Returns whether no character of `block` ends a row of digits or begins an escape. This function has no branches, so
/// that the compiler can vectorize it.
fn goes_on(block: &[u8; BLOCK], alphabet: usize) -> bool {
    let ends = |byte: &u8| ends_base32(*byte) >> alphabet & 1 | u8::from(*byte == b'\\');
    block.iter().fold(0, |any, byte| any | ends(byte)) == 0
}

/// Passes the digits in a row of base32 digits to `digits`.
pub(crate) fn read(row: &[u8], alphabet: usize, digits: &mut impl Digits) {
    let values = &ALPHABETS[alphabet];
    for range in unescaped(row) {
        for at in range {
            let value = values[usize::from(row[at])];
            digits.push_if(value != NONE, value, at);
        }
    }
}

/// Returns whether a row of base32 digits may be encoded data rather than prose or a hexadecimal number.
pub(crate) fn is_coded(row: &[u8], alphabet: usize) -> bool {
    let values = &ALPHABETS[alphabet];
    if is_hexadecimal(row) {
        return false;
    }
    if values[usize::from(b'c')] == NONE {
        return true;
    }
    let (mut count, mut numerals) = (0, 0);
    for range in unescaped(row) {
        let mut word = 0;
        for at in range {
            let is_digit = values[usize::from(row[at])] != NONE;
            count += usize::from(is_digit);
            numerals += usize::from(is_digit && row[at].is_ascii_digit());
            word = if is_digit { word + 1 } else { 0 };
            if word >= LONG_WORD {
                return true;
            }
        }
    }
    numerals * BASE32_DIGITS >= count
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn words_are_no_base32() {
        let is_read =
            |text: &[u8]| rows(text).iter().any(|(alphabet, row)| is_coded(&text[row.clone()], *alphabet));
        assert!(!is_read(b"some words of small letters"));
        assert!(is_read(b"onxw2zja mruwo2lu omqg6zra"));
        assert!(is_read(b"onxwozjamruwozluomqgozra"), "a long word");
        assert!(is_read(b"SOME WORDS OF CAPITAL LETTERS"));
    }

    #[test]
    fn a_character_ends_the_rows_of_the_alphabets_without_it() {
        for byte in 0..=u8::MAX {
            let ends = |alphabet: usize| {
                ALPHABETS[alphabet][usize::from(byte)] == NONE && byte.is_ascii_alphanumeric()
            };
            let expected = (0..4).fold(0, |all, alphabet| all | u8::from(ends(alphabet)) << alphabet);
            assert_eq!(ends_base32(byte), expected, "{byte}");
        }
    }

    #[test]
    fn a_row_before_a_backslash_is_added_once() {
        assert_eq!(rows(br"a2aaaaaaa2222\8"), [(1, 0..14), (3, 0..15)]);
    }

    /// Returns the row that contains the position `at` as [`row`](super::row) does, but reads each character.
    fn row_by_characters(text: &[u8], at: usize, values: &[u8; 256]) -> Range<usize> {
        let ends =
            |place: usize| values[usize::from(text[place])] == NONE && text[place].is_ascii_alphanumeric();
        let before = |place: &usize| ends(*place) && !is_of_escape(text, *place);
        let start = (0..at).rev().find(before).map_or(0, |place| place + 1);
        let mut end = at;
        while end < text.len() && !ends(end) {
            end += escape_length(text, end);
        }
        start..end.min(text.len())
    }

    /// Finds the rows of base32 digits as [`rows`] does, but reads each character of the text.
    fn all_rows(text: &[u8]) -> Vec<(usize, Range<usize>)> {
        let mut rows = Vec::new();
        let (mut counts, mut ends) = ([0; 4], [0; 4]);
        for at in unescaped(text).flatten() {
            for (alphabet, values) in ALPHABETS.iter().enumerate() {
                if values[usize::from(text[at])] != NONE {
                    counts[alphabet] += 1;
                } else if text[at].is_ascii_alphanumeric() {
                    counts[alphabet] = 0;
                }
                if counts[alphabet] >= MIN_BASE32 && at >= ends[alphabet] {
                    let row = row_by_characters(text, at, values);
                    ends[alphabet] = row.end;
                    rows.push((alphabet, row));
                }
            }
        }
        rows
    }

    proptest! {
        #[test]
        fn no_row_of_base32_is_skipped(
            parts in prop::collection::vec((r"[A-Za-z0-9+/]{0,90}", r"[A-Z2-7\\\\nt ,]{0,40}|[0-9a-v\\\\rn-]{0,40}|[a-z2-7\\\\]{0,20}|([2-7A-V]{60,70}\\?[nt2 ]?){1,3}|([2-7a-v]{60,70}\\?[nt2 ]?){1,3}"), 1..6),
        ) {
            let text: String = parts.into_iter().flat_map(|(noise, row)| [noise, row]).collect();
            let mut rows = super::rows(text.as_bytes());
            let mut all = all_rows(text.as_bytes());
            rows.sort_by_key(|(alphabet, row)| (*alphabet, row.start));
            all.sort_by_key(|(alphabet, row)| (*alphabet, row.start));
            prop_assert_eq!(rows, all);
        }
    }
}
