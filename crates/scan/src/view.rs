//! Derives views of a text. A view contains the text as a reader would see it: with escapes decoded, look-alike
//! characters replaced, and invisible characters removed.

use std::borrow::Cow;
use std::ops::Range;

use unicode_normalization::char::decompose_compatible;

/// The maximum nesting of escapes that are decoded. For example, JSON in a JSON string in an HTML form has three
/// levels.
const MAX_DEPTH: usize = 3;
/// The maximum nesting of escapes that are decoded in the head of a request. This limit is higher than the limit for
/// other text, because a head is short.
const MAX_HEAD_DEPTH: usize = 8;
/// The maximum length of a number in an escape, with its leading zeros.
const MAX_DIGITS: usize = 16;

/// The kinds of escapes that cause an unescaped view of a text. If a text has such an escape, all escapes are decoded
/// in the view.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Relevant {
    /// Escapes of a character that may be part of a token, or that may begin another escape.
    OfTokens,
    /// Also other escapes, such as an encoded space, because the letters and digits of such an escape would separate
    /// the letters of a secret. Line breaks, tabs and quotes that are escaped by a backslash do not count, because
    /// ordinary JSON contains many of them.
    OfLetters,
    All,
}

/// The positions at which the offsets of a view and of its source diverge, as pairs (offset in the view, offset in the
/// source).
type Map = Vec<(usize, usize)>;

/// A text that is derived from another text, the source. Positions in the view can be converted to positions in the
/// source.
#[derive(Debug, Clone)]
pub(crate) struct View<'t> {
    pub(crate) bytes: Cow<'t, [u8]>,
    /// The mappings of all conversions, the last conversion first.
    steps: Vec<Map>,
}

impl<'t> View<'t> {
    /// Returns a view of the unchanged text.
    pub(crate) fn raw(text: &'t [u8]) -> Self {
        Self { bytes: Cow::Borrowed(text), steps: Vec::new() }
    }

    /// Returns a view in which look-alike characters are replaced by ASCII and invisible characters are removed.
    pub(crate) fn plain(text: &'t [u8]) -> Self {
        match fold(text) {
            Some((bytes, map)) => Self { bytes: Cow::Owned(bytes), steps: vec![map] },
            None => Self { bytes: Cow::Borrowed(text), steps: Vec::new() },
        }
    }

    /// Returns a view in which escapes are decoded. After that, look-alike characters are replaced and invisible
    /// characters are removed. Returns `None` if `text` has no escapes except the line breaks, tabs and quotes of
    /// ordinary JSON.
    pub(crate) fn unescaped(text: &[u8]) -> Option<Self> {
        Self::unescaped_if(text, Relevant::OfLetters, MAX_DEPTH, true)
    }

    /// Works like [`unescaped`](Self::unescaped), but also returns `None` if no escape encodes a character of a token.
    /// This view suffices if the text is not searched for known secrets.
    pub(crate) fn unescaped_tokens(text: &[u8]) -> Option<Self> {
        Self::unescaped_if(text, Relevant::OfTokens, MAX_DEPTH, true)
    }

    /// Works like [`unescaped_tokens`](Self::unescaped_tokens), but look-alike and invisible characters stay unchanged.
    /// Also returns `None` if the text is binary, because escapes in binary data are accidental.
    pub(crate) fn unescaped_verbatim(text: &[u8]) -> Option<Self> {
        let is_binary = memchr::memchr(0, text).is_some();
        if is_binary { None } else { Self::unescaped_if(text, Relevant::OfTokens, MAX_DEPTH, false) }
    }

    /// Works like [`unescaped`](Self::unescaped), but returns a view if `text` has any escape.
    pub(crate) fn unescaped_all(text: &[u8]) -> Option<Self> {
        Self::unescaped_if(text, Relevant::All, MAX_DEPTH, true)
    }

