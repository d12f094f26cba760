//! Reads digits of base 2, 16, 32 and 64 in a text, and decodes them to bytes at each alignment.
//!
//! The values of the digits are read in loops without branches, because files and images contain megabytes of digits.
//! The positions of the digits are needed only for findings, so they are read only when there is a finding.

use std::cell::OnceCell;
use std::ops::Range;

use crate::base32;
use crate::prefilter::{BLOCK, bit_set, only_if, starts};

/// The minimum number of decoded bytes that are searched. Fewer bytes cannot contain a known secret.
pub(crate) const MIN_BYTES: usize = 8;
/// The minimum length of a long hexadecimal number. All letters of a long hexadecimal number have the same case. Such
/// words are rare in other encodings: one in 2^64 words of base64 is a hexadecimal number.
const LONG_NUMBER: usize = 32;

/// The minimum number of hexadecimal digits in a row that is part of a longer word.
const LONG_ROW: usize = 2 * MIN_BYTES;

/// Marks a byte that is not a digit of the encoding.
pub(crate) const NONE: u8 = 0xff;

pub(crate) const fn table(alphabet: &[u8]) -> [u8; 256] {
    let mut values = [NONE; 256];
    let mut at = 0;
    while at < alphabet.len() {
        #[allow(clippy::cast_possible_truncation, reason = "alphabets are short")]
        let value = at as u8;
        values[alphabet[at] as usize] = value;
        at += 1;
    }
    values
}

/// Converts the index of a table entry to its byte.
#[expect(clippy::cast_possible_truncation, reason = "tables have 256 entries")]
const fn letter(byte: usize) -> u8 {
    byte as u8
}

/// Maps each byte to its value as a base64 digit, in the standard and in the URL-safe alphabet.
pub(crate) static BASE64: [u8; 256] = {
    let mut values = table(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/");
    values[b'-' as usize] = 62;
    values[b'_' as usize] = 63;
    values
};
/// An encoding of bytes as digits.
#[derive(Debug, Clone, Copy)]
enum Encoding {
    Base64,
    Hexadecimal,
    Binary,
    /// Base32. The value is the index of the alphabet in [`base32::ALPHABETS`].
    Base32(usize),
}

impl Encoding {
    const fn width(self) -> usize {
        match self {
            Self::Base64 => 6,
            Self::Hexadecimal => 4,
            Self::Binary => 1,
            Self::Base32(_) => 5,
        }
    }

    /// Reads the digits of `text` and passes them to `digits`. `words` are the words of `text`. The decoding of base32
    /// does not need `words`.
    fn read(self, text: &[u8], words: &[Word<'_>], digits: &mut impl Digits) {
        match self {
            Self::Base64 => base64(text, words, digits),
            Self::Hexadecimal => words.iter().for_each(|word| hexadecimal(word, digits)),
            Self::Binary => words.iter().for_each(|word| binary(word, digits)),
            Self::Base32(alphabet) => base32::read(text, alphabet, digits),
        }
    }
}

/// Collects either the values or the positions of the digits of a text, in order.
pub(crate) trait Digits {
    /// Adds the digit at `place` if `is_digit` is true.
    fn push_if(&mut self, is_digit: bool, value: u8, place: usize);

    fn push(&mut self, value: u8, place: usize) {
        self.push_if(true, value, place);
    }

    /// Adds adjacent digits. The first digit is at `place`.
    fn push_all(&mut self, values: &[u8], place: usize);
}

/// The number of zero digits after the digits of a text. They make at least two bytes in each encoding.
const SPARE: usize = 24;

/// The values of the digits. `bytes` is allocated for all possible digits in advance, so that adding a digit does not
/// branch on `is_digit`.
struct Values {
    bytes: Vec<u8>,
    length: usize,
}

impl Values {
    /// Reserves room for `length` digits and [`SPARE`] spare digits.
    fn of(length: usize) -> Self {
        Self { bytes: vec![0; length + SPARE], length: 0 }
    }

    fn finish(mut self) -> Vec<u8> {
        self.bytes.truncate(self.length);
        self.bytes
    }
}

impl Digits for Values {
    fn push_if(&mut self, is_digit: bool, value: u8, _: usize) {
        if let Some(byte) = self.bytes.get_mut(self.length) {
            *byte = value;
            self.length += usize::from(is_digit);
        }
    }

    #[inline(always)]
    fn push_all(&mut self, values: &[u8], _: usize) {
        if let Some(bytes) = self.bytes.get_mut(self.length..self.length + values.len()) {
            bytes.copy_from_slice(values);
            self.length += values.len();
        }
    }
}

/// The positions of digits.
struct Places(Vec<u32>);

impl Digits for Places {
    #[expect(clippy::cast_possible_truncation, reason = "windows are far shorter than 4 GiB")]
    fn push_if(&mut self, is_digit: bool, _: u8, place: usize) {
        if is_digit {
            self.0.push(place as u32);
        }
    }

    fn push_all(&mut self, values: &[u8], place: usize) {
        (place..).zip(values).for_each(|(place, value)| self.push(*value, place));
    }
}

/// The digits of one encoding in a text.
pub(crate) struct Bits<'t> {
    encoding: Encoding,
    /// The text that contains the digits. `words` are the words of this text, and `start` is its position in the
    /// searched text.
    text: &'t [u8],
    words: &'t [Word<'t>],
    start: usize,
    /// The number of digits.
    length: usize,
    /// The bits of all digits, followed by two zero bytes.
    packed: Vec<u8>,
    places: OnceCell<Vec<u32>>,
}

