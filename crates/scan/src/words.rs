//! Reads a text as the words of a sentence, and replaces each separator between two words by one space.
//!
//! A model understands a phrase of a prompt injection even if the words are on several lines, in bold, in several data
//! lines of a server-sent event, or in several parts of a message. Therefore, one space replaces each gap between two
//! words. A gap is a sequence of blanks and marks.

use crate::view::{View, Writer, character, escape, is_invisible};

/// Marks: characters that belong to a gap if the gap also contains a blank. Such marks occur in Markdown, in comments,
/// before quoted lines and at the end of continued lines.
const MARKS: &[u8] = b"*_~`#/\\-";
/// Marks that count only after a blank, because they also end chat markers and tags.
const LATER_MARKS: &[u8] = b">|";

/// Whether a gap can begin with the byte at each index. A gap can begin with a control character, a blank, a mark, an
/// escape, or a non-ASCII character.
const BEGINS: [bool; 256] = {
    let starts = b" *_~`#/\\-&%<\"=+";
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = byte < 0x20 || byte >= 0xc2;
        byte += 1;
    }
    let mut at = 0;
    while at < starts.len() {
        table[starts[at] as usize] = true;
        at += 1;
    }
    table
};

/// The typographic apostrophe, U+2019.
const APOSTROPHE: &[u8] = "’".as_bytes();

/// The maximum length of an HTML tag that counts as a gap, in bytes.
const MAX_TAG: usize = 300;

/// The maximum length of the parameters in a terminal's escape sequence for a style, in bytes.
const MAX_STYLE: usize = 16;

/// The HTML elements that occur within a sentence. Tags of these elements count as gaps.
const ELEMENTS: &[&str] = &[
    "a", "abbr", "b", "big", "br", "cite", "code", "del", "div", "em", "font", "h1", "h2", "h3", "h4", "h5",
    "h6", "i", "ins", "kbd", "li", "mark", "ol", "p", "q", "s", "small", "span", "strong", "sub", "sup",
    "td", "tr", "tt", "u", "ul", "wbr",
];

/// The maximum number of times that the escape of a blank may be escaped again.
const MAX_DEPTH: usize = 3;

/// Returns a view of `text` in which each gap is replaced by one space, and each typographic apostrophe by `'`.
pub(crate) fn words(text: &[u8]) -> View<'_> {
    let mut writer = Writer::default();
    let (mut at, mut copied) = (0, 0);
    while let Some(next) = text[at..].iter().position(|byte| begins_gap(*byte)) {
        let start = at + next;
        // Most gaps are one space.
        if text[start] == b' ' && text.get(start + 1).is_none_or(u8::is_ascii_alphanumeric) {
            at = start + 1;
            continue;
        }
        let run = Run::at(&text[start..]);
        at = start + run.length.max(1);
        let made = match run.is_gap {
            true if text[start..at] != *b" " => " ",
            false if text[start..].starts_with(APOSTROPHE) => {
                at = start + APOSTROPHE.len();
                "'"
            }
            _ => continue,
        };
        writer.copy(&text[copied..start]);
        writer.put(made.as_bytes(), start, at);
        copied = at;
    }
    writer.copy(&text[copied..]);
    writer.into_view(text)
}

/// Returns whether a gap can begin with this byte.
pub(crate) fn begins_gap(byte: u8) -> bool {
    BEGINS[usize::from(byte)]
}

/// Returns the length of `words` at the start of `text`. A space in `words` matches any gap, and case is ignored.
/// Returns `None` if `text` does not begin with `words`.
pub(crate) fn prefix(text: &[u8], words: &[u8]) -> Option<usize> {
    let mut at = 0;
    for letter in words {
        let rest = text.get(at..)?;
        at += match letter {
            b' ' => Some(Run::at(rest)).filter(|run| run.is_gap)?.length,
            b'\'' if rest.starts_with(APOSTROPHE) => APOSTROPHE.len(),
            letter => rest.first().filter(|byte| byte.eq_ignore_ascii_case(letter)).map(|_| 1)?,
        };
    }
    Some(at)
}

/// Consecutive blanks and marks.
struct Run {
    length: usize,
    /// Whether the run contains at least one blank.
    is_gap: bool,
}

impl Run {
    /// Returns the run at the start of `text`.
    fn at(text: &[u8]) -> Self {
        let (mut length, mut is_gap) = (0, false);
        loop {
            let rest = &text[length..];
            let blank = blank(rest, MAX_DEPTH);
            let mark = if blank > 0 { 0 } else { mark(rest, is_gap) };
            if blank + mark == 0 {
                return Self { length, is_gap };
            }
            length += blank + mark;
            is_gap |= blank > 0;
        }
    }
}

