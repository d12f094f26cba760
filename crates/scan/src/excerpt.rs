//! Shows the text around a finding with all values masked, so that a user can decide about the finding.

use std::ops::Range;

use crate::MASK;

/// The maximum number of bytes by which a mask extends beyond its finding, on each side.
const MAX_WORD: usize = 4 << 10;

/// A part of a text in which every value is masked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Excerpt {
    /// The text. Bytes that are not UTF-8 are replaced. The excerpt may contain control characters.
    pub text: String,
    /// Whether text before the excerpt is left out.
    pub cut_before: bool,
    /// Whether text after the excerpt is left out.
    pub cut_after: bool,
}

/// Returns the finding at `own` with up to `around` bytes of `text` before and after it. Masks the finding and the
/// findings at `others`. Each mask covers the whole word around a finding, because the finding may cover only a part of
/// a value. All masks have the same length. Incomplete words at both ends of the excerpt are left out, because they
/// could be part of a value.
///
/// Ranges that extend beyond the end of `text` are shortened.
#[must_use]
pub fn excerpt(
    text: &[u8],
    own: Range<usize>,
    others: impl IntoIterator<Item = Range<usize>>,
    around: usize,
) -> Excerpt {
    let own = word(text, &own);
    let mut start = own.start.saturating_sub(around);
    if start > 0 {
        start += text[start..own.start].iter().take_while(|byte| in_word(**byte)).count();
    }
    let mut end = text.len().min(own.end.saturating_add(around));
    if end < text.len() {
        end -= text[own.end..end].iter().rev().take_while(|byte| in_word(**byte)).count();
    }
    let others = others.into_iter().filter(|other| other.start < end && start < other.end);
    let mut masks: Vec<Range<usize>> = others.map(|other| word(text, &other)).chain([own]).collect();
    masks.sort_unstable_by_key(|mask| mask.start);
    let mut shown = String::new();
    let mut at = start;
    for mask in masks {
        // Masks that touch are shown as one.
        if mask.start > at || shown.is_empty() {
            shown.push_str(&String::from_utf8_lossy(&text[at..mask.start.max(at)]));
            shown.push_str(MASK);
        }
        at = at.max(mask.end);
    }
    if at < end {
        shown.push_str(&String::from_utf8_lossy(&text[at..end]));
    }
    Excerpt { text: shown, cut_before: start > 0, cut_after: end < text.len() }
}

/// Extends a range to the boundaries of the word that contains it.
fn word(text: &[u8], range: &Range<usize>) -> Range<usize> {
    let start = range.start.min(text.len());
    let end = range.end.clamp(start, text.len());
    // An `=` before a value separates it from its key. An `=` after a value is base64 padding, which belongs to the
    // value.
    let before = text[..start].iter().rev().take(MAX_WORD).take_while(|byte| in_word(**byte)).count();
    let after =
        text[end..].iter().take(MAX_WORD).take_while(|byte| in_word(**byte) || **byte == b'=').count();
    start - before..end + after
}

/// Returns whether a value may contain this byte. Such bytes occur in base64, hexadecimal, percent-encoding, JWTs and
/// UTF-8 letters.
fn in_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || !byte.is_ascii() || b"+/_-.~%\\".contains(&byte)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn masks_whole_words_and_leaves_cut_ones_out() {
        let text = b"first second key=one.TWO.three== TWO, fourth fifth";
        let [own, other] = [21..24, 33..36];
        let made = |around| excerpt(text, own.clone(), [other.clone()], around);
        let expected = |text: &str, cut| Excerpt { text: text.into(), cut_before: cut, cut_after: cut };
        assert_eq!(made(100), expected("first second key=[redacted] [redacted], fourth fifth", false));
        assert_eq!(made(9), expected(" key=[redacted] [redacted], ", true));
        assert_eq!(excerpt(b"TWO", 0..9, std::iter::once(7..9), 5), expected("[redacted]", false));
    }

    proptest! {
        #[test]
        fn never_panics_and_never_shows_a_masked_byte(
            text in "[ab= ]{0,60}",
            own in (0_usize..70, 0_usize..20),
            other in (0_usize..70, 0_usize..20),
            around in 0_usize..30,
        ) {
            let mut text = text.into_bytes();
            let ranges = [own, other].map(|(start, length)| start..start + length);
            for range in &ranges {
                let length = text.len();
                text[range.start.min(length)..range.end.min(length)].fill(b'X');
            }
            let [own, other] = ranges;
            prop_assert!(!excerpt(&text, own, [other], around).text.contains('X'));
        }
    }
}
