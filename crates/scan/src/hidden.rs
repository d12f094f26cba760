//! Detects characters that a user does not see but that a model reads.

use std::ops::Range;

use crate::finding::Severity;

/// The minimum number of consecutive invisible characters that are reported. Shorter runs occur in ordinary text, for
/// example in emoji. A character that overrides the text direction is reported even if it is alone.
const MIN_RUN: usize = 8;

/// Finds hidden text. Each result has a range, a rule, a severity and a description.
pub(crate) fn find(text: &[u8]) -> Vec<(Range<usize>, &'static str, Severity, &'static str)> {
    if text.is_ascii() {
        return Vec::new();
    }
    let mut found = Vec::new();
    // The class, the range and the length of the current run of invisible characters.
    let mut row: Option<(Class, Range<usize>, usize)> = None;
    let mut at = 0;
    for chunk in text.utf8_chunks() {
        for character in chunk.valid().chars() {
            let range = at..at + character.len_utf8();
            at = range.end;
            let class = Class::from_char(character);
            match &mut row {
                Some((current, extent, count)) if Some(*current) == class => {
                    extent.end = range.end;
                    *count += 1;
                }
                _ => {
                    found.extend(row.take().and_then(finding));
                    row = class.map(|class| (class, range, 1));
                }
            }
        }
        found.extend(row.take().and_then(finding));
        at += chunk.invalid().len();
    }
    found
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    /// Unicode tag characters, which are an invisible copy of ASCII.
    Tag,
    /// Zero-width characters and variation selectors. A sequence of them can encode text.
    ZeroWidth,
    /// Characters that override the text direction.
    Direction,
}

impl Class {
    fn from_char(character: char) -> Option<Self> {
        match character {
            '\u{e0020}'..='\u{e007f}' => Some(Self::Tag),
            '\u{200b}'..='\u{200d}'
            | '\u{2060}'..='\u{2064}'
            | '\u{feff}'
            | '\u{fe00}'..='\u{fe0e}'
            | '\u{e0100}'..='\u{e01ef}' => Some(Self::ZeroWidth),
            '\u{202d}' | '\u{202e}' => Some(Self::Direction),
            _ => None,
        }
    }
}

fn finding(
    (class, extent, count): (Class, Range<usize>, usize),
) -> Option<(Range<usize>, &'static str, Severity, &'static str)> {
    match class {
        // Emoji flags of regions contain up to six tag characters.
        Class::Tag if count >= MIN_RUN => {
            Some((extent, "hidden-tags", Severity::Block, "text in invisible characters"))
        }
        Class::ZeroWidth if count >= MIN_RUN => {
            Some((extent, "hidden-zero-width", Severity::Block, "a run of invisible characters"))
        }
        Class::Direction => {
            Some((extent, "hidden-direction", Severity::Warn, "text with an overridden direction"))
        }
        Class::Tag | Class::ZeroWidth => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Vec<&'static str> {
        find(text.as_bytes()).into_iter().map(|(_, rule, ..)| rule).collect()
    }

    #[test]
    fn detects_hidden_text_only() {
        let tags: String =
            "ignore all".chars().filter_map(|letter| char::from_u32(0xe0000 + u32::from(letter))).collect();
        assert_eq!(rules(&format!("hello{tags} world")), ["hidden-tags"]);
        assert_eq!(rules(&"\u{200b}\u{200c}".repeat(4)), ["hidden-zero-width"]);
        assert_eq!(rules("admin\u{202e}txt.exe"), ["hidden-direction"]);
        // A region's flag, a family emoji, a Persian word and a byte order mark contain few invisible
        // characters.
        let flag: String =
            "gbsct\u{5f}".chars().filter_map(|letter| char::from_u32(0xe0000 + u32::from(letter))).collect();
        assert!(rules(&format!("\u{feff}\u{1f3f4}{flag} 👨‍👩‍👧 می‌خواهم tschüß")).is_empty());
    }
}
