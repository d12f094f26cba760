//! Decodes base 85, lists of numbers, uuencoded lines and hex dumps. The module `digits` decodes the other encodings,
//! in which each digit represents a fixed number of bits.

use std::ops::Range;

use crate::digits::{MIN_BYTES, NONE, Word, digit, hex_word, table};

const MIN_BASE85: usize = 10;
/// A part of a text is decoded as base 85 only if at least one in this many characters is punctuation that base64 does
/// not use.
const BASE85_PUNCTUATION: usize = 16;

/// The alphabets of Ascii85, RFC 1924 and Z85.
static BASE85: [[u8; 256]; 3] = [
    table(b"!\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstu"),
    table(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"),
    table(b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"),
];

#[expect(clippy::cast_possible_truncation, reason = "windows are far shorter than 4 GiB")]
fn position(place: usize) -> u32 {
    place as u32
}

/// Decoded bytes with their source positions.
#[derive(Default)]
pub(crate) struct Decoded {
    pub(crate) bytes: Vec<u8>,
    places: Vec<(u32, u32)>,
}

impl Decoded {
    fn of_length(length: usize) -> Self {
        Self { bytes: Vec::with_capacity(length), places: Vec::with_capacity(length) }
    }

    fn push(&mut self, byte: u8, place: Range<usize>) {
        // Zero bytes are dropped, because they pad numbers and do not occur in secrets.
        if byte != 0 {
            self.bytes.push(byte);
            self.places.push((position(place.start), position(place.end)));
        }
    }

    fn number(&mut self, value: u64, place: &Range<usize>, back: bool) {
        let bytes = value.to_le_bytes();
        for at in 0..bytes.len() {
            self.push(bytes[if back { bytes.len() - 1 - at } else { at }], place.clone());
        }
    }

    /// Maps a range of the decoded bytes to the range of their encoded form in the text.
    pub(crate) fn source(&self, range: &Range<usize>) -> Range<usize> {
        let start = self.places.get(range.start).map_or(0, |place| place.0 as usize);
        let end = range.end.checked_sub(1).and_then(|last| self.places.get(last));
        start..end.map_or(start, |place| place.1 as usize)
    }

    /// Copies `bytes` without its zero bytes.
    pub(crate) fn without_zeros(bytes: &[u8]) -> Self {
        let mut decoded = Self::default();
        for (at, byte) in bytes.iter().enumerate() {
            decoded.push(*byte, at..at + 1);
        }
        decoded
    }
}

/// A word that can be read as a number.
struct Number {
    place: Range<usize>,
    /// The values of the word in base 10, 8 and 16. A value is `None` if the word is not a number in this base.
    values: [Option<u64>; 3],
}

impl Number {
    fn of(whole: &Word<'_>) -> Option<Self> {
        let Word { start, text: word, .. } = *whole;
        let octal = word.strip_prefix(b"0o").or_else(|| word.strip_prefix(b"o")).unwrap_or(word);
        let sixteen = hex_word(whole).filter(|(_, digits, _)| matches!(digits.len(), 4 | 8 | 16));
        let sixteen = sixteen
            .map(|(_, digits, _)| digits.iter().fold(0, |value, byte| value << 4 | u64::from(digit(*byte))));
        let values = [number(word.strip_suffix(b"u8").unwrap_or(word), 10), number(octal, 8), sixteen];
        let place = start..start + word.len();
        values.iter().any(Option::is_some).then_some(Self { place, values })
    }
}

/// Decodes lists of numbers. A number is one byte, or an integer of two, four or eight bytes. Numbers in base 8 and 10
/// are decoded in both byte orders. Numbers in base 16 are decoded only as little-endian, because
/// [`Bits`](crate::digits::Bits) decodes the big-endian form. Also decodes only every second number, because some lists
/// contain an index beside each number.
pub(crate) fn numbers(words: &[Word<'_>]) -> Vec<Decoded> {
    let all: Vec<Number> = words.iter().filter_map(Number::of).collect();
    let tens = all.iter().filter(|number| number.values[0].is_some());
    let mut decoded: Vec<Decoded> = Vec::new();
    for base in 0..3 {
        // The byte order matters only for numbers larger than one byte.
        let is_long = |number: &Number| number.values[base].is_some_and(|value| value > u64::from(u8::MAX));
        decoded.extend(list(all.iter(), base, false));
        if base < 2 && all.iter().any(is_long) {
            decoded.extend(list(all.iter(), base, true));
        }
    }
    decoded.extend(list(tens.clone().step_by(2), 0, false));
    decoded.extend(list(tens.skip(1).step_by(2), 0, false));
    decoded
}

/// Decodes a list of numbers. Returns `None` if the result would have fewer than [`MIN_BYTES`] bytes. `back` selects
/// the byte order.
fn list<'n>(numbers: impl Iterator<Item = &'n Number> + Clone, base: usize, back: bool) -> Option<Decoded> {
    let values = numbers.filter_map(|number| Some((number.values[base]?, &number.place)));
    let count = |value: u64| value.to_le_bytes().iter().filter(|byte| **byte != 0).count();
    let length = values.clone().map(|(value, _)| count(value)).sum();
    if length < MIN_BYTES {
        return None;
    }
    let mut decoded = Decoded::of_length(length);
    values.for_each(|(value, place)| decoded.number(value, place, back));
    Some(decoded)
}

fn number(digits: &[u8], base: u32) -> Option<u64> {
    if digits.is_empty() || digits.len() > 24 {
        return None;
    }
    digits.iter().try_fold(0_u64, |value, byte| {
        let digit = char::from(*byte).to_digit(base)?;
        value.checked_mul(u64::from(base))?.checked_add(u64::from(digit))
    })
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
    values: &'static [u8; 256],
    digits: Vec<u8>,
    /// The index after the last digit of each row.
    ends: Vec<usize>,
}

/// The number of digits in a group. A group encodes four bytes.
const GROUP: usize = 5;
const HIGHEST_DIGIT: u8 = 84;

impl<'t> Base85<'t> {
    /// Reads the digits of `text` in each alphabet.
    pub(crate) fn all(text: &'t [u8]) -> impl Iterator<Item = Self> {
        let is_coded = has_signs(text) && lines85(text).next().is_some();
        BASE85.iter().filter(move |_| is_coded).map(move |values| {
            let (digits, ends) = digits85(text, values);
            Self { text, values, digits, ends }
        })
    }

    /// Returns the possible numbers of digits before the first complete group of a row.
    pub(crate) fn alignments() -> Range<usize> {
        0..GROUP
    }

    /// Decodes each row without its first `skip` digits, and replaces the content of `bytes` with the result. A line
    /// break is added after each row.
    pub(crate) fn decode(&self, skip: usize, bytes: &mut Vec<u8>) {
        bytes.clear();
        bytes.resize(self.digits.len() + 2 * self.ends.len() + 8, 0);
        let (mut length, mut start) = (0, 0);
        let mut put = |value: u32, count: usize| {
            // Four bytes are always written. The next write replaces the surplus bytes.
            if value.wrapping_sub(0x0101_0101) & !value & 0x8080_8080 == 0 {
                if let Some(room) = bytes.get_mut(length..length + 4) {
                    room.copy_from_slice(&value.to_be_bytes());
                    length += count;
                }
                return;
            }
            for byte in value.to_be_bytes().into_iter().take(count).filter(|byte| *byte != 0) {
                bytes[length] = byte;
                length += 1;
            }
        };
        for end in &self.ends {
            let row = self.digits.get(start + skip..*end).unwrap_or_default();
            let (groups, rest) = row.as_chunks::<GROUP>();
            groups.iter().for_each(|digits| put(group(*digits), GROUP - 1));
            if !rest.is_empty() {
                let digit = |number| rest.get(number).copied().unwrap_or(HIGHEST_DIGIT);
                put(group([digit(0), digit(1), digit(2), digit(3), HIGHEST_DIGIT]), rest.len() - 1);
            }
            put(u32::from_be_bytes(*b"\n\n\n\n"), 1);
            start = *end;
        }
        bytes.truncate(length);
    }

    /// Works like [`decode`](Self::decode), but also returns the position of each byte in the text.
    pub(crate) fn decoded(&self, skip: usize) -> Decoded {
        let mut decoded = Decoded::default();
        rows85(self.text, self.values, |row, places| {
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

/// Returns the number that the digits of a group represent. The caller replaces a missing digit by [`HIGHEST_DIGIT`], as
/// in Ascii85 and in programs that implement RFC 1924.
fn group(digits: [u8; GROUP]) -> u32 {
    let [first, second, third, fourth, fifth] = digits.map(u32::from);
    // The two products do not depend on each other.
    (first * 85 + second).wrapping_mul(85 * 85 * 85).wrapping_add((third * 85 + fourth) * 85 + fifth)
}

/// Returns whether `text` contains punctuation that base64 does not use.
fn has_signs(text: &[u8]) -> bool {
    text.chunks(64).any(|block| block.iter().fold(0, |any, byte| any | sign(*byte)) != 0)
}

/// Returns the parts of `text` that may be base 85. Such a part consists of visible characters and line breaks, and
/// enough of the characters are punctuation.
fn lines85(text: &[u8]) -> impl Iterator<Item = Range<usize>> {
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
}

/// Returns the digits of all rows of at least [`MIN_BASE85`] digits, and for each row the number of digits up to its end.
fn digits85(text: &[u8], values: &[u8; 256]) -> (Vec<u8>, Vec<usize>) {
    let (mut digits, mut ends) = (Vec::new(), Vec::new());
    let mut length = 0;
    for part in lines85(text) {
        // Each character is written, and the next one replaces it if it is not a digit.
        digits.resize(length + part.len() + 1, 0);
        let mut start = length;
        let mut end_row = |length: &mut usize| {
            if *length - start < MIN_BASE85 {
                *length = start;
            } else {
                ends.push(*length);
                start = *length;
            }
        };
        for byte in &text[part] {
            let value = values[usize::from(*byte)];
            digits[length] = value;
            length += usize::from(value != NONE);
            if value == NONE && !matches!(byte, b'\n' | b'\r') {
                end_row(&mut length);
            }
        }
        end_row(&mut length);
    }
    digits.truncate(length);
    (digits, ends)
}

/// Calls `found` for each row of at least [`MIN_BASE85`] digits, with the values and the positions of the digits. Line
/// breaks within a row are skipped.
fn rows85(
    text: &[u8],
    values: &'static [u8; 256],
    mut found: impl FnMut(&mut dyn Iterator<Item = u8>, &[usize]),
) {
    let mut places: Vec<usize> = Vec::new();
    for part in lines85(text) {
        for at in part.clone().chain([part.end]) {
            // After the part, a space, which is not a digit, ends the row.
            let byte = if at < part.end { text[at] } else { b' ' };
            if values[usize::from(byte)] != NONE {
                places.push(at);
            } else if !matches!(byte, b'\n' | b'\r') {
                if places.len() >= MIN_BASE85 {
                    found(&mut places.iter().map(|at| values[usize::from(text[*at])]), &places);
                }
                places.clear();
            }
        }
    }
}

/// Copies `text` without its backslashes, as a shell removes them. Returns `None` if `text` has fewer than
/// [`MIN_BYTES`] backslashes.
pub(crate) fn unquoted(text: &[u8]) -> Option<Decoded> {
    memchr::memchr_iter(b'\\', text).nth(MIN_BYTES - 1)?;
    let mut decoded = Decoded::default();
    for (at, byte) in text.iter().enumerate().filter(|(_, byte)| **byte != b'\\') {
        decoded.push(*byte, at..at + 1);
    }
    Some(decoded)
}

/// Returns the ranges of the lines of `text`, without line breaks.
fn lines(text: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = text.get(at..).filter(|rest| !rest.is_empty())?;
        let start = at;
        let end = start + memchr::memchr(b'\n', rest).unwrap_or(rest.len());
        at = end + 1;
        Some(start..end - usize::from(text[start..end].ends_with(b"\r")))
    })
}

/// Decodes uuencoded lines (POSIX). Such a line consists of a byte count and of digits of six bits.
pub(crate) fn uuencoded(text: &[u8]) -> Option<Decoded> {
    let mut decoded = Decoded::default();
    for line in lines(text) {
        let Some((length, digits)) = text[line.clone()].split_first() else { continue };
        let value = |byte: &u8| byte.wrapping_sub(b' ') & 63;
        let wanted = usize::from(value(length)).div_ceil(3) * 4;
        if !(b'!'..=b'`').contains(length)
            || digits.len() != wanted
            || !digits.iter().all(|byte| (b' '..=b'`').contains(byte))
        {
            continue;
        }
        for (number, four) in digits.chunks(4).enumerate() {
            let group = four.iter().fold(0, |group, byte| group << 6 | u32::from(value(byte)));
            let start = line.start + 1 + 4 * number;
            for byte in group.to_be_bytes().into_iter().skip(1) {
                decoded.push(byte, start..start + 4);
            }
        }
    }
    (!decoded.bytes.is_empty()).then_some(decoded)
}

/// The possible numbers of digits in the offset at the start of a line of a hex dump.
const OFFSET: std::ops::RangeInclusive<usize> = 6..=16;

/// Copies a hex dump without the offset and text columns, which `od`, `xxd`, `hexdump` and debuggers print. Returns
/// `None` if no line begins with an offset.
pub(crate) fn dump(text: &[u8]) -> Option<Decoded> {
    lines(text).find(|line| offset(&text[line.clone()]).is_some())?;
    let mut decoded = Decoded::default();
    for line in lines(text) {
        let (start, words) = (line.start, &text[line.clone()]);
        let body = offset(words).map_or(0..words.len(), |(length, colon)| {
            let rest = &words[length..];
            let column =
                [&b"  |"[..], b"  >"].iter().filter_map(|sign| memchr::memmem::find(rest, sign)).min();
            // `xxd` prints two spaces before the text column.
            let gap = rest.len() - rest.trim_ascii_start().len();
            let wide = || memchr::memmem::find(&rest[gap..], b"  ").map(|at| at + gap);
            length..length + column.or_else(|| wide().filter(|_| colon)).unwrap_or(rest.len())
        });
        for at in body {
            decoded.push(words[at], start + at..start + at + 1);
        }
        decoded.push(b'\n', line.end..line.end + 1);
    }
    Some(decoded)
}

/// Returns the length of the hex dump offset at the start of a line, and whether a colon follows the offset.
fn offset(line: &[u8]) -> Option<(usize, bool)> {
    let skip = if line.starts_with(b"0x") { 2 } else { 0 };
    let most = line[skip..].iter().take(OFFSET.end() + 1);
    let digits = most.take_while(|byte| byte.is_ascii_hexdigit()).count();
    let end = skip + digits;
    let colon = match line.get(end)? {
        b':' => true,
        b' ' | b'\t' => false,
        _ => return None,
    };
    OFFSET.contains(&digits).then_some((end + usize::from(colon), colon))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn base_85_has_the_same_bytes_with_and_without_positions(
            text in prop::collection::vec(any::<u8>(), 0..200),
            digits in "[!-z]{0,80}[ \n]{0,2}[!-~]{0,80}",
        ) {
            for text in [text.as_slice(), digits.as_bytes()] {
                for rows in Base85::all(text) {
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