impl<'t> Bits<'t> {
    fn new(encoding: Encoding, text: &'t [u8], words: &'t [Word<'t>], start: usize) -> Self {
        let mut values = Values::of(text.len());
        encoding.read(text, words, &mut values);
        let mut values = values.finish();
        let length = values.len();
        // The zero digits fill the last bytes.
        values.resize(length + SPARE, 0);
        let packed = match encoding {
            Encoding::Base64 => decode::<6>(&values),
            Encoding::Base32(_) => decode::<5>(&values),
            Encoding::Hexadecimal => decode::<4>(&values),
            Encoding::Binary => decode::<1>(&values),
        };
        Self { encoding, text, words, start, length, packed, places: OnceCell::new() }
    }

    /// Reads `text` as digits of each supported encoding. `words` are the words of `text`.
    pub(crate) fn all(text: &'t [u8], words: &'t [Word<'t>]) -> impl Iterator<Item = Self> {
        let whole = [Encoding::Base64, Encoding::Hexadecimal, Encoding::Binary];
        let rows = base32::rows(text).into_iter();
        let rows = rows.filter(|(alphabet, row)| base32::is_coded(&text[row.clone()], *alphabet));
        let rows = rows
            .map(|(alphabet, row)| Self::new(Encoding::Base32(alphabet), &text[row.clone()], &[], row.start));
        let whole = whole.into_iter().map(move |encoding| Self::new(encoding, text, words, 0));
        whole.chain(rows).filter(|bits| bits.length * bits.encoding.width() >= 8 * MIN_BYTES)
    }

    /// Returns the number of possible alignments. An alignment is the number of digits before the first complete byte.
    pub(crate) fn alignments(&self) -> usize {
        match self.encoding {
            Encoding::Hexadecimal => 2,
            Encoding::Base64 => 4,
            Encoding::Base32(_) | Encoding::Binary => 8,
        }
    }

    /// Decodes all digits except the first `skip` ones, and replaces the content of `bytes` with the result.
    pub(crate) fn decode(&self, skip: usize, bytes: &mut Vec<u8>) {
        let width = self.encoding.width();
        let length = self.length.saturating_sub(skip) * width / 8;
        let (start, shift) = (skip * width / 8, skip * width % 8);
        let first = &self.packed[start..start + length];
        bytes.clear();
        if shift == 0 {
            return bytes.extend_from_slice(first);
        }
        let next = &self.packed[start + 1..start + 1 + length];
        bytes.extend(first.iter().zip(next).map(|(byte, next)| byte << shift | next >> (8 - shift)));
    }

    /// Maps a range of the bytes that `decode(skip, …)` produces to the range of their digits in the text.
    pub(crate) fn source(&self, skip: usize, range: &Range<usize>) -> Range<usize> {
        let places = self.places.get_or_init(|| {
            let mut places = Places(Vec::with_capacity(self.length));
            self.encoding.read(self.text, self.words, &mut places);
            places.0
        });
        let place = |digit: usize| {
            places.get(skip + digit).or(places.last()).map_or(self.start, |at| self.start + *at as usize)
        };
        let width = self.encoding.width();
        place(range.start * 8 / width)..place((range.end * 8 - 1) / width) + 1
    }
}

/// Decodes digits of `WIDTH` bits.
pub(crate) fn decode<const WIDTH: usize>(values: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    decode_into::<WIDTH>(values, &mut bytes);
    bytes
}

/// Decodes digits of `WIDTH` bits, and replaces the content of `bytes` with the result.
fn decode_into<const WIDTH: usize>(values: &[u8], bytes: &mut Vec<u8>) {
    let length = values.len() * WIDTH / 8;
    bytes.clear();
    bytes.resize(length + 16, 0);
    // Eight digits make `WIDTH` bytes. Each call of `put` writes eight bytes, and the next call overwrites the surplus
    // bytes.
    let mut put = |number: usize, digits: [u8; 8]| {
        if let Some(room) = bytes.get_mut(number * WIDTH..number * WIDTH + 8) {
            room.copy_from_slice(&(joined::<WIDTH>(digits) << (64 - 8 * WIDTH)).to_be_bytes());
        }
    };
    let (eights, rest) = values.as_chunks::<8>();
    eights.iter().enumerate().for_each(|(number, digits)| put(number, *digits));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    put(eights.len(), last);
    bytes.truncate(length);
}

/// Joins eight digits of `WIDTH` bits to one number. The first digit becomes the most significant one.
#[inline(always)]
fn joined<const WIDTH: usize>(digits: [u8; 8]) -> u64 {
    // Each call of `pairs` joins adjacent fields of `size` bits. Only the lower `WIDTH * size / 8` bits of a field are
    // used.
    let pairs =
        |fields: u64, size: usize, low: u64| fields & low | (fields >> size & low) << (WIDTH * size / 8);
    let four = pairs(u64::from_be_bytes(digits), 8, 0x00ff_00ff_00ff_00ff);
    let two = pairs(four, 16, 0x0000_ffff_0000_ffff);
    pairs(two, 32, 0x0000_0000_ffff_ffff)
}

/// The class and the value of each byte in base64. The upper two bits are the class: [`LETTER`] for a letter or decimal
/// digit, [`SIGN`] for any other base64 character, or [`PADDING`]. The lower six bits are the value of the base64
/// digit.
static BASE64_CLASS: [u8; 256] = {
    let mut classes = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        if BASE64[byte] != NONE {
            let class = if letter(byte).is_ascii_alphanumeric() { LETTER } else { SIGN };
            classes[byte] = BASE64[byte] | class << 6;
        }
        byte += 1;
    }
    classes[b'=' as usize] = PADDING << 6;
    classes
};
const LETTER: u8 = 1;
const SIGN: u8 = 2;
const PADDING: u8 = 3;

/// A bit set with one bit for each `number` that [`base64_digit`] computes from the class of a byte and the classes of
/// its neighbours. The bit is set if the byte is a base64 digit.
const BASE64_DIGITS: u32 = {
    let mut digits = 0;
    let mut number = 0;
    while number < 16 {
        let (class, before, after) = (number & 3, number & 4 != 0, number & 8 != 0);
        // A plus sign without an adjacent base64 character joins two string literals and is not a base64 digit.
        let is_digit = class == LETTER || class == SIGN && (before || after) || class == PADDING && before;
        digits |= (is_digit as u32) << number;
        number += 1;
    }
    digits
};

/// Splits `text` at its backslashes and returns the ranges between them. The letter of an escaped whitespace character,
/// such as the `n` of `\n`, is left out too, and so is an escaped backslash.
pub(crate) fn unescaped(text: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut next = Some(0);
    std::iter::from_fn(move || {
        let start = next?;
        let length = memchr::memchr(b'\\', text.get(start..)?);
        let end = length.map_or(text.len(), |length| start + length);
        next = length.map(|_| end + escape_length(text, end));
        Some(start..end)
    })
}

/// Returns the length of the character or escape at `at`: two bytes for an escaped whitespace character or backslash,
/// otherwise one byte.
pub(crate) fn escape_length(text: &[u8], at: usize) -> usize {
    if text[at] != b'\\' {
        return 1;
    }
    if matches!(text.get(at + 1), Some(b'n' | b'r' | b't' | b'\\')) { 2 } else { 1 }
}

/// Reads `text` as base64. Characters outside of the base64 alphabets and long hexadecimal numbers are ignored. A
/// padding character is read as the digit 0, because zero bytes occur in no secret.
fn base64(text: &[u8], words: &[Word<'_>], digits: &mut impl Digits) {
    let is_number = |word: &&Word<'_>| word.text.len() >= LONG_NUMBER && is_long_number(word.classes);
    let numbers = words.iter().filter(is_number);
    let mut numbers = numbers.map(|word| word.start..word.start + word.text.len()).peekable();
    for range in unescaped(text) {
        let mut start = range.start;
        // Each hexadecimal number is within one range, because it contains no backslash.
        while let Some(number) = numbers.next_if(|number| number.end <= range.end) {
            base64_part(text, start..number.start.max(start), digits);
            start = number.end.max(start);
        }
        base64_part(text, start..range.end, digits);
    }
}

/// Reads the digits in a part of `text` that has no backslash.
fn base64_part(text: &[u8], part: Range<usize>, digits: &mut impl Digits) {
    let mut at = part.start;
    while let Some((chunk, _)) = text[..part.end].get(at..).and_then(<[u8]>::split_first_chunk) {
        // Each of these digits has a neighbour that is a base64 letter too.
        match base64_values(chunk) {
            Some(values) => digits.push_all(&values, at),
            None => base64_chunk(text, at..at + CHUNK, digits),
        }
        at += CHUNK;
    }
    base64_chunk(text, at..part.end, digits);
}

/// Reads the digits in a short part of `text` that has no backslash.
fn base64_chunk(text: &[u8], part: Range<usize>, digits: &mut impl Digits) {
    let class = |at: usize| text.get(at).map_or(0, |byte| BASE64_CLASS[usize::from(*byte)]);
    let mut at = part.start;
    while let Some((eight, _)) = text[..part.end].get(at..).and_then(<[u8]>::split_first_chunk::<8>) {
        let values = eight.map(|byte| BASE64[usize::from(byte)]);
        if values.iter().fold(0, |all, value| all | value) < 64 {
            digits.push_all(&values, at);
        } else {
            (at..at + 8).for_each(|place| base64_digit(place, class, digits));
        }
        at += 8;
    }
    (at..part.end).for_each(|place| base64_digit(place, class, digits));
}

/// The number of characters that are read together.
pub(crate) const CHUNK: usize = 32;

/// Returns the values of `letters` as base64 digits. Returns `None` if a character is not a base64 letter.
///
/// The values are computed without a table, so that the compiler can vectorize the loop.
pub(crate) fn base64_values(letters: &[u8; CHUNK]) -> Option<[u8; CHUNK]> {
    let mut others = 0;
    let values = letters.map(|letter| {
        let is_capital = letter.wrapping_sub(b'A') < 26;
        let is_small = letter.wrapping_sub(b'a') < 26;
        let is_numeral = letter.wrapping_sub(b'0') < 10;
        let is_plus = (letter == b'+') | (letter == b'-');
        let is_slash = (letter == b'/') | (letter == b'_');
        others |= u8::from(!(is_capital | is_small | is_numeral | is_plus | is_slash));
        only_if(is_capital, letter.wrapping_sub(b'A'))
            | only_if(is_small, letter.wrapping_sub(b'a' - 26))
            | only_if(is_numeral, letter.wrapping_add(52 - b'0'))
            | only_if(is_plus, 62)
            | only_if(is_slash, 63)
    });
    (others == 0).then_some(values)
}

/// Adds the character at `at` if it is a base64 digit. `class` returns the entry of [`BASE64_CLASS`] for the character
/// at a position.
fn base64_digit(at: usize, class: impl Fn(usize) -> u8, digits: &mut impl Digits) {
    let own = class(at);
    let before = at.checked_sub(1).map_or(0, &class);
    let number = own >> 6 | u8::from(before != 0) << 2 | u8::from(class(at + 1) != 0) << 3;
    digits.push_if(BASE64_DIGITS >> number & 1 != 0, own & 63, at);
}

/// A word of ASCII letters and decimal digits.
pub(crate) struct Word<'t> {
    pub(crate) start: usize,
    pub(crate) text: &'t [u8],
    /// The union of the class bits of its characters, such as [`NOT_BINARY`]. If the union contains [`NOT_HEXADECIMAL`],
    /// the last characters may be left out.
    classes: u8,
}

impl<'t> Word<'t> {
    /// Returns `None` if the word contains no digits of base 2, 8, 10 or 16 that are decoded. `has_row` is true if the
    /// word may contain a row of at least [`LONG_ROW`] hexadecimal digits.
    fn new(start: usize, text: &'t [u8], has_row: bool) -> Option<Self> {
        let class = |classes, byte: &u8| classes | WORDS[usize::from(*byte)];
        let (first, rest) = text.split_at(text.len().min(4));
        let mut classes = first.iter().fold(0, class);
        // Few words are long numbers, whose characters are all read.
        for part in rest.chunks(BLOCK) {
            if classes & NOT_HEXADECIMAL != 0 {
                break;
            }
            classes = part.iter().fold(classes, class);
        }
        let (first, last) = (text.first()?, text.last()?);
        // The characters of prefixes and suffixes such as `0x`, `o`, `h` and `u8`.
        let is_marked =
            matches!(first, b'0' | b'o' | b'x' | b'X' | b'u' | b'U') || matches!(last, b'h' | b'8');
        let is_number = classes & NOT_HEXADECIMAL == 0 || has_row || is_marked;
        is_number.then_some(Self { start, text, classes })
    }
}

/// The class bits of a character that is not a hexadecimal digit, and of a character that is not a binary digit.
const NOT_HEXADECIMAL: u8 = 1;
const NOT_BINARY: u8 = 2;
/// The class bit of a byte that is not part of a word.
const NOT_WORD: u8 = 4;
/// The class bits of a capital letter and of a small letter.
const CAPITAL: u8 = 8;
const SMALL: u8 = 16;
static WORDS: [u8; 256] = {
    let mut classes = [NOT_WORD; 256];
    let mut byte = 0;
    while byte < 128 {
        let letter = letter(byte);
        if letter.is_ascii_alphanumeric() {
            let hexadecimal = if letter.is_ascii_hexdigit() { 0 } else { NOT_HEXADECIMAL };
            let binary = if matches!(letter, b'0' | b'1') { 0 } else { NOT_BINARY };
            let case = if letter.is_ascii_digit() {
                0
            } else if letter.is_ascii_uppercase() {
                CAPITAL
            } else {
                SMALL
            };
            classes[byte] = hexadecimal | binary | case;
        }
        byte += 1;
    }
    classes
};

/// Returns the classes of the bytes of a block: 1 for a letter or a decimal digit, 3 if it is a hexadecimal digit, and 0
/// for any other byte.
fn word_classes(block: &[u8]) -> [u8; BLOCK] {
    let mut classes = [0; BLOCK];
    for (class, byte) in classes.iter_mut().zip(block) {
        let (letter, numeral) = ((byte | 0x20).wrapping_sub(b'a'), byte.wrapping_sub(b'0'));
        let is_numeral = u8::from(numeral < 10);
        *class = u8::from(letter < 26) | is_numeral | (u8::from(letter < 6) | is_numeral) << 1;
    }
    classes
}

/// Returns the words of letters and digits in `text` that may contain digits of base 2, 8, 10 or 16. The letter of an
/// escaped line break (`\n`) is not part of a word.
pub(crate) fn words(text: &[u8]) -> Vec<Word<'_>> {
    let mut words = Vec::with_capacity(text.len().min(256) / 4);
    let mut add = |start: usize, end: usize, has_row: bool| {
        let start = start + usize::from(is_of_escape(text, start));
        words.extend(Word::new(start, &text[start..end], has_row));
    };
    let (mut start, mut is_inside) = (0, false);
    // The hexadecimal digits of the last two blocks as a bit set, and the end of the last block with a long row.
    let (mut digits, mut row) = (0, 0);
    for (number, block) in text.chunks(BLOCK).enumerate() {
        let classes = word_classes(block);
        digits = digits >> BLOCK | u128::from(bit_set(&classes.map(|class| class >> 1))) << BLOCK;
        // Of the rows in the two blocks, only those that end in the last one are new. The others do no harm.
        if starts(digits, LONG_ROW) != 0 {
            row = (number + 1) * BLOCK;
        }
        let letters = bit_set(&classes);
        // The bits at which a word begins or ends.
        let mut edges = letters ^ (letters << 1 | u64::from(is_inside));
        while edges != 0 {
            let at = number * BLOCK + edges.trailing_zeros() as usize;
            edges &= edges - 1;
            match is_inside {
                true => add(start, at.min(text.len()), row > start),
                false => start = at,
            }
            is_inside = !is_inside;
        }
    }
    if is_inside {
        add(start, text.len(), row > start);
    }
    words
}

