//! Fits text into the cells of a full screen: truncated, padded and wrapped to columns, and tinted.
//!
//! The functions treat text as untrusted: they escape it, and replace characters that the terminal cannot show.

use dialoguer::console::{Alignment, measure_text_width, pad_str, truncate_str};
use ratatui::style::{Color, Modifier, Style};

use super::layout;
use super::output::{inert, one_line};
use super::style::Styles;

/// Truncates a text to one line of this width, and marks the truncation.
pub(crate) fn fitted(text: &str, columns: usize, styles: Styles) -> String {
    truncate_str(&styles.displayable(&one_line(text)), columns, styles.ellipsis()).into_owned()
}

/// Truncates a text to `width` columns, and pads it with spaces to `width + 2`.
pub(crate) fn padded(text: &str, width: usize, styles: Styles) -> String {
    pad_str(&fitted(text, width, styles), width + 2, Alignment::Left, None).into_owned()
}

/// Wraps every line of a text to this width, between words or within a long word. No text is lost.
pub(crate) fn wrapped(text: &str, columns: usize, styles: Styles) -> Vec<String> {
    let text = inert(text).replace('\t', "    ");
    let text = styles.displayable(&text);
    let lines = text.split('\n').flat_map(|line| layout::wrapped(line, columns, columns));
    lines.flat_map(|line| broken(line, columns)).collect()
}

/// Splits a line into pieces of this width. A character that is wider than this width forms its own piece.
fn broken(line: String, columns: usize) -> Vec<String> {
    if measure_text_width(&line) <= columns {
        return vec![line];
    }
    let mut pieces = vec![String::new()];
    let mut room = columns;
    for letter in line.chars() {
        let width = measure_text_width(letter.encode_utf8(&mut [0; 4]));
        if width > room {
            pieces.push(String::new());
            room = columns;
        }
        room = room.saturating_sub(width);
        if let Some(piece) = pieces.last_mut() {
            piece.push(letter);
        }
    }
    pieces
}

pub(crate) fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

pub(crate) fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

/// Returns a style with one of the terminal's colours, if colours are on.
pub(crate) fn tinted(color: Color, styles: Styles) -> Style {
    if styles.color { Style::new().fg(color) } else { Style::new() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn splits_long_words_and_escapes_control_characters() {
        for (text, columns, expected) in [
            ("one two three", 8, &["one two", "three"][..]),
            ("abcdefghij klm", 4, &["abcd", "efgh", "ij", "klm"]),
            ("日本語", 5, &["日本", "語"]),
            ("a\u{1b}[2Jb", 20, &["a\\u{1b}[2Jb"]),
            ("x\n\ny", 4, &["x", "", "y"]),
            ("", 4, &[""]),
        ] {
            assert_eq!(wrapped(text, columns, Styles::PLAIN), expected, "{text:?}");
        }
        assert_eq!(fitted("two\nlines", 20, Styles::PLAIN), "two\\nlines");
    }

    proptest! {
        #[test]
        fn wrapping_keeps_the_width_and_all_characters(text in "[a-z日é\u{1b}`\n ]{0,120}", columns in 2usize..40) {
            let lines = wrapped(&text, columns, Styles::PLAIN);
            prop_assert!(lines.iter().all(|line| measure_text_width(line) <= columns), "{lines:?}");
            let letters = |text: &str| text.chars().filter(|letter| !letter.is_whitespace()).collect::<String>();
            prop_assert_eq!(letters(&lines.concat()), letters(&inert(&text)));
        }
    }
}
