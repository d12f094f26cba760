//! Decodes text encodings: digits of base 2, 16, 32 and 64, groups of base 85, lists of numbers, uuencoded
//! lines and hex dumps.

use std::ops::Range;

/// The digits of an encoding with 1, 4, 5 or 6 bits per digit, each with its position in the text.
pub(crate) struct Bits {
    width: usize,
    values: Vec<u8>,
    places: Vec<u32>,
}

/// The minimum number of decoded bytes that are searched. Fewer bytes cannot contain a known secret.
const MIN_BYTES: usize = 8;
const MIN_BASE32: usize = (8 * MIN_BYTES).div_ceil(5);
const MIN_BASE85: usize = 10;
/// A row is decoded as base 85 only if at least one in this many digits is punctuation that base64 does not
/// use.
const BASE85_PUNCTUATION: usize = 16;
/// A lower-case row is decoded as base32 only if at least one in this many characters is a digit, or if one
/// of its words is very long. Any other row is treated as words.
const BASE32_DIGITS: usize = 24;
const LONG_WORD: usize = 20;

/// Marks a byte that is not a digit of the encoding.
pub(crate) const NONE: u8 = 0xff;

const fn table(alphabet: &[u8]) -> [u8; 256] {
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

/// Maps each byte to its value as a base64 digit, in the standard and in the URL-safe alphabet.
pub(crate) const BASE64: [u8; 256] = {
    let mut values = table(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/");
    values[b'-' as usize] = 62;
    values[b'_' as usize] = 63;
    values
};
const BASE32: [[u8; 256]; 4] = [
    table(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"),
    table(b"abcdefghijklmnopqrstuvwxyz234567"),
    table(b"0123456789ABCDEFGHIJKLMNOPQRSTUV"),
    table(b"0123456789abcdefghijklmnopqrstuv"),
];
/// The alphabets of Ascii85, RFC 1924 and Z85.
const BASE85: [[u8; 256]; 3] = [
    table(b"!\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstu"),
    table(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"),
    table(b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"),
];

#[expect(clippy::cast_possible_truncation, reason = "windows are far shorter than 4 GiB")]
fn position(place: usize) -> u32 {
    place as u32
}

impl Bits {
    fn new(width: usize) -> Self {
        Self { width, values: Vec::new(), places: Vec::new() }
    }

    fn push(&mut self, value: u8, place: usize) {
        self.values.push(value);
        self.places.push(position(place));
    }

    /// Reads `text` as digits of each supported encoding.
    pub(crate) fn all(text: &[u8]) -> Vec<Self> {
        let mut all = vec![base64(text), hexadecimal(text), binary(text)];
        for values in &BASE32 {
            base32(text, values, &mut all);
        }
        all.retain(|bits| bits.values.len() * bits.width >= 8 * MIN_BYTES);
        all
    }

    /// The number of possible alignments. An alignment is the number of digits before the first complete
    /// byte.
    pub(crate) fn alignments(&self) -> usize {
        match self.width {
            4 => 2,
            6 => 4,
            _ => 8,
        }
    }

    /// Decodes the digits, leaving out the first `skip`.
    pub(crate) fn bytes(&self, skip: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.values.len() * self.width / 8 + 1);
        let (mut pending, mut bits) = (0_u32, 0);
        for value in self.values.iter().skip(skip) {
            pending = pending << self.width | u32::from(*value);
            bits += self.width;
            if bits >= 8 {
                bits -= 8;
                #[expect(clippy::cast_possible_truncation, reason = "the lowest eight bits are meant")]
                bytes.push((pending >> bits) as u8);
            }
        }
        bytes
    }

    /// Maps a range of the bytes that `bytes(skip)` returns to its range in the text.
    pub(crate) fn source(&self, skip: usize, range: &Range<usize>) -> Range<usize> {
        let place =
            |digit: usize| self.places.get(skip + digit).or(self.places.last()).map_or(0, |at| *at as usize);
        place(range.start * 8 / self.width)..place((range.end * 8 - 1) / self.width) + 1
    }
}

/// The length of the character or escape at `at`: two bytes for a backslash and the following whitespace
/// character, otherwise one byte.
fn escape_length(text: &[u8], at: usize) -> usize {
    if text[at] != b'\\' {
        return 1;
    }
    if matches!(text.get(at + 1), Some(b'n' | b'r' | b't' | b'\\')) { 2 } else { 1 }
}

/// Reads `text` as base64 and ignores all characters that are not base64 letters. A padding character is read
/// as a zero, which occurs in no secret.
fn base64(text: &[u8]) -> Bits {
    let mut bits =
        Bits { width: 6, values: Vec::with_capacity(text.len()), places: Vec::with_capacity(text.len()) };
    let is_letter = |at: Option<usize>| {
        at.and_then(|at| text.get(at)).is_some_and(|byte| BASE64[usize::from(*byte)] != NONE || *byte == b'=')
    };
    let mut at = 0;
    while at < text.len() {
        let byte = text[at];
        let value = BASE64[usize::from(byte)];
        // A plus sign without an adjacent letter joins two string literals and is not a base64 letter.
        let joined = || is_letter(at.checked_sub(1)) || is_letter(Some(at + 1));
        if value != NONE && (byte.is_ascii_alphanumeric() || joined()) {
            bits.push(value, at);
        } else if byte == b'=' && is_letter(at.checked_sub(1)) {
            bits.push(0, at);
        }
        at += escape_length(text, at);
    }
    bits
}

/// Reads rows of base32 digits. Punctuation and spaces between the digits are ignored; a letter that is not a
/// base32 digit ends the row.
fn base32(text: &[u8], values: &[u8; 256], all: &mut Vec<Bits>) {
    let (mut start, mut count, mut at) = (0, 0, 0);
    while at < text.len() {
        let byte = text[at];
        if values[usize::from(byte)] != NONE {
            count += 1;
        } else if byte.is_ascii_alphanumeric() {
            // Text in other encodings contains many short rows. The digits of a row are therefore counted
            // before they are decoded.
            if count >= MIN_BASE32 {
                all.extend(row32(text, start..at, values));
            }
            (start, count) = (at + 1, 0);
        }
        at += escape_length(text, at);
    }
    if count >= MIN_BASE32 {
        all.extend(row32(text, start..text.len(), values));
    }
}

fn row32(text: &[u8], row: Range<usize>, values: &[u8; 256]) -> Option<Bits> {
    let mut bits = Bits::new(5);
    let mut at = row.start;
    while at < row.end {
        let value = values[usize::from(text[at])];
        if value != NONE {
            bits.push(value, at);
        }
        at += escape_length(text, at);
    }
    let small = values[usize::from(b'c')] != NONE;
    let digits = bits.places.iter().filter(|place| text[**place as usize].is_ascii_digit()).count();
    let joined = |places: &[u32]| places[places.len() - 1] - places[0] < position(LONG_WORD);
    let coded =
        !small || digits * BASE32_DIGITS >= bits.values.len() || bits.places.windows(LONG_WORD).any(joined);
    coded.then_some(bits)
}

/// The words of letters and digits in `text`, with their positions.
fn words(text: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut at = 0;
    std::iter::from_fn(move || {
        at += text.get(at..)?.iter().position(u8::is_ascii_alphanumeric)?;
        let start = at;
        let rest = &text[start..];
        at += rest.iter().position(|byte| !byte.is_ascii_alphanumeric()).unwrap_or(rest.len());
        Some((start, &text[start..at]))
    })
}

/// Removes a prefix such as `0x` and a suffix such as `h` from a word. Returns the position and the text of
/// the hexadecimal digits between them, and whether there is a prefix. `None` if any other character remains.
fn hex_word(word: &[u8]) -> Option<(usize, &[u8], bool)> {
    let (skip, marked) = match word {
        [b'0', b'x' | b'X', _, ..] => (2, true),
        [b'x' | b'X' | b'u' | b'U', _, ..] => (1, true),
        _ => (0, false),
    };
    let digits = &word[skip..];
    let digits = digits.strip_suffix(b"h").or_else(|| digits.strip_suffix(b"u8")).unwrap_or(digits);
    let whole = !digits.is_empty() && digits.iter().all(u8::is_ascii_hexdigit);
    whole.then_some((skip, digits, marked))
}

#[expect(clippy::cast_possible_truncation, reason = "a digit is below sixteen")]
fn digit(byte: u8) -> u8 {
    char::from(byte).to_digit(16).unwrap_or(0) as u8
}

/// Reads the hexadecimal digits of all words in `text` as one sequence.
fn hexadecimal(text: &[u8]) -> Bits {
    let mut bits = Bits::new(4);
    for (start, word) in words(text) {
        if let Some((skip, digits, marked)) = hex_word(word) {
            // `0xa` stands for a complete byte, so a zero digit is added.
            if marked && digits.len() % 2 == 1 {
                bits.push(0, start);
            }
            for (number, byte) in digits.iter().enumerate() {
                bits.push(digit(*byte), start + skip + number);
            }
        } else if word.len() >= 2 * MIN_BYTES {
            // Letters that are not hexadecimal may precede or follow the digits within a word.
            let mut at = start;
            for row in word.split(|byte| !byte.is_ascii_hexdigit()) {
                if row.len() >= 2 * MIN_BYTES {
                    row.iter().enumerate().for_each(|(number, byte)| bits.push(digit(*byte), at + number));
                }
                at += row.len() + 1;
            }
        }
    }
    bits
}

/// Reads all words of zeros and ones in `text` as one sequence of bits.
fn binary(text: &[u8]) -> Bits {
    let mut bits = Bits::new(1);
    for (start, word) in words(text) {
        let digits = word.strip_prefix(b"0b").unwrap_or(word);
        if digits.iter().all(|byte| matches!(byte, b'0' | b'1')) {
            let skip = word.len() - digits.len();
            for (number, byte) in digits.iter().enumerate() {
                bits.push(byte - b'0', start + skip + number);
            }
        }
    }
    bits
}

/// Decoded bytes with their source positions.
#[derive(Default)]
pub(crate) struct Decoded {
    pub(crate) bytes: Vec<u8>,
    places: Vec<(u32, u32)>,
}

impl Decoded {
    fn push(&mut self, byte: u8, place: Range<usize>) {
        // Zero bytes are dropped, because they pad numbers and occur in no secret.
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

    /// Maps a range of the decoded bytes to its range in the text.
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

/// Decodes lists of numbers, each of which is a byte or a word of two, four or eight bytes. Numbers in base 8
/// and 10 are decoded in both byte orders. Words in base 16 are decoded only as little-endian, because
/// [`hexadecimal`] decodes their big-endian form. Also decodes every second number alone, for lists that
/// print an index beside each number.
pub(crate) fn numbers(text: &[u8]) -> Vec<Decoded> {
    let (mut tens, mut tens_back) = (Decoded::default(), Decoded::default());
    let (mut eights, mut eights_back) = (Decoded::default(), Decoded::default());
    let (mut sixteens, mut every_other) = (Decoded::default(), [Decoded::default(), Decoded::default()]);
    let mut count = 0;
    for (start, word) in words(text) {
        let place = start..start + word.len();
        if let Some(value) = number(word.strip_suffix(b"u8").unwrap_or(word), 10) {
            tens.number(value, &place, false);
            tens_back.number(value, &place, true);
            every_other[count % 2].number(value, &place, false);
            count += 1;
        }
        let octal = word.strip_prefix(b"0o").or_else(|| word.strip_prefix(b"o")).unwrap_or(word);
        if let Some(value) = number(octal, 8) {
            eights.number(value, &place, false);
            eights_back.number(value, &place, true);
        }
        if let Some((_, digits, _)) = hex_word(word)
            && matches!(digits.len(), 4 | 8 | 16)
        {
            let value = digits.iter().fold(0, |value, byte| value << 4 | u64::from(digit(*byte)));
            sixteens.number(value, &place, false);
        }
    }
    let [one, other] = every_other;
    let mut all = vec![tens, tens_back, eights, eights_back, sixteens, one, other];
    // The byte order matters only if a number is larger than a byte.
    for back in [3, 1] {
        if all[back].bytes == all[back - 1].bytes {
            all.remove(back);
        }
    }
    all.retain(|decoded| decoded.bytes.len() >= MIN_BYTES);
    all
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

/// Decodes rows of base 85 in each of its three alphabets, at each of five alignments. About a quarter of the
/// digits in base 85 are punctuation, which is rare in base64.
pub(crate) fn base85(text: &[u8]) -> Vec<Decoded> {
    let mut all = Vec::new();
    let mut next = 0;
    for row in text.split(|byte| !byte.is_ascii_graphic() && !matches!(byte, b'\n' | b'\r')) {
        let start = next;
        next += row.len() + 1;
        if row.len() < MIN_BASE85 {
            continue;
        }
        let signs = row.iter().filter(|byte| byte.is_ascii_punctuation() && !b"+/-_=".contains(byte)).count();
        if signs * BASE85_PUNCTUATION >= row.len() {
            BASE85.iter().for_each(|values| rows85(row, start, values, &mut all));
        }
    }
    all
}

fn rows85(text: &[u8], start: usize, values: &[u8; 256], all: &mut Vec<Decoded>) {
    let mut row: Vec<(u8, usize)> = Vec::new();
    for (at, byte) in text.iter().chain(b" ").enumerate() {
        match values[usize::from(*byte)] {
            NONE if matches!(byte, b'\n' | b'\r') => {}
            NONE => {
                if row.len() >= MIN_BASE85 {
                    all.extend((0..5).map(|skip| groups(&row[skip..])));
                }
                row.clear();
            }
            value => row.push((value, start + at)),
        }
    }
}

fn groups(row: &[(u8, usize)]) -> Decoded {
    let mut decoded = Decoded::default();
    for group in row.chunks(5) {
        let full = group.iter().map(|(value, _)| *value).chain(std::iter::repeat(84)).take(5);
        let value = full.fold(0_u32, |value, digit| value.wrapping_mul(85).wrapping_add(u32::from(digit)));
        let place = group[0].1..group[group.len() - 1].1 + 1;
        for byte in value.to_be_bytes().into_iter().take(group.len() - 1) {
            decoded.push(byte, place.clone());
        }
    }
    decoded
}

/// Copies `text` without the backslashes with which shells quote characters; `None` if it has only a few
/// backslashes.
pub(crate) fn unquoted(text: &[u8]) -> Option<Decoded> {
    memchr::memchr_iter(b'\\', text).nth(MIN_BYTES - 1)?;
    let mut decoded = Decoded::default();
    for (at, byte) in text.iter().enumerate().filter(|(_, byte)| **byte != b'\\') {
        decoded.push(*byte, at..at + 1);
    }
    Some(decoded)
}

/// The ranges of the lines of `text`.
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

/// Decodes uuencoded lines (POSIX): a byte count, then digits of six bits.
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

/// The possible numbers of digits in the offset at the start of a hex dump's line.
const OFFSET: std::ops::RangeInclusive<usize> = 6..=16;

/// Copies a hex dump without its offset and text columns, as `od`, `xxd`, `hexdump` and debuggers print them.
/// `None` if no line has an offset.
pub(crate) fn dump(text: &[u8]) -> Option<Decoded> {
    let mut decoded = Decoded::default();
    let mut any = false;
    for line in lines(text) {
        let (start, words) = (line.start, &text[line.clone()]);
        let body = offset(words).map_or(0..words.len(), |(length, colon)| {
            any = true;
            let rest = &words[length..];
            let column =
                [&b"  |"[..], b"  >"].iter().filter_map(|sign| memchr::memmem::find(rest, sign)).min();
            // `xxd` prints two spaces before its text column.
            let gap = rest.len() - rest.trim_ascii_start().len();
            let wide = || memchr::memmem::find(&rest[gap..], b"  ").map(|at| at + gap);
            length..length + column.or_else(|| wide().filter(|_| colon)).unwrap_or(rest.len())
        });
        for at in body {
            decoded.push(words[at], start + at..start + at + 1);
        }
        decoded.push(b'\n', line.end..line.end + 1);
    }
    any.then_some(decoded)
}

/// The length of the hex dump offset at the start of a line, and whether a colon follows the offset.
fn offset(line: &[u8]) -> Option<(usize, bool)> {
    let skip = if line.starts_with(b"0x") { 2 } else { 0 };
    let digits = line[skip..].iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let end = skip + digits;
    let colon = match line.get(end)? {
        b':' => true,
        b' ' | b'\t' => false,
        _ => return None,
    };
    OFFSET.contains(&digits).then_some((end + usize::from(colon), colon))
}