/// Returns whether the letter at `at` belongs to an escaped line break or tab, such as the `n` of `\n`.
pub(crate) fn is_of_escape(text: &[u8], at: usize) -> bool {
    let slashes = || text[..at].iter().rev().take_while(|byte| **byte == b'\\').count();
    matches!(text[at], b'n' | b'r' | b't') && slashes() % 2 == 1
}

/// Returns whether characters with these class bits form a hexadecimal number whose letters have the same case. The
/// caller checks that there are at least [`LONG_NUMBER`] characters.
fn is_long_number(classes: u8) -> bool {
    classes & NOT_HEXADECIMAL == 0 && classes & (CAPITAL | SMALL) != CAPITAL | SMALL
}

/// Returns whether the letters and decimal digits of `row` form a long hexadecimal number. Other characters are
/// ignored. A hexadecimal row is not read in another encoding.
pub(crate) fn is_hexadecimal(row: &[u8]) -> bool {
    let (mut count, mut classes) = (0, 0);
    for block in row.chunks(BLOCK) {
        let (mut letters, mut found) = (0_u8, 0);
        // This loop has no branches and no table, so that the compiler can vectorize it.
        for byte in block {
            let (capital, small) = (byte.wrapping_sub(b'A'), byte.wrapping_sub(b'a'));
            let is_numeral = byte.wrapping_sub(b'0') < 10;
            let (is_capital, is_small) = (capital < 26, small < 26);
            letters += u8::from(is_numeral | is_capital | is_small);
            let is_other = (is_capital & (capital > 5)) | (is_small & (small > 5));
            found |=
                only_if(is_capital, CAPITAL) | only_if(is_small, SMALL) | only_if(is_other, NOT_HEXADECIMAL);
        }
        count += usize::from(letters);
        classes |= found;
        if !is_long_number(classes) {
            return false;
        }
    }
    count >= LONG_NUMBER
}

