//! Selects the blocks of decoded data in which a search can find anything.
//!
//! Most decoded data is binary: the text was encoded at another alignment, in another encoding, or contains an image.
//! Known secrets and encoded text consist of ASCII characters. In random bytes, sixteen adjacent ASCII characters begin at
//! one of 65,536 positions. The prefilter reads each byte once and without branches, and the searches read only the
//! selected blocks. The prefilter rejects no block in which a search would find anything. Secrets with other characters
//! are searched in all blocks.

use std::ops::Range;

/// The size in bytes of the blocks into which data is divided.
pub(crate) const BLOCK: usize = 64;
/// The minimum length of a long word, in bytes.
pub(crate) const WORD: usize = 16;
/// A block is text only if at most one in this many bytes is not ASCII.
pub(crate) const TEXT_SHARE: usize = 4;
/// A block is dense if it has at least this many backslash-escaped letters and digits. If a secret of twelve characters
/// is split between two blocks, one of the blocks has at least six of its characters.
pub(crate) const MIN_QUOTED: u8 = 6;
/// The number of bytes in a row, and the minimum number of zero bytes in a row that may be UTF-16 or UTF-32.
const ROW: usize = 16;
const MIN_ZEROS: u8 = 5;

/// The properties of each block of some decoded data.
#[derive(Default)]
pub(crate) struct Prefilter {
    /// The properties of each block, such as [`TEXT`].
    blocks: Vec<u8>,
    /// The length of the data in bytes.
    length: usize,
    /// Whether an aligned row of sixteen bytes contains at least five zero bytes.
    pub(crate) is_wide: bool,
}

/// The property of a block that may be text.
const TEXT: u8 = 1;
/// The property of a block that may contain encoded data.
const DENSE: u8 = 2;
/// The property of a block in which enough adjacent ASCII characters begin.
const ASCII: u8 = 4;

impl Prefilter {
    /// Reads `data`. After that, [`ascii`](Self::ascii) returns sequences of at least `least` ASCII characters.
    pub(crate) fn read(&mut self, data: &[u8], least: usize) {
        self.length = data.len();
        self.is_wide = false;
        self.blocks.clear();
        let (whole, rest) = data.as_chunks::<BLOCK>();
        let mut ascii = Sequences { least: least.clamp(8, WORD), block: 0, goes_on: false };
        for block in whole {
            self.add(block, BLOCK, &mut ascii);
        }
        if !rest.is_empty() {
            // The padding is not ASCII and contains no zero bytes.
            let mut last = [0xff; BLOCK];
            last[..rest.len()].copy_from_slice(rest);
            self.add(&last, rest.len(), &mut ascii);
        }
        self.end_block(&mut ascii, 0);
    }

    /// Selects all parts of `data`.
    #[cfg(test)]
    pub(crate) fn select_all(&mut self, data: &[u8]) {
        self.length = data.len();
        self.is_wide = is_wide(data);
        self.blocks = vec![TEXT | DENSE | ASCII; data.len().div_ceil(BLOCK)];
    }

    /// Adds a block, whose first `length` bytes are data.
    fn add(&mut self, block: &[u8; BLOCK], length: usize, sequences: &mut Sequences) {
        self.is_wide |= count(block, 0) >= MIN_ZEROS && is_wide(block);
        let ascii = ascii(block);
        let others = length - ascii.count_ones() as usize;
        let may_be_text = others * TEXT_SHARE <= length;
        let is_dense = may_be_text | (count(block, b'\\') >= MIN_QUOTED);
        self.end_block(sequences, ascii);
        self.blocks.push(only_if(may_be_text, TEXT) | only_if(is_dense, DENSE));
    }

    /// Completes the properties of the last block. `next` contains the ASCII characters of the next block.
    fn end_block(&mut self, sequences: &mut Sequences, next: u64) {
        let found = sequences.next(next);
        if let Some(block) = self.blocks.last_mut() {
            *block |= found;
        }
    }

    /// Returns whether the block `number` may be text, see `dense_regions::texts`.
    pub(crate) fn may_be_text(&self, number: usize) -> bool {
        self.has(number, TEXT)
    }

    /// Returns whether the block `number` may contain encoded data, see `dense_regions::regions`.
    pub(crate) fn may_be_dense(&self, number: usize) -> bool {
        self.has(number, DENSE)
    }

    fn has(&self, number: usize, property: u8) -> bool {
        self.blocks.get(number).is_none_or(|block| block & property != 0)
    }

    /// Returns the ranges that contain all long enough sequences of ASCII characters, in order. The ranges do not
    /// overlap, and each begins at the start of a block.
    pub(crate) fn ascii(&self) -> impl Iterator<Item = Range<usize>> {
        let mut next = 0;
        std::iter::from_fn(move || {
            let is_ascii = |block: &u8| block & ASCII != 0;
            let start = next + self.blocks.get(next..)?.iter().position(is_ascii)?;
            let length = self.blocks[start..].iter().position(|block| !is_ascii(block));
            next = length.map_or(self.blocks.len(), |length| start + length);
            // The last sequence may end in the next block.
            Some(start * BLOCK..self.length.min((next + 1) * BLOCK))
        })
    }
}

