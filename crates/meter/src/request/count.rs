//! Estimates the maximum number of tokens that a text has with the tokenizers in use.
//!
//! Tokenizers differ, so the count is an upper estimate and not the exact count of one tokenizer. Digits, punctuation,
//! random letters and rare scripts have few bytes per token with all tokenizers, so the count of such texts must be
//! higher than that of prose. Every byte belongs to a counted token. No token of any of these tokenizers is shorter
//! than a byte.

/// The kind of a byte.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Lower,
    Upper,
    Digit,
    Space,
    /// A tab, a line break, or a printable ASCII character of no other kind.
    Mark,
    /// Any other control character. Each control character is a token of its own.
    Control,
    /// The first byte of a multi-byte UTF-8 character.
    Wide,
    /// A later byte of a multi-byte UTF-8 character.
    Inner,
}

/// The kinds of all bytes.
static KINDS: [Kind; 256] = kinds();

const fn kinds() -> [Kind; 256] {
    let mut kinds = [Kind::Mark; 256];
    let mut byte = 0_u8;
    loop {
        kinds[byte as usize] = match byte {
            b'a'..=b'z' => Kind::Lower,
            b'A'..=b'Z' => Kind::Upper,
            b'0'..=b'9' => Kind::Digit,
            b' ' => Kind::Space,
            b'\t' | b'\n' | 0x21..=0x7e => Kind::Mark,
            0x00..=0x1f | 0x7f => Kind::Control,
            0x80..=0xbf => Kind::Inner,
            0xc0..=0xff => Kind::Wide,
        };
        if byte == u8::MAX {
            return kinds;
        }
        byte += 1;
    }
}

/// Returns the estimated number of tokens of a text.
pub(super) fn tokens(text: &str) -> u64 {
    let bytes = text.as_bytes();
    let kind = |at: usize| bytes.get(at).map(|byte| KINDS[usize::from(*byte)]);
    let (mut at, mut total) = (0, 0);
    while let Some(first) = kind(at) {
        let begin = at;
        at += 1;
        match first {
            Kind::Lower | Kind::Upper => {
                // A word ends before an upper-case letter that follows a lower-case letter, as in `camelCase`.
                while kind(at) == Some(Kind::Upper) && first == Kind::Upper {
                    at += 1;
                }
                while kind(at) == Some(Kind::Lower) {
                    at += 1;
                }
                // Prose has four letters per token and random letters have two and a half. The count assumes random
                // letters.
                total += (2 * (at - begin)).div_ceil(5);
            }
            Kind::Digit | Kind::Control => total += 1,
            // A space before a word or a mark belongs to the token of that word or mark.
            Kind::Space if matches!(kind(at), Some(Kind::Lower | Kind::Upper | Kind::Mark)) => {}
            Kind::Space | Kind::Mark => {
                // The vocabularies have tokens for runs of the same character.
                while bytes.get(at) == Some(&bytes[begin]) {
                    at += 1;
                }
                total += 1 + (at - begin) / 4;
            }
            Kind::Wide => total += character(bytes[begin], bytes.get(at).copied().unwrap_or_default()),
            Kind::Inner => {}
        }
    }
    total as u64
}

/// Returns the number of tokens of a multi-byte character: one for each byte, but fewer in the Unicode blocks that the
/// vocabularies cover.
fn character(first: u8, second: u8) -> usize {
    match (first, second) {
        // The letters of Latin, Greek, Cyrillic, Hebrew and Arabic.
        (0xc3..=0xc5 | 0xce..=0xd1 | 0xd7..=0xd9, _) => 1,
        (0xc0..=0xdf, _) => 2,
        // Punctuation, Kana, Chinese, and Korean syllables.
        (0xe2, 0x80)
        | (0xe3, 0x80..=0x83)
        | (0xe4, 0xb8..)
        | (0xe5..=0xe9 | 0xeb..=0xed, _)
        | (0xea, 0xb0..) => 2,
        (0xe0..=0xef, _) => 3,
        _ => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_dense_text_higher_than_prose() {
        for (text, counted) in [
            ("", 0),
            ("The quick brown fox jumps over the lazy dog.", 19),
            ("getUserById", 6),
            ("HTTPServer", 4),
            ("3141592653", 10),
            ("        return;", 7),
            ("a\n\n\n\nb", 4),
            ("\u{4f60}\u{597d}", 4),
            ("\u{43f}\u{440}\u{438}\u{432}\u{435}\u{442}", 6),
            ("\u{1f600}", 4),
            ("----------------", 5),
            ("q7Zp9KxW2vRt", 9),
            ("a 1 2", 5),
            ("a - b", 3),
        ] {
            assert_eq!(tokens(text), counted, "{text}");
        }
    }

    /// No vocabulary has a token of more than one byte of these characters, so each byte is a token.
    #[test]
    fn counts_each_byte_of_what_no_vocabulary_covers() {
        for repeated in [
            "\u{1}",
            "\0",
            "\u{7f}",
            "\u{b}",
            "\r",
            "\u{710}",
            "\u{780}",
            "\u{7c0}",
            "\u{531}",
            "\u{250}",
            "\u{80}",
            "\u{900}",
            "\u{3400}",
            "\u{4db5}",
            "\u{a000}",
            "\u{a98f}",
            "\u{2c00}",
            "\u{28ff}",
            "\u{f8ff}",
            "\u{20000}",
            "\u{10348}",
        ] {
            let text = repeated.repeat(100);
            assert_eq!(tokens(&text), text.len() as u64, "{repeated:?}");
            let spaced = format!(" {repeated}").repeat(100);
            assert_eq!(tokens(&spaced), spaced.len() as u64, "a space before {repeated:?}");
        }
    }

    #[test]
    fn no_text_is_free() {
        for repeated in ["a", "A", "1", " ", "\n", "-", "a ", "\u{e9}", "\u{4f60}", "\u{10348}", "\0"] {
            let text = repeated.repeat(1000);
            assert!(tokens(&text) >= 250, "{repeated:?}: {}", tokens(&text));
        }
    }
}