/// Removes a prefix such as `0x` and a suffix such as `h` from a word. Returns the position and the text of the
/// hexadecimal digits between them, and whether there is a prefix. `None` if the word contains any other character.
pub(crate) fn hex_word<'t>(word: &Word<'t>) -> Option<(usize, &'t [u8], bool)> {
    if word.classes & NOT_HEXADECIMAL == 0 {
        return Some((0, word.text, false));
    }
    let (first, last) = (word.text.first()?, word.text.last()?);
    if !matches!(first, b'0' | b'x' | b'X' | b'u' | b'U') && !matches!(last, b'h' | b'8') {
        return None;
    }
    let (skip, marked) = match word.text {
        [b'0', b'x' | b'X', _, ..] => (2, true),
        [b'x' | b'X' | b'u' | b'U', _, ..] => (1, true),
        _ => (0, false),
    };
    let digits = &word.text[skip..];
    let digits = digits.strip_suffix(b"h").or_else(|| digits.strip_suffix(b"u8")).unwrap_or(digits);
    let whole = !digits.is_empty() && digits.iter().all(u8::is_ascii_hexdigit);
    whole.then_some((skip, digits, marked))
}

#[expect(clippy::cast_possible_truncation, reason = "a digit is below sixteen")]
pub(crate) fn digit(byte: u8) -> u8 {
    char::from(byte).to_digit(16).unwrap_or(0) as u8
}

