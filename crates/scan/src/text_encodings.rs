//! Decodes lists of numbers, uuencoded lines and hex dumps. The module `digits` decodes the encodings in which each digit
//! represents a fixed number of bits, and `base85` decodes base 85.

use std::ops::Range;

use crate::digits::{MIN_BYTES, Word, digit, hex_word};

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

    pub(crate) fn push(&mut self, byte: u8, place: Range<usize>) {
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