/// Returns the length of the mark at the start of `text`, or 0 if there is none. Non-ASCII symbols and punctuation are
/// marks too. `after_blank` says whether a blank precedes the mark.
fn mark(text: &[u8], after_blank: bool) -> usize {
    match text {
        [byte, ..] if MARKS.contains(byte) || after_blank && LATER_MARKS.contains(byte) => 1,
        [0xc2..=0xff, ..] => character(text).filter(|it| !it.is_alphanumeric()).map_or(0, char::len_utf8),
        _ => 0,
    }
}

/// Returns the length of the blank at the start of `text`, or 0 if there is none. A blank is anything that a reader
/// sees as a space, such as an escaped line break.
fn blank(text: &[u8], depth: usize) -> usize {
    match text {
        // Clients of server-sent events join the data lines of an event (HTML, 9.2.6).
        [b'\n' | b'\r', b'd', b'a', b't', b'a', b':', ..] => 6,
        [0x1b, rest @ ..] => 1 + style(rest),
        [0..=b' ', ..] => 1,
        // A space in an HTML form, and blanks in quoted-printable text.
        [b'+', ..] => 1,
        [b'=', b'2', b'0', ..] | [b'=', b'0', b'9' | b'A' | b'D', ..] => 3,
        [b'<', ..] => tag(text),
        [b'"', ..] => border(text),
        [b'\\' | b'&' | b'%', ..] => escaped_blank(text, depth),
        [0x80..=0xff, ..] => character(text).filter(|it| is_blank(*it)).map_or(0, char::len_utf8),
        _ => 0,
    }
}

fn is_blank(character: char) -> bool {
    character.is_whitespace() || character.is_control() || is_invisible(character)
}

/// Returns the length of a terminal's escape sequence for a style, such as `ESC[1m`, without the `ESC`.
fn style(text: &[u8]) -> usize {
    let [b'[', rest @ ..] = text else { return 0 };
    let length =
        rest.iter().take(MAX_STYLE).take_while(|byte| byte.is_ascii_digit() || **byte == b';').count();
    rest.get(length).filter(|byte| byte.is_ascii_alphabetic()).map_or(0, |_| length + 2)
}

/// Returns the length of the escaped blank at the start of `text`, or 0 if there is none. The escape may be escaped
/// again, as in `\\n`.
fn escaped_blank(text: &[u8], depth: usize) -> usize {
    let Some((unit, length)) = escape(text) else { return 0 };
    let character = unit.character();
    if is_blank(character) {
        return length + if character == '\x1b' { style(&text[length..]) } else { 0 };
    }
    let Some(depth) = depth.checked_sub(1).filter(|_| matches!(character, '\\' | '&' | '%')) else {
        return 0;
    };
    // Room for the longest escaped blank.
    let mut inner = [0; 24];
    inner[0] = u8::try_from(character).unwrap_or_default();
    let rest = &text[length..text.len().min(length + inner.len() - 1)];
    inner[1..=rest.len()].copy_from_slice(rest);
    match escaped_blank(&inner[..=rest.len()], depth) {
        0 => 0,
        blank => length + blank - 1,
    }
}

/// Returns the length of the HTML tag or comment at the start of `text`. Returns 0 if there is none, or if the element
/// is not in [`ELEMENTS`].
fn tag(text: &[u8]) -> usize {
    let limit = text.len().min(MAX_TAG);
    if text.starts_with(b"<!--") {
        return memchr::memmem::find(&text[..limit], b"-->").map_or(0, |end| end + 3);
    }
    let Some(end) = memchr::memchr(b'>', &text[..limit]) else { return 0 };
    let name = text[1..end].strip_prefix(b"/").unwrap_or(&text[1..end]);
    let length = name.iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
    let is_known = ELEMENTS.iter().any(|known| name[..length].eq_ignore_ascii_case(known.as_bytes()));
    if is_known && !text[1..end].contains(&b'<') { end + 1 } else { 0 }
}