/// Finds sequences of ASCII characters, block by block.
struct Sequences {
    least: usize,
    /// The ASCII characters of the last block as a bit set. The lowest bit is the first byte.
    block: u64,
    /// Whether a long sequence continues from the preceding block into the last block.
    goes_on: bool,
}

impl Sequences {
    /// Returns the properties of the last block, and goes on to the block with the ASCII characters `next`.
    fn next(&mut self, next: u64) -> u8 {
        let eight = starts(u128::from(self.block) | u128::from(next) << BLOCK, 8);
        let long = first_block(eight & eight >> (WORD - 8));
        let is_ascii = first_block(eight & eight >> (self.least - 8)) != 0;
        let is_dense = self.goes_on | (long != 0);
        // A sequence that begins at one of these positions ends in the next block.
        self.goes_on = long >> (BLOCK - WORD + 1) != 0;
        self.block = next;
        only_if(is_ascii, ASCII) | only_if(is_dense, DENSE)
    }
}

/// Returns the positions at which at least `least` bits of `bits` are set, as a bit set.
pub(crate) fn starts(bits: u128, least: usize) -> u128 {
    let (mut starts, mut length) = (bits, 1);
    while length < least {
        let step = length.min(least - length);
        starts &= starts >> step;
        length += step;
    }
    starts
}

#[expect(clippy::cast_possible_truncation, reason = "the positions in the first block")]
fn first_block(bits: u128) -> u64 {
    bits as u64
}

/// Returns the ASCII characters of `block`, which has at most 64 bytes, as a bit set. The lowest bit is the first byte.
pub(crate) fn ascii_set(block: &[u8]) -> u64 {
    match block.first_chunk() {
        Some(block) => ascii(block),
        None => {
            let mut padded = [0xff; BLOCK];
            padded[..block.len()].copy_from_slice(block);
            ascii(&padded)
        }
    }
}

fn ascii(block: &[u8; BLOCK]) -> u64 {
    bit_set(&block.map(|byte| u8::from(byte < 0x80)))
}

/// Returns `value` if `condition` is true, and 0 if not. This function has no branch.
#[inline(always)]
pub(crate) fn only_if(condition: bool, value: u8) -> u8 {
    u8::from(condition).wrapping_neg() & value
}

/// Returns the lowest bits of `bytes` as a bit set. The lowest bit of the set belongs to the first byte.
#[inline(always)]
pub(crate) fn bit_set(bytes: &[u8; BLOCK]) -> u64 {
    const LOWEST: u64 = 0x0101_0101_0101_0101;
    let (eights, _) = bytes.as_chunks::<8>();
    eights.iter().rev().fold(0, |bits, eight| {
        // The product collects the lowest bits of eight bytes in its highest byte.
        let bit = u64::from_le_bytes(*eight) & LOWEST;
        bits << 8 | bit.wrapping_mul(0x0102_0408_1020_4080) >> 56
    })
}

/// Returns whether an aligned row of sixteen bytes contains at least five zero bytes, as text in UTF-16 and UTF-32 does.
pub(crate) fn is_wide(text: &[u8]) -> bool {
    text.chunks(ROW).any(is_wide_row)
}

fn count(block: &[u8; BLOCK], wanted: u8) -> u8 {
    block.iter().map(|byte| u8::from(*byte == wanted)).sum()
}

/// Returns whether a row of sixteen bytes may be UTF-16 or UTF-32. If a text contains twelve consecutive two-byte
/// characters, at least six of them are in the same row. In image data, one row in a hundred million has five zeros.
fn is_wide_row(row: &[u8]) -> bool {
    row.iter().map(|byte| u8::from(*byte == 0)).sum::<u8>() >= MIN_ZEROS
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns random bytes, text, or text with other characters between its characters.
    fn part() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            prop::collection::vec(any::<u8>(), 0..150),
            prop::collection::vec(0x80_u8.., 0..70),
            "[A-Za-z0-9+/]{0,40}".prop_map(String::into_bytes),
            r"(\\\\[a-z]\PC){0,20}".prop_map(String::into_bytes),
            prop::collection::vec(prop::sample::select(vec![0_u8, 0, 0x41, 0xff]), 0..40),
        ]
    }

    proptest! {
        #[test]
        fn selects_all_sequences_of_ascii_characters(
            parts in prop::collection::vec(part(), 0..8),
            least in 8_usize..40,
        ) {
            let data = parts.concat();
            let mut prefilter = Prefilter::default();
            prefilter.read(b"what is there", 8);
            prefilter.read(&data, least);
            let ranges: Vec<_> = prefilter.ascii().collect();
            prop_assert!(ranges.windows(2).all(|two| two[0].end <= two[1].start + BLOCK));
            let mut at = 0;
            for sequence in data.split(|byte| !byte.is_ascii()) {
                let whole = at..at + sequence.len();
                at = whole.end + 1;
                let is_covered = ranges.iter().any(|range| range.start <= whole.start && whole.end <= range.end);
                prop_assert!(is_covered || whole.len() < least, "{:?} {:?}", whole, ranges);
            }
            prop_assert_eq!(prefilter.is_wide, is_wide(&data));
        }
    }
}