    /// Works like [`unescaped_all`](Self::unescaped_all), but decodes deeper nesting. This function is used for a part
    /// of a request's head.
    pub(crate) fn unescaped_head(text: &[u8]) -> Option<Self> {
        Self::unescaped_if(text, Relevant::All, MAX_HEAD_DEPTH, true)
    }

    fn unescaped_if(text: &[u8], relevant: Relevant, depth: usize, folds: bool) -> Option<Self> {
        let mut steps = Vec::new();
        let mut bytes: Option<Vec<u8>> = None;
        while steps.len() < depth
            && let Some((next, map)) = unescape(bytes.as_deref().unwrap_or(text), relevant)
        {
            bytes = Some(next);
            steps.insert(0, map);
        }
        let bytes = bytes?;
        Some(match folds.then(|| fold(&bytes)).flatten() {
            Some((folded, map)) => {
                steps.insert(0, map);
                Self { bytes: Cow::Owned(folded), steps }
            }
            None => Self { bytes: Cow::Owned(bytes), steps },
        })
    }

    /// Converts a position in the view to a position in the source.
    pub(crate) fn source(&self, place: usize) -> usize {
        self.steps.iter().fold(place, |place, map| {
            let next = map.partition_point(|(made, _)| *made <= place);
            match next.checked_sub(1).and_then(|index| map.get(index)) {
                Some((made, from)) => from + (place - made),
                None => place,
            }
        })
    }

    /// Returns the first position of the view that corresponds to `place`, or to a later position, in the source.
    pub(crate) fn offset(&self, place: usize) -> usize {
        let place = self.steps.iter().rev().fold(place, |place, map| {
            let next = map.partition_point(|(_, from)| *from < place);
            let copied = next.checked_sub(1).and_then(|index| map.get(index));
            let made = copied.map_or(place, |(made, from)| made + (place - from));
            map.get(next).map_or(made, |(limit, _)| made.min(*limit))
        });
        place.min(self.bytes.len())
    }

    /// Converts a range of the view to a range of the source. If an escape encodes the last byte of the range, the
    /// result includes the complete escape.
    pub(crate) fn source_range(&self, range: &Range<usize>) -> Range<usize> {
        self.source(range.start)..self.source(range.end)
    }
}

/// Builds the bytes of a view, and the mapping from the view to its source.
#[derive(Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
    map: Map,
}

impl Writer {
    /// Returns the view of `text`. The view borrows `text` if no part was replaced.
    pub(crate) fn into_view(self, text: &[u8]) -> View<'_> {
        if self.map.is_empty() {
            return View::raw(text);
        }
        View { bytes: Cow::Owned(self.bytes), steps: vec![self.map] }
    }

    pub(crate) fn copy(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Writes `made` instead of the source bytes from `start` to `end`. Every byte of `made` maps to `start`.
    pub(crate) fn put(&mut self, made: &[u8], start: usize, end: usize) {
        for byte in made {
            self.map.push((self.bytes.len(), start));
            self.bytes.push(*byte);
        }
        self.map.push((self.bytes.len(), end));
    }
}

