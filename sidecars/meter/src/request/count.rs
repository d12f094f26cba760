//! Counts the tokens that a text has at most with the tokenizers in use.
//!
//! Tokenizers differ, so the count is an upper estimate and not the number of one of them: a text that is dense for all
//! of them (digits, punctuation, random letters, rare scripts) must not count as prose. Every byte counts somewhere, and
//! no token of any of these tokenizers is shorter than a byte.

/// The kind of a byte.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Lower,
    Upper,
    Digit,
    Space,
    /// An ASCII character that is none of the others.
    Mark,
    /// The first byte of a longer character, which has so many tokens.
    Wide(u8),
    /// A later byte of a longer character.
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
            0x00..=0x7f => Kind::Mark,
            0x80..=0xbf => Kind::Inner,
            // Two bytes: Latin, Greek, Cyrillic, Hebrew, Arabic.
            0xc0..=0xdf => Kind::Wide(1),
            // Punctuation, symbols, Chinese, Japanese and Korean.
            0xe2..=0xed => Kind::Wide(2),
            // Other scripts and the private area.
            0xe0 | 0xe1 | 0xee | 0xef => Kind::Wide(3),
            0xf0..=0xff => Kind::Wide(4),
        };
        if byte == u8::MAX {
            return kinds;
        }
        byte += 1;
    }
}

/// The tokens of a text, rounded up.
pub(super) fn tokens(text: &str) -> u64 {
    let bytes = text.as_bytes();
    let kind = |at: usize| bytes.get(at).map(|byte| KINDS[usize::from(*byte)]);
    let (mut at, mut total) = (0, 0);
    while let Some(first) = kind(at) {
        let begin = at;
        at += 1;
        match first {
            Kind::Lower | Kind::Upper => {
                // A word ends before a capital, as in `camelCase`.
                while kind(at) == Some(Kind::Upper) && first == Kind::Upper {
                    at += 1;
                }
                while kind(at) == Some(Kind::Lower) {
                    at += 1;
                }
                // Prose has four letters in a token, random letters have two and a half.
                total += (2 * (at - begin)).div_ceil(5);
            }
            Kind::Digit => total += 1,
            // The space before a word belongs to its token.
            Kind::Space if kind(at) != Some(Kind::Space) => {}
            Kind::Space | Kind::Mark => {
                // Runs of one character have tokens of their own.
                while bytes.get(at) == Some(&bytes[begin]) {
                    at += 1;
                }
                total += 1 + (at - begin) / 4;
            }
            Kind::Wide(tokens) => total += usize::from(tokens),
            Kind::Inner => {}
        }
    }
    total as u64
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
        ] {
            assert_eq!(tokens(text), counted, "{text}");
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
