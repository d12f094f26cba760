//! Selects the regions of a text that may contain encoded data. Such a region has many capitals and digits, long words
//! that contain capitals or digits, or many letters that a backslash escapes, as in shell commands.
//!
//! Base64, base32, hexadecimal and lists of numbers consist of capitals, digits and long words. Prose and source code
//! contain few of them. The selection costs one fast pass over the text, and only the selected regions are decoded.

use std::ops::Range;

use crate::prefilter::{BLOCK, MIN_QUOTED, Prefilter, TEXT_SHARE, WORD};

/// A block is dense if at least one in this many printable characters is a capital or a digit.
const DENSITY: u32 = 5;
/// A word with this many consecutive letters and digits is selected even if it has no capitals and no digits.
const LONG_WORD: usize = 20;
/// The minimum number of capitals and digits in a long word that has fewer than [`LONG_WORD`] consecutive letters and
/// digits.
const MIN_STRONG: usize = 3;
/// The maximum number of bytes by which a region is extended in each direction to reach a line break.
const LINE: usize = 128;

/// Returns the regions of `text` that may contain encoded data, in order and without overlaps. For decoded data,
/// `prefilter` has read the data.
pub(crate) fn regions(text: &[u8], prefilter: Option<&Prefilter>) -> Vec<Range<usize>> {
    let may_be_dense = |at| prefilter.is_none_or(|prefilter| prefilter.may_be_dense(at / BLOCK));
    let mut regions = around_blocks(text, |at, block| may_be_dense(at) && is_dense(text, at, block));
    for region in &mut regions {
        let before = &text[region.start.saturating_sub(LINE)..region.start];
        region.start -= before.iter().rev().position(|byte| *byte == b'\n').unwrap_or(0);
        let after = &text[region.end..text.len().min(region.end + LINE)];
        region.end += after.iter().position(|byte| *byte == b'\n').unwrap_or(0);
    }
    // Regions that were extended to their line breaks may touch, so they are merged.
    regions.dedup_by(|next, last| {
        let joins = next.start <= last.end;
        if joins {
            last.end = last.end.max(next.end);
        }
        joins
    });
    regions
}

/// Returns the parts of decoded data that may be text, in order and without overlaps. A block may be text if at most a
/// quarter of its bytes do not occur in ASCII text.
pub(crate) fn texts(data: &[u8], prefilter: &Prefilter) -> Vec<Range<usize>> {
    around_blocks(data, |at, block| {
        if !prefilter.may_be_text(at / BLOCK) {
            return false;
        }
        let other = block.iter().map(|byte| is_other(*byte)).sum::<u8>();
        usize::from(other) * TEXT_SHARE <= block.len()
    })
}

/// Returns the ranges of the blocks for which `belongs` returns true, together with the block before and the block
/// after each of them. `belongs` receives the position and the bytes of a block.
fn around_blocks(bytes: &[u8], belongs: impl Fn(usize, &[u8]) -> bool) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for (number, block) in bytes.chunks(BLOCK).enumerate() {
        let at = number * BLOCK;
        if !belongs(at, block) {
            continue;
        }
        let (start, end) = (at.saturating_sub(BLOCK), bytes.len().min(at + 2 * BLOCK));
        match ranges.last_mut().filter(|last| last.end >= start) {
            Some(last) => last.end = end,
            None => ranges.push(start..end),
        }
    }
    ranges
}

/// Returns 1 for a byte that does not occur in ASCII text, and 0 for any other byte.
fn is_other(byte: u8) -> u8 {
    u8::from(byte > b'~') | u8::from(byte < b'\t')
}