/// Returns the length of the JSON between the texts of two parts of a chat message, as in `"Forget all"}, {"type":
/// "text", "text": "previous instructions"`. Returns 0 if `text` begins with anything else.
fn border(text: &[u8]) -> usize {
    let (mut at, mut parts, mut key) = (1, 0, "");
    while let Some(byte) = text.get(at).filter(|_| parts <= 1) {
        let is_string = |string: &[u8]| text[at..].starts_with(string);
        at += match (key, byte) {
            (_, b'}' | b',' | b':') => 1,
            (_, byte) if byte.is_ascii_whitespace() => 1,
            ("", b'{') => {
                parts += 1;
                1
            }
            ("", b'"') if is_string(b"\"type\"") => {
                key = "type";
                6
            }
            ("", b'"') if is_string(b"\"text\"") => {
                key = "text";
                6
            }
            ("type", b'"') if is_string(b"\"text\"") => {
                key = "";
                6
            }
            // The quote before the text of the next part.
            ("text", b'"') if parts == 1 => return at + 1,
            _ => return 0,
        };
    }
    0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_space_stands_for_each_gap() {
        for (text, read) in [
            ("one two", "one two"),
            ("one  \t two", "one two"),
            ("one\r\n\r\ntwo", "one two"),
            (r"one\ntwo", "one two"),
            (r"one\t\\n\\\\r two", "one two"),
            (r"one\u000atwo\u2028three\u{a0}four\x0afive\012six", "one two three four five six"),
            ("one\u{2028}two\u{a0}three\u{200b}\u{3000}four\u{85}five", "one two three four five"),
            ("one&nbsp;two&#10;three&#x0000a0;four&NewLine;five&amp;nbsp;six", "one two three four five six"),
            ("one%20two%0Athree%250afour", "one two three four"),
            ("one **two** _three_\n> four\n// five\n # six\\\nseven", "one two three four five six seven"),
            ("one<br>two <b>three</b> <!-- x --> four</p><P class='x'>five", "one two three four five"),
            ("data: one\ndata: two\n\ndata:three", "data: one two three"),
            (r#"["one"},{"type":"text","text":"two"]"#, r#"["one two"]"#),
            (r#"one", "two"#, r#"one", "two"#),
            (r#""text":"one"},{"x":"two"}"#, r#""text":"one"},{"x":"two"}"#),
            ("don’t", "don't"),
            ("one_two, a/b, x->y, ci-dessus 5%", "one_two, a/b, x->y, ci-dessus 5%"),
            ("<system>one</system>", "<system>one</system>"),
            (r"a <|im_start|>\nsystem", "a <|im_start|> system"),
            ("tschüß 漢字 **", "tschüß 漢字 "),
            ("one 🔥 two — “three” …four", "one two three four"),
            ("one\x1b[1;31mtwo\x1b[0m three", "one two three"),
            (r"one\u001b[1mtwo\x1b[0mthree\033[mfour", "one two three four"),
            ("one=20two=0D=0Athree+four a=b", "one two three four a=b"),
            ("naïve—and “so”", "naïve—and so”"),
        ] {
            let view = words(text.as_bytes());
            assert_eq!(String::from_utf8_lossy(&view.bytes), read, "{text}");
            assert_eq!(view.source(view.bytes.len()), text.len());
        }
    }

    #[test]
    fn a_prefix_has_gaps_for_its_spaces() {
        for (text, key, end) in [
            ("You\\nare **now** x", "you are now", Some(14)),
            ("you are now", "you are now", Some(11)),
            ("youare now", "you are now", None),
            ("don’t\ttell", "don't tell", Some(12)),
            ("you are", "you are now", None),
            ("act -as", "act as", Some(7)),
            ("act-as", "act as", None),
        ] {
            assert_eq!(prefix(text.as_bytes(), key.as_bytes()), end, "{text}");
        }
    }

    proptest! {
        #[test]
        fn each_place_maps_to_the_source(text in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..200),
            r#"([a-z ]|\\|\\n|&|%|<b>|<|"|"\}, \{"type":"text","text":"|\*|’|\n){0,40}"#.prop_map(String::into_bytes),
        ]) {
            let view = words(&text);
            let mut last = 0;
            for place in 0..=view.bytes.len() {
                let source = view.source(place);
                prop_assert!(source >= last && source <= text.len());
                last = source;
            }
            prop_assert_eq!(last, text.len());
        }

        #[test]
        fn letters_stay(text in "([a-z]{1,4}[ \\n*]{0,3}){0,20}") {
            let letters = |text: &[u8]| text.iter().filter(|byte| byte.is_ascii_lowercase()).copied().collect::<Vec<_>>();
            prop_assert_eq!(letters(&words(text.as_bytes()).bytes), letters(text.as_bytes()));
        }
    }
}