/// Adds the hexadecimal digits of a word to `digits`. The digits of all words form one sequence.
fn hexadecimal(word: &Word<'_>, digits: &mut impl Digits) {
    if let Some((skip, row, marked)) = hex_word(word) {
        // A word such as `0xa` represents a complete byte, so a zero digit is added before its only digit.
        if marked && row.len() % 2 == 1 {
            digits.push(0, word.start);
        }
        push_row(row, word.start + skip, digits);
    } else {
        // Letters that are not hexadecimal may precede or follow the digits within a word.
        long_rows(word.text)
            .for_each(|row| push_row(&word.text[row.clone()], word.start + row.start, digits));
    }
}

fn push_row(row: &[u8], start: usize, digits: &mut impl Digits) {
    let (chunks, rest) = row.as_chunks::<CHUNK>();
    for (number, chunk) in chunks.iter().enumerate() {
        digits.push_all(&chunk.map(hex_value), start + number * CHUNK);
    }
    let start = start + chunks.len() * CHUNK;
    rest.iter().enumerate().for_each(|(number, byte)| digits.push(hex_value(*byte), start + number));
}

/// Returns the value of a hexadecimal digit. This function has no branches, so that the compiler can vectorize it.
fn hex_value(digit: u8) -> u8 {
    // The letters begin at 0x41 and 0x61, and the decimal digits at 0x30.
    (digit & 15) + (digit >> 6) * 9
}