fn is_dense(text: &[u8], at: usize, block: &[u8]) -> bool {
    let mut letters = [0_u8; BLOCK];
    let (mut strong, mut printed, mut other, mut slashes) = (0_u8, 0_u8, 0_u8, 0_u8);
    // This loop has no branches, so that the compiler can vectorize it.
    for (byte, letter) in block.iter().zip(&mut letters) {
        let digit = u8::from(byte.wrapping_sub(b'0') < 10);
        let capital = u8::from(byte.wrapping_sub(b'A') < 26);
        let small = u8::from(byte.wrapping_sub(b'a') < 26);
        let sign = u8::from(*byte == b'+')
            | u8::from(*byte == b'/')
            | u8::from(*byte == b'-')
            | u8::from(*byte == b'_');
        strong += digit + capital;
        printed += u8::from(byte.wrapping_sub(b'!') < 94);
        other += is_other(*byte);
        slashes += u8::from(*byte == b'\\');
        *letter = digit | capital | small | sign;
    }
    let (strong, printed) = (u32::from(strong), u32::from(printed));
    let text_like = usize::from(other) * TEXT_SHARE <= block.len();
    if strong >= 4 && strong * DENSITY >= printed && text_like {
        return true;
    }
    if slashes >= MIN_QUOTED && quoted(block) >= usize::from(MIN_QUOTED) {
        return true;
    }
    // Every word of at least 16 bytes contains an aligned group of eight bytes.
    printed >= 8
        && letters
            .chunks_exact(8)
            .enumerate()
            .any(|(number, eight)| eight == [1; 8] && is_word(text, at + number * 8))
}

/// Counts the letters and digits that directly follow a backslash.
fn quoted(block: &[u8]) -> usize {
    block.windows(2).filter(|pair| pair[0] == b'\\' && pair[1].is_ascii_alphanumeric()).count()
}

/// Returns whether `at` is inside a long word that contains capitals or digits, or that has at least [`LONG_WORD`]
/// consecutive letters and digits.
fn is_word(text: &[u8], at: usize) -> bool {
    let belongs = |byte: &&u8| byte.is_ascii_alphanumeric() || b"+/-_".contains(byte);
    let before = text[..at].iter().rev().take(WORD).take_while(belongs).count();
    let after = text[at..].iter().take(2 * WORD).take_while(belongs).count();
    let word = &text[at - before..at + after];
    if word.len() < WORD {
        return false;
    }
    let strong = word.iter().filter(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase()).count();
    strong >= MIN_STRONG
        || word.split(|byte| !byte.is_ascii_alphanumeric()).any(|part| part.len() >= LONG_WORD)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn encodings_have_regions_and_prose_has_none() {
        let prose = "The proxy opens its own verified connection upstream, and decides each request. \
                     let value = table.get(&key).map(|entry| entry.size + 12); // see src/module.rs, and the tests\n"
            .repeat(5);
        assert!(regions(prose.as_bytes(), None).is_empty());
        for encoded in [
            "WnE3L0tkKzkzdjpYdyZw",
            "5a71372f4b642b3933763a5877267054",
            "90, 113, 55, 47, 75, 100, 43, 57, 51, 118, 58, 88, 119",
            "0x5a, 0x71, 0x37, 0x2f, 0x4b, 0x64, 0x2b, 0x39, 0x33, 0x76, 0x3a, 0x58, 0x77, 0x26",
            "LJYTGL2LMQVTSM3WHJMHOJTQKQZC23KCHB4VGZJUFZGGQNKSMYYE4Y",
            "\\132\\161\\067\\057\\113\\144\\053\\071\\063\\166\\072\\130",
        ] {
            for shift in 0..64 {
                let text = format!("{prose}{}{encoded} {prose}", " ".repeat(shift));
                let start = prose.len() + shift;
                let whole = start..start + encoded.len();
                let covered = regions(text.as_bytes(), None);
                let covered =
                    covered.iter().any(|region| region.start <= whole.start && whole.end <= region.end);
                assert!(covered, "{shift} {encoded}");
            }
        }
    }

    proptest! {
        #[test]
        fn the_prefilter_rejects_no_region(
            parts in prop::collection::vec(
                prop_oneof![
                    prop::collection::vec(any::<u8>(), 0..200),
                    prop::collection::vec(0x80_u8.., 0..70),
                    "[A-Za-z0-9+/]{0,40}".prop_map(String::into_bytes),
                    "([a-z0-9 ]{3}\u{e9}){0,40}".prop_map(String::into_bytes),
                    "(\\\\[a-z]\u{4e2d}){0,20}".prop_map(String::into_bytes),
                ],
                0..10,
            ),
        ) {
            let data = parts.concat();
            let mut prefilter = Prefilter::default();
            // Without data, the prefilter rejects nothing.
            let (all, all_texts) = (regions(&data, None), texts(&data, &prefilter));
            prefilter.read(&data, 12);
            prop_assert_eq!(regions(&data, Some(&prefilter)), all);
            prop_assert_eq!(texts(&data, &prefilter), all_texts);
        }
    }
}
