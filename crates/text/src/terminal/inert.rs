//! Escapes untrusted text for display.

use unicode_normalization::char::is_combining_mark;

/// The largest number of combining marks on one letter. Further marks are escaped, because they would cover adjacent
/// lines.
const MOST_MARKS: u8 = 4;

/// Escapes every character of untrusted text that could control the display or mislead a reader. Escapes control
/// characters except line breaks and tabs. Escapes characters that are invisible, that are blank (except the space), or
/// that change the text direction. Escapes combining marks that pile up, or that have no base letter and would modify
/// the preceding text. Other characters remain unchanged.
#[must_use]
pub fn inert(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    // The number of marks on the previous letter. `None` if there is no previous letter.
    let mut marks = None;
    for c in text.chars() {
        marks = match c {
            '\n' | '\t' | ' ' => {
                shown.push(c);
                None
            }
            c if c.is_control() || is_misleading(c) => {
                shown.extend(c.escape_default());
                None
            }
            c if is_combining_mark(c) => match marks {
                Some(count) if count < MOST_MARKS => {
                    shown.push(c);
                    Some(count + 1)
                }
                _ => {
                    shown.extend(c.escape_default());
                    None
                }
            },
            c => {
                shown.push(c);
                Some(0)
            }
        };
    }
    shown
}

/// Escapes the characters of a JSON document that [`inert`] escapes. The parsed value of the document stays the same.
/// The document's writer must have escaped the characters below U+0020, as JSON requires.
#[must_use]
pub fn inert_json(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for c in json.chars() {
        if c == '\n' || !(c.is_control() || is_misleading(c)) {
            shown.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            shown.push_str(&format!("\\u{unit:04x}"));
        }
    }
    shown
}

/// Whether the character can make two different texts look the same. These characters are blanks other than the space,
/// fillers, zero-width, bidirectional and other format characters, variation selectors, tags, soft hyphen, line
/// separators, noncharacters and private-use characters.
fn is_misleading(c: char) -> bool {
    let last = u32::from(c) & 0xfffe;
    (c.is_whitespace() && !matches!(c, ' ' | '\n' | '\t'))
        || last == 0xfffe
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}' | '\u{e000}'..='\u{f8ff}'
            | '\u{fdd0}'..='\u{fdef}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffc}' | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}'
            | '\u{16fe4}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d159}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{10ffff}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn escapes_controls_and_invisible_characters_only() {
        let text = "a\x1b[8mb\u{9b}2J\rc\n\tdé✓";
        assert_eq!(inert(text), "a\\u{1b}[8mb\\u{9b}2J\\rc\n\tdé✓");
        assert_eq!(inert("pay \u{202e}xat\u{202c}\u{200b}"), "pay \\u{202e}xat\\u{202c}\\u{200b}");
    }

    #[test]
    fn escapes_in_json_keep_the_value() {
        let value = serde_json::json!({"a\u{9b}2J": ["\x1b[8m\x7f\u{202e}\t", "\u{e0041} é✓"]});
        let text = serde_json::to_string_pretty(&value).expect("text");
        let shown = inert_json(&text);
        assert!(shown.contains(r"a\u009b2J") && shown.contains(r"\udb40\udc41 é✓"), "{shown}");
        assert!(shown.chars().all(|c| c == '\n' || !(c.is_control() || is_misleading(c))), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).expect("JSON"), value);
    }

    #[test]
    fn escapes_every_blank_except_the_space() {
        let blanks = [
            0xa0, 0xad, 0x34f, 0x61c, 0x115f, 0x1160, 0x1680, 0x17b4, 0x180e, 0x2000, 0x2003, 0x200a, 0x200b,
            0x200d, 0x2028, 0x202f, 0x205f, 0x2060, 0x2066, 0x2800, 0x3000, 0x3164, 0xe000, 0xfe00, 0xfe0f,
            0xfeff, 0xffa0, 0xfffc, 0xffff, 0x1343f, 0x1bca0, 0x1d159, 0x1d173, 0x1d17a, 0xe0001, 0xe0020,
            0xe007f, 0xe0100, 0xe01ef, 0xf0000, 0x10_fffd,
        ];
        for blank in blanks.map(|code| char::from_u32(code).expect("a character")) {
            let text = format!("a{blank}b");
            assert_eq!(inert(&text), format!("a{}b", blank.escape_default()), "{:x}", u32::from(blank));
        }
    }

    #[test]
    fn limits_combining_marks() {
        for (text, shown) in [
            ("e\u{301}a\u{323}\u{302}", "e\u{301}a\u{323}\u{302}"),
            ("\u{338} at the edge", "\\u{338} at the edge"),
            ("one\n\u{20dd}two", "one\n\\u{20dd}two"),
            ("a \u{301}", "a \\u{301}"),
            ("ก็ที่ हिन्दी", "ก็ที่ हिन्दी"),
        ] {
            assert_eq!(inert(text), shown, "{text:?}");
        }
        let pile = inert(&format!("z{}", "\u{301}".repeat(30)));
        assert_eq!(pile.matches('\u{301}').count(), 4, "{pile}");
    }

    proptest! {
        #[test]
        fn escapes_all_active_characters_and_is_idempotent(text in any::<String>()) {
            let shown = inert(&text);
            prop_assert!(shown.chars().all(|c| c == '\n' || c == '\t' || !(c.is_control() || is_misleading(c))));
            prop_assert_eq!(inert(&shown), shown);
        }
    }
}