/// Returns whether a character is invisible: a joiner, direction mark, soft hyphen, tag or filler.
pub(crate) fn is_invisible(character: char) -> bool {
    matches!(character,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{e0000}'..='\u{e0fff}')
}

/// Returns the ASCII equivalent of a Unicode compatibility character, such as a full-width, circled or mathematical
/// letter. Returns `None` for any other character.
fn folded(character: char) -> Option<([u8; 20], usize)> {
    // These ranges contain other alphabets and ideographs, and therefore most non-ASCII text.
    if matches!(character, '\u{250}'..='\u{2bf}' | '\u{370}'..='\u{1cff}' | '\u{3400}'..='\u{fa0d}') {
        return None;
    }
    let (mut ascii, mut length, mut fits) = ([0; 20], 0, true);
    decompose_compatible(character, |part| match (u8::try_from(part), ascii.get_mut(length)) {
        (Ok(byte), Some(slot)) if byte.is_ascii() => {
            *slot = byte;
            length += 1;
        }
        _ => fits = false,
    });
    fits.then_some((ascii, length))
}

/// Replaces each character by its NFKC form if the form is ASCII, and removes invisible characters. Invalid UTF-8 is
/// copied unchanged. Returns `None` if nothing changes.
fn fold(text: &[u8]) -> Option<(Vec<u8>, Map)> {
    if text.is_ascii() {
        return None;
    }
    let mut writer = Writer::default();
    let (mut at, mut copied) = (0, 0);
    // Only these bytes begin a character that is not ASCII (RFC 3629, 3).
    while let Some(next) = text[at..].iter().position(|byte| matches!(byte, 0xc2..=0xf4)) {
        let start = at + next;
        let Some(character) = character(&text[start..]) else {
            at = start + 1;
            continue;
        };
        at = start + character.len_utf8();
        let replaced = if is_invisible(character) { Some(([0; 20], 0)) } else { folded(character) };
        if let Some((ascii, length)) = replaced {
            writer.copy(&text[copied..start]);
            writer.put(&ascii[..length], start, at);
            copied = at;
        }
    }
    writer.copy(&text[copied..]);
    (!writer.map.is_empty()).then_some((writer.bytes, writer.map))
}

/// Returns the character at the start of `text`, which must begin with a non-ASCII byte. Returns `None` if the
/// character is not valid UTF-8.
pub(crate) fn character(text: &[u8]) -> Option<char> {
    // The lengths of characters by their first byte (RFC 3629, 3).
    let length = match text {
        [0xc2..=0xdf, 0x80..=0xbf, ..] => 2,
        [0xe0..=0xef, 0x80..=0xbf, ..] => 3,
        [0xf0..=0xf4, 0x80..=0xbf, ..] => 4,
        _ => return None,
    };
    std::str::from_utf8(text.get(..length)?).ok()?.chars().next()
}

/// Decodes escapes, such as `%41`, `\u0041`, `\x41`, `\/` and `&#65;`. Returns `None` if no escape in `text` is
/// relevant.
fn unescape(text: &[u8], relevant: Relevant) -> Option<(Vec<u8>, Map)> {
    // Most texts have no relevant escape, so the escapes are checked before the text is copied.
    let counts = |(at, unit, length): (usize, Unit, usize)| match relevant {
        Relevant::All => true,
        Relevant::OfTokens => unit.is_of_token(text.get(at + length).copied()),
        Relevant::OfLetters => {
            let is_usual = length == 2 && text[at] == b'\\';
            !is_usual || unit.is_of_token(text.get(at + length).copied())
        }
    };
    if !escapes(text).any(counts) {
        return None;
    }
    let mut writer = Writer { bytes: Vec::with_capacity(text.len()), map: Vec::new() };
    let mut copied = 0;
    for (at, unit, length) in escapes(text) {
        writer.copy(&text[copied..at]);
        copied = at + length;
        match unit {
            Unit::Byte(byte) => writer.put(&[byte], at, copied),
            Unit::Char(character) => writer.put(character.encode_utf8(&mut [0; 4]).as_bytes(), at, copied),
        }
    }
    writer.copy(&text[copied..]);
    Some((writer.bytes, writer.map))
}

/// Returns the escapes of a text, without overlaps. Each item contains the offset, the decoded unit and the length of
/// an escape.
fn escapes(text: &[u8]) -> impl Iterator<Item = (usize, Unit, usize)> {
    let mut next = 0;
    std::iter::from_fn(move || {
        loop {
            let at = next + memchr::memchr3(b'%', b'\\', b'&', text.get(next..)?)?;
            next = at + 1;
            if let Some((unit, length)) = escape(&text[at..]) {
                next = at + length;
                return Some((at, unit, length));
            }
        }
    })
}

/// The byte or the character that an escape encodes.
pub(crate) enum Unit {
    Byte(u8),
    Char(char),
}

impl Unit {
    /// Returns the character. A byte is interpreted as Latin-1.
    pub(crate) fn character(&self) -> char {
        match self {
            Self::Byte(byte) => char::from(*byte),
            Self::Char(character) => *character,
        }
    }

    /// Returns whether a decoded unit may be part of a token, be a character that hides a token, or, together with the
    /// next byte, begin another escape.
    fn is_of_token(&self, after: Option<u8>) -> bool {
        match self.character() {
            '\\' => matches!(after, Some(b'u' | b'U' | b'x' | b'0'..=b'3')),
            '&' => matches!(after, Some(b'#' | b'%')),
            other if other.is_ascii() => other.is_ascii_alphanumeric() || "-_./+=:@~%".contains(other),
            other => !other.is_whitespace(),
        }
    }
}

/// Decodes the escape at the start of `text`. Returns the decoded unit and the length of the escape.
pub(crate) fn escape(text: &[u8]) -> Option<(Unit, usize)> {
    match text {
        // JavaScript's `escape` function and old servers use this form.
        [b'%', b'u' | b'U', rest @ ..] => utf16(rest),
        [b'%', high, low, ..] => Some((Unit::Byte(u8::try_from(hex(&[*high, *low])?).ok()?), 3)),
        [b'\\', b'u', b'{', rest @ ..] => {
            let end = rest.iter().take(MAX_DIGITS).position(|byte| *byte == b'}')?;
            Some((Unit::Char(char::from_u32(hex(&rest[..end])?)?), end + 4))
        }
        [b'\\', b'u', rest @ ..] => utf16(rest),
        // Python and C use this form.
        [b'\\', b'U', rest @ ..] => Some((Unit::Char(char::from_u32(hex(rest.get(..8)?)?)?), 10)),
        [b'\\', b'x', high, low, ..] => Some((Unit::Byte(u8::try_from(hex(&[*high, *low])?).ok()?), 4)),
        [b'\\', digits @ ..] if octal(digits).is_some() => octal(digits).map(|byte| (Unit::Byte(byte), 4)),
        [b'\\', letter, ..] => Some((Unit::Byte(simple_escape(*letter)?), 2)),
        [b'&', rest @ ..] => entity(rest),
        _ => None,
    }
}

fn simple_escape(letter: u8) -> Option<u8> {
    Some(match letter {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'f' => 0x0c,
        b'v' => 0x0b,
        b'/' | b'"' | b'\\' | b'\'' => letter,
        _ => return None,
    })
}

/// Decodes three octal digits to one byte.
fn octal(digits: &[u8]) -> Option<u8> {
    let [first @ b'0'..=b'3', second @ b'0'..=b'7', third @ b'0'..=b'7', ..] = digits else { return None };
    Some((first - b'0') << 6 | (second - b'0') << 3 | (third - b'0'))
}

/// Decodes the four hexadecimal digits after `%u` or `\u`. For a surrogate pair, decodes two such escapes.
fn utf16(rest: &[u8]) -> Option<(Unit, usize)> {
    let first = hex(rest.get(..4)?)?;
    if let Some(character) = char::from_u32(first) {
        return Some((Unit::Char(character), 6));
    }
    let ([b'%', b'u' | b'U', second @ ..] | [b'\\', b'u', second @ ..]) = rest.get(4..10)? else {
        return None;
    };
    let units = [u16::try_from(first).ok()?, u16::try_from(hex(second)?).ok()?];
    Some((Unit::Char(char::decode_utf16(units).next()?.ok()?), 12))
}

/// Decodes an HTML entity. `rest` begins after the `&`.
fn entity(rest: &[u8]) -> Option<(Unit, usize)> {
    match rest {
        [b'#', b'x' | b'X', digits @ ..] => number(digits, 16, 3),
        [b'#', digits @ ..] => number(digits, 10, 2),
        _ => {
            let end = rest.iter().take(MAX_ENTITY).position(|byte| *byte == b';')?;
            let name = std::str::from_utf8(&rest[..end]).ok()?;
            let (_, character) = ENTITIES.iter().find(|(known, _)| *known == name)?;
            Some((Unit::Char(*character), end + 2))
        }
    }
}

/// Decodes the number in a numeric HTML entity. `prefix` is the number of bytes before the digits. Browsers accept
/// leading zeros and a missing `;`.
fn number(digits: &[u8], radix: u32, prefix: usize) -> Option<(Unit, usize)> {
    let is_digit = |byte: &&u8| char::from(**byte).is_digit(radix);
    let count = digits.iter().take(MAX_DIGITS).take_while(is_digit).count();
    let code = u32::from_str_radix(std::str::from_utf8(&digits[..count]).ok()?, radix).ok()?;
    let end = usize::from(digits.get(count) == Some(&b';'));
    Some((Unit::Char(char::from_u32(code)?), prefix + count + end))
}

/// The maximum length of an entity's name, including the `;`.
const MAX_ENTITY: usize = 20;

/// The entities of ASCII punctuation, and of whitespace and invisible characters (HTML, 13.5).
const ENTITIES: &[(&str, char)] = &[
    ("amp", '&'),
    ("lt", '<'),
    ("gt", '>'),
    ("quot", '"'),
    ("nbsp", '\u{a0}'),
    ("apos", '\''),
    ("sol", '/'),
    ("equals", '='),
    ("plus", '+'),
    ("lowbar", '_'),
    ("period", '.'),
    ("comma", ','),
    ("colon", ':'),
    ("semi", ';'),
    ("commat", '@'),
    ("num", '#'),
    ("percnt", '%'),
    ("dollar", '$'),
    ("ast", '*'),
    ("excl", '!'),
    ("quest", '?'),
    ("bsol", '\\'),
    ("lpar", '('),
    ("rpar", ')'),
    ("lsqb", '['),
    ("rsqb", ']'),
    ("lcub", '{'),
    ("rcub", '}'),
    ("verbar", '|'),
    ("Hat", '^'),
    ("grave", '`'),
    ("Tab", '\t'),
    ("NewLine", '\n'),
    ("shy", '\u{ad}'),
    ("ensp", '\u{2002}'),
    ("emsp", '\u{2003}'),
    ("thinsp", '\u{2009}'),
    ("hairsp", '\u{200a}'),
    ("zwnj", '\u{200c}'),
    ("zwj", '\u{200d}'),
    ("lrm", '\u{200e}'),
    ("rlm", '\u{200f}'),
    ("NoBreak", '\u{2060}'),
    ("ZeroWidthSpace", '\u{200b}'),
];

fn hex(digits: &[u8]) -> Option<u32> {
    if digits.is_empty() {
        return None;
    }
    digits
        .iter()
        .try_fold(0_u32, |number, digit| Some(number.checked_mul(16)? | char::from(*digit).to_digit(16)?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn folds_look_alikes_and_removes_invisible_characters() {
        for (text, seen) in [
            ("ｇｈｐ＿１", "ghp_1"),
            ("g\u{200b}h\u{ad}p\u{feff}", "ghp"),
            ("𝐠𝒽𝓅 ⓐ", "ghp a"),
            ("tschüß 漢字 ok", "tschüß 漢字 ok"),
        ] {
            assert_eq!(View::plain(text.as_bytes()).bytes, text_bytes(seen), "{text}");
        }
        assert_eq!(View::plain(b"\xff\xfea\xc3").bytes, b"\xff\xfea\xc3".as_slice());
    }

    fn text_bytes(text: &str) -> &[u8] {
        text.as_bytes()
    }

    #[test]
    fn decodes_nested_escapes() {
        for (text, seen) in [
            ("%67hp%5F1", "ghp_1"),
            (r"\u0067\u{68}\x70\/", "ghp/"),
            ("&#103;&#x68;p&amp;", "ghp&"),
            (r"\ud835\udc20hp", "ghp"),
            ("%u0067%u0068p%ud835%udc20", "ghpg"),
            ("%25u0067hp", "ghp"),
            (r"\\u0067hp", "ghp"),
            ("%5Cu0067hp", "ghp"),
            ("%26%23103%3Bhp", "ghp"),
            (r"\147\150p", "ghp"),
            (r"\U00000067hp", "ghp"),
            ("&#0000000000103hp", "ghp"),
            ("&#x067;hp&lowbar;1", "ghp_1"),
            ("g&shy;h&ZeroWidthSpace;p", "ghp"),
            ("ghp%20", "ghp "),
            (r"ghp\u003c", "ghp<"),
        ] {
            let view = View::unescaped(text.as_bytes()).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(view.bytes, text_bytes(seen), "{text}");
        }
        assert!(View::unescaped(br#"a \"quoted\" line\n and 100% of it & more"#).is_none());
    }

    #[test]
    fn a_verbatim_view_decodes_escapes_of_text_only() {
        let seen = |text: &[u8]| View::unescaped_verbatim(text).map(|view| view.bytes.into_owned());
        assert_eq!(seen("%67hｐ".as_bytes()), Some("ghｐ".as_bytes().to_vec()));
        assert_eq!(seen("hｐ".as_bytes()), None);
        assert_eq!(seen(b"%67hp\0"), None);
    }

    #[test]
    fn source_ranges_cover_the_escapes() {
        let text = "x=\u{200b}%67%68p!".as_bytes();
        let view = View::unescaped(text).expect("escapes");
        let at = view.bytes.windows(3).position(|window| window == b"ghp").expect("found");
        assert_eq!(&text[view.source_range(&(at..at + 3))], b"%67%68p");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(text in prop::collection::vec(any::<u8>(), 0..300)) {
            for view in [Some(View::plain(&text)), View::unescaped(&text)].into_iter().flatten() {
                let mut last = 0;
                for place in 0..=view.bytes.len() {
                    let source = view.source(place);
                    prop_assert!(source >= last && source <= text.len());
                    last = source;
                }
                prop_assert_eq!(view.source(view.bytes.len()), text.len());
            }
        }

        #[test]
        fn an_offset_is_the_first_one_of_its_source(
            text in r#"([a-z ]|%67|%25u0067|\\u0068|\\n|&amp;|&shy;|&#x1f525;|\u{200b}|ｇ|€|\*\*| {2}){0,30}"#,
        ) {
            let text = text.as_bytes();
            let views = [Some(View::plain(text)), View::unescaped_all(text), Some(crate::words::words(text))];
            for view in views.into_iter().flatten() {
                for place in 0..=text.len() {
                    let first = (0..view.bytes.len()).find(|offset| view.source(*offset) >= place);
                    prop_assert_eq!(view.offset(place), first.unwrap_or(view.bytes.len()), "{}", place);
                }
            }
        }

        #[test]
        fn decodes_mixed_escapes(text in "[ -~]{1,40}", styles in prop::collection::vec(0..5, 40)) {
            let written: String = text.chars().zip(styles).map(|(character, style)| {
                let code = u32::from(character);
                match style {
                    0 => format!("%{code:02x}"),
                    1 => format!("\\u{code:04X}"),
                    2 => format!("&#{code};"),
                    3 => format!("&#x{code:x};"),
                    _ => format!("\\x{code:02x}"),
                }
            }).collect();
            let once = unescape(written.as_bytes(), Relevant::OfTokens);
            if text.contains(|character: char| character.is_ascii_alphanumeric()) {
                prop_assert_eq!(once.expect("worth it").0, text.as_bytes());
            }
        }
    }
}