/// Returns the rows of hexadecimal digits in a word. Rows that are too short to contain a known secret are left out.
fn long_rows(word: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut from = 0;
    std::iter::from_fn(move || {
        loop {
            // A row that begins between `from` and `probe` and is long enough contains the byte at `probe`.
            let probe = from + LONG_ROW - 1;
            let before = word.get(from..=probe)?.iter().rposition(|byte| !byte.is_ascii_hexdigit());
            match before {
                Some(before) => from += before + 1,
                None => {
                    let rest = &word[probe..];
                    let length = rest.iter().position(|byte| !byte.is_ascii_hexdigit());
                    let row = from..length.map_or(word.len(), |length| probe + length);
                    from = row.end;
                    return Some(row);
                }
            }
        }
    })
}

/// Adds the digits of a word of zeros and ones to `digits`. The digits of all words form one sequence.
fn binary(word: &Word<'_>, digits: &mut impl Digits) {
    let row = match word.text.strip_prefix(b"0b") {
        Some(row) if row.iter().all(|byte| matches!(byte, b'0' | b'1')) => row,
        None if word.classes & NOT_BINARY == 0 => word.text,
        _ => return,
    };
    push_row(row, word.start + word.text.len() - row.len(), digits);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Decodes `text` in each encoding and at each alignment. Returns the decoded bytes with the range of their digits
    /// in `text`.
    fn decoded(text: &[u8]) -> Vec<(Vec<u8>, Range<usize>)> {
        let words = words(text);
        let each = |bits: Bits<'_>| {
            let all = (0..bits.alignments()).map(|skip| {
                let mut bytes = b"what is there".to_vec();
                bits.decode(skip, &mut bytes);
                (skip, bytes)
            });
            let all = all.filter(|(_, bytes)| !bytes.is_empty());
            all.map(|(skip, bytes)| {
                let source = bits.source(skip, &(0..bytes.len()));
                (bytes, source)
            })
            .collect::<Vec<_>>()
        };
        Bits::all(text, &words).flat_map(each).collect()
    }

    #[test]
    fn a_hexadecimal_number_is_read_in_no_other_encoding() {
        let number = "0123456789abcdef".repeat(4);
        let read =
            |text: &str| decoded(text.as_bytes()).into_iter().map(|(bytes, _)| bytes).collect::<Vec<_>>();
        assert_eq!(read(&number).len(), 2, "two alignments");
        assert_eq!(read(&number.to_uppercase()).len(), 2);
        assert!(read(&number[..LONG_NUMBER - 1]).len() > 2, "too short");
        assert!(read(&number.replace("cd", "cD")).len() > 2, "both cases");
        let beside = format!("{number} {}", data_encoding::BASE64.encode(b"some text beside"));
        assert!(read(&beside).iter().any(|bytes| bytes.starts_with(b"some text")), "{beside}");
    }

    /// Inserts `between` after every group of `width` digits.
    fn wrapped(digits: &str, width: usize, between: &str) -> String {
        let lines: Vec<_> = digits.as_bytes().chunks(width).map(String::from_utf8_lossy).collect();
        lines.join(between)
    }

    #[test]
    fn each_base64_letter_has_its_value() {
        for byte in 0..=u8::MAX {
            let value = BASE64[usize::from(byte)];
            let expected = (value != NONE).then_some([value; CHUNK]);
            assert_eq!(base64_values(&[byte; CHUNK]), expected, "{byte}");
        }
    }

    proptest! {
        #[test]
        fn each_alignment_decodes_the_rest_of_the_digits(digits in prop::collection::vec(0_u8..2, 64..300)) {
            let binary: Vec<u8> = digits.iter().map(|digit| b'0' + digit).collect();
            let check = |encoding: Encoding, text: &[u8], decode: fn(&[u8]) -> Vec<u8>| {
                let words = words(text);
                let bits = Bits::new(encoding, text, &words, 0);
                let mut values = Values::of(text.len());
                encoding.read(text, &words, &mut values);
                let values = values.finish();
                for skip in 0..bits.alignments() {
                    let mut bytes = b"what is there".to_vec();
                    bits.decode(skip, &mut bytes);
                    prop_assert_eq!(&bytes, &decode(&values[skip..]), "{:?} {}", encoding, skip);
                }
                Ok(())
            };
            let letters: Vec<u8> = digits.chunks(6).map(|six| b"BqZ/7"[six.iter().sum::<u8>() as usize % 5]).collect();
            check(Encoding::Binary, &binary, decode::<1>)?;
            check(Encoding::Hexadecimal, &binary, decode::<4>)?;
            check(Encoding::Base64, &letters, decode::<6>)?;
            check(Encoding::Base32(2), &binary, decode::<5>)?;
        }

        #[test]
        fn leaves_out_only_words_without_numbers(text in r"([A-Za-z]{0,30}|[0-9a-f]{0,70}|0x[0-9a-f]{1,3}| |\\\\[nt]|[0-9]{1,4}u8|[g-z]{90}[01]{16}){0,12}") {
            let text = text.as_bytes();
            let is_number = |word: &Word<'_>| hex_word(word).is_some() || long_rows(word.text).next().is_some();
            let mut all = Vec::new();
            let mut at = 0;
            for word in text.split(|byte| !byte.is_ascii_alphanumeric()) {
                let (start, end) = (at, at + word.len());
                at = end + 1;
                let start = start + usize::from(start < end && is_of_escape(text, start));
                all.extend(Word::new(start, &text[start..end], true).filter(is_number).map(|word| word.start..end));
            }
            let read = words(text);
            let read: Vec<_> = read.iter().filter(|word| is_number(word)).collect();
            prop_assert_eq!(read.iter().map(|word| word.start..word.start + word.text.len()).collect::<Vec<_>>(), all);
        }

        #[test]
        fn reads_what_was_encoded(
            data in "[ -~]{32,80}".prop_map(String::into_bytes),
            (before, after) in ("[ .,;:]{0,9}", "[ .,;:]{0,9}"),
            width in 17_usize..70,
            between in prop::sample::select(vec!["", "\n", "\\n", "\\r\\n", "\" + \"", " \\\\ "]),
        ) {
            let bits: Vec<String> = data.iter().map(|byte| format!("{byte:08b}")).collect();
            for digits in [
                data_encoding::BASE64_NOPAD.encode(&data),
                data_encoding::BASE64URL_NOPAD.encode(&data),
                data_encoding::BASE32_NOPAD.encode(&data),
                data_encoding::BASE32HEX_NOPAD.encode(&data),
                data_encoding::HEXLOWER.encode(&data),
                data_encoding::HEXUPPER.encode(&data),
                bits.concat(),
            ] {
                if digits.len() < 2 * data.len() && is_hexadecimal(digits.as_bytes()) {
                    continue;
                }
                // A sign counts as a digit only beside another digit, so a last line of one `+` is not read.
                let is_lone_sign = digits.len() % width == 1 && !digits.ends_with(|last: char| last.is_alphanumeric());
                if is_lone_sign && !between.is_empty() {
                    continue;
                }
                let text = format!("{before}{}{after}", wrapped(&digits, width, between));
                let place = before.len()..text.len() - after.len();
                let found = decoded(text.as_bytes());
                let read = found.iter().find(|(bytes, _)| bytes.starts_with(&data));
                let (_, source) = read.ok_or_else(|| TestCaseError::fail(text.clone()))?;
                prop_assert_eq!(source, &place);
            }
        }

        #[test]
        fn no_bytes_panic(text in prop::collection::vec(any::<u8>(), 0..300), words in r"[A-Za-z0-9+/=_\\nrt x,-]{0,300}") {
            for text in [text.as_slice(), words.as_bytes()] {
                for (_, source) in decoded(text) {
                    prop_assert!(source.start < source.end && source.end <= text.len());
                }
            }
        }
    }
}
