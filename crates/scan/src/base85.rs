//! Decodes base 85 in the alphabets of Ascii85, RFC 1924 and Z85, at each alignment.
//!
//! The bytes of the groups that begin at each digit are computed once, in loops without branches. Each of the five
//! alignments then copies every fifth group.

use std::ops::Range;

use crate::digits::{NONE, table};
use crate::text_encodings::Decoded;

const MIN_BASE85: usize = 10;
/// A part of a text is decoded as base 85 only if at least one in this many characters is punctuation that base64 does
/// not use.
const BASE85_PUNCTUATION: usize = 16;

/// The number of digits in a group. A group encodes four bytes.
const GROUP: usize = 5;
const HIGHEST_DIGIT: u8 = 84;
/// Marks a line break in an alphabet. Line breaks are skipped.
const BREAK: u8 = 0xfe;

/// The alphabets of Ascii85, RFC 1924 and Z85.
static BASE85: [[u8; 256]; 3] = [
    alphabet(b"!\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstu"),
    alphabet(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"),
    alphabet(b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"),
];

const fn alphabet(digits: &[u8; 85]) -> [u8; 256] {
    let mut values = table(digits);
    values[b'\n' as usize] = BREAK;
    values[b'\r' as usize] = BREAK;
    values
}

/// Returns 1 for punctuation that base64 does not use, and 0 for any other byte.
fn sign(byte: u8) -> u8 {
    let is_letter = ((byte | 0x20).wrapping_sub(b'a') < 26) | (byte.wrapping_sub(b'0') < 10);
    let is_of_base64 =
        (byte == b'+') | (byte == b'/') | (byte == b'-') | (byte == b'_') | (byte == b'=') | is_letter;
    u8::from((byte.wrapping_sub(b'!') < 94) & !is_of_base64)
}

/// The base 85 digits of a text in one of the three alphabets. About a quarter of the digits in base 85 are
/// punctuation, which is rare in base64.
pub(crate) struct Base85<'t> {
    text: &'t [u8],
    parts: &'t [Range<usize>],
    values: &'static [u8; 256],
    groups: Groups,
}

impl<'t> Base85<'t> {
    /// Reads the digits of `text` in each alphabet. `parts` are the [`parts`] of `text`.
    pub(crate) fn all(text: &'t [u8], parts: &'t [Range<usize>]) -> impl Iterator<Item = Self> {
        BASE85.iter().filter(|_| !parts.is_empty()).map(move |values| {
            let groups = Groups::of(&Rows::read(text, parts, values));
            Self { text, parts, values, groups }
        })
    }

    /// Returns the possible numbers of digits before the first complete group of a row.
    pub(crate) fn alignments() -> Range<usize> {
        0..GROUP
    }

    /// Decodes each row without its first `skip` digits, and replaces the content of `bytes` with the result. A line
    /// break is added after each row.
    pub(crate) fn decode(&self, skip: usize, bytes: &mut Vec<u8>) {
        bytes.resize(self.groups.numbers.len().div_ceil(GROUP) * 4, 0);
        let numbers = self.groups.numbers.get(skip..).unwrap_or_default().as_chunks::<GROUP>().0;
        let lengths = self.groups.lengths.get(skip..).unwrap_or_default().as_chunks::<GROUP>().0;
        let mut end = 0;
        for ([number, ..], [length, ..]) in numbers.iter().zip(lengths) {
            // Four bytes are always written. The next write replaces the surplus bytes.
            if let Some(room) = bytes.get_mut(end..end + 4) {
                room.copy_from_slice(&number.to_be_bytes());
            }
            end += usize::from(*length);
        }
        bytes.truncate(end);
    }

    /// Works like [`decode`](Self::decode), but also returns the position of each byte in the text.
    pub(crate) fn decoded(&self, skip: usize) -> Decoded {
        let mut decoded = Decoded::default();
        rows(self.text, self.parts, self.values, |row, places| {
            let row: Vec<(u8, usize)> = row.zip(places.iter().copied()).collect();
            for digits in row.get(skip..).unwrap_or_default().chunks(GROUP) {
                let place = digits[0].1..digits[digits.len() - 1].1 + 1;
                let digit = |number| digits.get(number).map_or(HIGHEST_DIGIT, |(value, _)| *value);
                let value = group([0, 1, 2, 3, 4].map(digit));
                for byte in value.to_be_bytes().into_iter().take(digits.len() - 1) {
                    decoded.push(byte, place.clone());
                }
            }
            let end = places.last().map_or(0, |last| last + 1);
            decoded.push(b'\n', end..end);
        });
        decoded
    }
}

/// The decoded groups that begin at each digit of some rows.
struct Groups {
    /// The bytes of each group as a number. The first byte is the most significant one.
    numbers: Vec<u32>,
    /// How many of the bytes belong to the decoded data, from the first one on.
    lengths: Vec<u8>,
}

impl Groups {
    fn of(rows: &Rows) -> Self {
        /// The lengths of the incomplete groups at the end of a row, and of the line break.
        const LAST: [u8; 13] = [3, 2, 1, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0];
        let mut numbers = numbers(&rows.digits);
        let mut lengths = vec![4; numbers.len()];
        for end in &rows.ends {
            let start = end + 1 - GROUP;
            // Of the nine places after a row, some may already belong to the next row.
            let last = &LAST[..LAST.len().min(GROUP - 1 + Rows::spare(*end))];
            lengths[start..start + last.len()].copy_from_slice(last);
            numbers[*end..end + GROUP].fill(u32::from_be_bytes([b'\n'; 4]));
        }
        // At each alignment, the last place has to begin a complete chunk. The chunks after it are empty.
        numbers.resize(numbers.len() + GROUP, 0);
        lengths.resize(numbers.len(), 0);
        let mut groups = Self { numbers, lengths };
        groups.remove_zeros();
        groups
    }

    /// Removes the zero bytes, which pad numbers and do not occur in secrets.
    fn remove_zeros(&mut self) {
        const ROW: usize = 8;
        let rows = self.numbers.chunks_mut(ROW).zip(self.lengths.chunks_mut(ROW));
        for (numbers, lengths) in rows {
            // Few rows have a zero byte. This loop has no branches, so that the compiler can vectorize it.
            if numbers.iter().fold(0, |any, number| any | zeros(*number)) == 0 {
                continue;
            }
            for (number, length) in numbers.iter_mut().zip(lengths).filter(|(number, _)| zeros(**number) != 0)
            {
                let (mut bytes, mut count) = ([0; 4], 0);
                for byte in number.to_be_bytes().into_iter().take(usize::from(*length)) {
                    bytes[usize::from(count)] = byte;
                    count += u8::from(byte != 0);
                    if usize::from(count) == bytes.len() {
                        break;
                    }
                }
                (*number, *length) = (u32::from_be_bytes(bytes), count);
            }
        }
    }
}

/// Returns a number that is not 0 if one of the bytes of `number` is zero.
#[inline(always)]
fn zeros(number: u32) -> u32 {
    number.wrapping_sub(0x0101_0101) & !number & 0x8080_8080
}

/// Returns the number that the digits of a group represent. The caller replaces a missing digit by [`HIGHEST_DIGIT`], as
/// in Ascii85 and in programs that implement RFC 1924.
fn group(digits: [u8; GROUP]) -> u32 {
    let [first, second, third, fourth, last] = digits;
    number(pair(first, second), pair(third, fourth), last)
}

/// Returns the number that two digits represent.
#[inline(always)]
fn pair(first: u8, second: u8) -> u16 {
    u16::from(first) * 85 + u16::from(second)
}

/// Returns the number that two pairs of digits and the last digit of a group represent. The products have factors of 16
/// bits, because vectors of them are fast on all processors.
#[inline(always)]
fn number(first: u16, second: u16, last: u8) -> u32 {
    const POWER: u32 = 85 * 85 * 85;
    const HIGH: u16 = (POWER >> 16) as u16;
    const LOW: u32 = POWER & 0xffff;
    let first = (u32::from(first.wrapping_mul(HIGH)) << 16).wrapping_add(u32::from(first) * LOW);
    first.wrapping_add(u32::from(second) * 85 + u32::from(last))
}

/// Returns the numbers of the groups that begin at each digit. A group may go on beyond the last digit.
fn numbers(digits: &[u8]) -> Vec<u32> {
    let next = digits.get(1..).unwrap_or_default();
    let pairs: Vec<u16> = digits.iter().zip(next).map(|(first, second)| pair(*first, *second)).collect();
    let second = pairs.get(2..).unwrap_or_default();
    let last = digits.get(GROUP - 1..).unwrap_or_default();
    let groups = pairs.iter().zip(second).zip(last);
    let mut numbers = Vec::with_capacity(digits.len());
    numbers.extend(groups.map(|((first, second), last)| number(*first, *second, *last)));
    numbers.resize(digits.len(), 0);
    numbers
}

/// Returns whether `text` contains punctuation that base64 does not use.
fn has_signs(text: &[u8]) -> bool {
    text.chunks(64).any(|block| block.iter().fold(0, |any, byte| any | sign(*byte)) != 0)
}

/// Returns the parts of `text` that may be base 85. Such a part consists of visible characters and line breaks, and
/// enough of the characters are punctuation.
pub(crate) fn parts(text: &[u8]) -> Vec<Range<usize>> {
    if !has_signs(text) {
        return Vec::new();
    }
    let mut next = 0;
    let parts = text.split(|byte| !byte.is_ascii_graphic() && !matches!(byte, b'\n' | b'\r'));
    parts
        .map(move |part| {
            let start = next;
            next += part.len() + 1;
            start..start + part.len()
        })
        .filter(|part| {
            let part = &text[part.clone()];
            let signs = part
                .chunks(64)
                .map(|block| usize::from(block.iter().map(|byte| sign(*byte)).sum::<u8>()))
                .sum::<usize>();
            part.len() >= MIN_BASE85 && signs * BASE85_PUNCTUATION >= part.len()
        })
        .collect()
}

/// The rows of at least [`MIN_BASE85`] digits in a text. Line breaks within a row are left out.
#[derive(Default)]
struct Rows {
    /// The digits of all rows. Each row begins at a multiple of [`GROUP`], and between the rows are digits
    /// [`HIGHEST_DIGIT`], at least [`GROUP`] after each row. Every alignment therefore has the same place in all rows.
    digits: Vec<u8>,
    /// The index after the last digit of each row.
    ends: Vec<usize>,
}

impl Rows {
    fn read(text: &[u8], parts: &[Range<usize>], values: &[u8; 256]) -> Self {
        let mut rows = Self::default();
        let mut read = Vec::new();
        for part in parts {
            read.clear();
            read.extend(text[part.clone()].iter().map(|byte| values[usize::from(*byte)]));
            let mut rest = &read[..];
            loop {
                let (row, after) = rest.split_at(memchr::memchr(NONE, rest).unwrap_or(rest.len()));
                rows.add(row);
                match after {
                    [_, after @ ..] => rest = after,
                    [] => break,
                }
            }
        }
        rows
    }

    /// Adds a row with its line breaks if it has enough digits.
    fn add(&mut self, row: &[u8]) {
        if row.len() < MIN_BASE85 {
            return;
        }
        let start = self.digits.len();
        for line in row.split(|value| *value == BREAK) {
            self.digits.extend_from_slice(line);
        }
        let end = self.digits.len();
        if end - start < MIN_BASE85 {
            return self.digits.truncate(start);
        }
        self.ends.push(end);
        self.digits.resize(end + Self::spare(end), HIGHEST_DIGIT);
    }

    /// Returns the number of digits between the end of a row at `end` and the next row.
    fn spare(end: usize) -> usize {
        GROUP + (GROUP - end % GROUP) % GROUP
    }
}

/// Calls `found` for each row of at least [`MIN_BASE85`] digits, with the values and the positions of the digits. Line
/// breaks within a row are skipped.
fn rows(
    text: &[u8],
    parts: &[Range<usize>],
    values: &'static [u8; 256],
    mut found: impl FnMut(&mut dyn Iterator<Item = u8>, &[usize]),
) {
    let mut places: Vec<usize> = Vec::new();
    for part in parts {
        for at in part.clone().chain([part.end]) {
            // After the part, a space, which is not a digit, ends the row.
            match values[usize::from(if at < part.end { text[at] } else { b' ' })] {
                BREAK => {}
                NONE => {
                    if places.len() >= MIN_BASE85 {
                        found(&mut places.iter().map(|at| values[usize::from(text[*at])]), &places);
                    }
                    places.clear();
                }
                _ => places.push(at),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_group_is_the_number_of_its_digits() {
        for digits in
            [[0; 5], [84; 5], [0, 0, 0, 0, 1], [82, 23, 54, 12, 0], [82, 23, 54, 12, 1], [41, 7, 0, 84, 33]]
        {
            let whole = digits.iter().fold(0_u64, |whole, digit| whole * 85 + u64::from(*digit));
            assert_eq!(u64::from(group(digits)), whole % (1 << 32), "{digits:?}");
        }
    }

    proptest! {
        #[test]
        fn base_85_has_the_same_bytes_with_and_without_positions(
            text in prop::collection::vec(any::<u8>(), 0..200),
            digits in "[!-z]{0,80}[ \n]{0,2}[!-~]{0,80}",
            // Groups of zero digits decode to zero bytes in two of the alphabets, and `!` does in the third one.
            zeros in "([!-~]{0,30}(0{3,9}|!{3,9}|[\r\n]|v)){0,12}",
        ) {
            for text in [text.as_slice(), digits.as_bytes(), zeros.as_bytes()] {
                let parts = parts(text);
                for rows in Base85::all(text, &parts) {
                    for skip in Base85::alignments() {
                        let decoded = rows.decoded(skip);
                        let mut bytes = b"what is there".to_vec();
                        rows.decode(skip, &mut bytes);
                        prop_assert_eq!(&bytes, &decoded.bytes);
                        let whole = decoded.source(&(0..decoded.bytes.len()));
                        prop_assert!(whole.start <= whole.end && whole.end <= text.len());
                    }
                }
            }
        }
    }
}
