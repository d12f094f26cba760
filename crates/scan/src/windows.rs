//! Searches a text for pieces of many needles in one pass, at a cost that does not grow with the number of
//! needles.
//!
//! The search reads (probes) a few bytes at every second or fourth position of the text. For each needle, the index
//! contains the pieces at enough adjacent offsets that a probe hits one of these pieces wherever the needle begins in
//! the text. A small bitmap rejects nearly every probe. At the remaining positions, the caller compares the text with
//! the complete needle.
//!
//! The duration of a search reveals whether the text contains a piece. Pieces therefore have seven or eight bytes,
//! which are too many to guess. With pieces of five bytes, an agent could measure the difference between a long text
//! that repeats a correct guess and a text with a wrong guess. The positions of the bits in the bitmap depend on
//! factors that are drawn at random for each index, so that nobody can predict false positives.

use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

use zeroize::Zeroizing;

/// The minimum length of a needle that is found, in bytes. Shorter needles would match by chance.
pub(crate) const SHORTEST: usize = 8;
/// The number of bits in the bitmap for each piece. Each piece sets two bits.
const BITS_PER_PIECE: usize = 32;

/// A piece and its position in a needle: `(piece, needle, offset in the needle)`.
type Entry = (u64, u32, u32);

/// The length of the pieces and the distance between probes. Any `length + step - 1` consecutive bytes of a
/// needle contain a piece that a probe reads.
#[derive(Clone, Copy)]
struct Grid {
    length: usize,
    step: usize,
}

/// The grid for needles with a minimum match length of at least [`Grid::least`] of this grid.
const WIDE: Grid = Grid { length: 8, step: 4 };
/// The grid for needles with a shorter minimum match length.
const NARROW: Grid = Grid { length: 7, step: 2 };

impl Grid {
    fn for_need(need: usize) -> Option<Self> {
        [WIDE, NARROW].into_iter().find(|grid| grid.least() <= need)
    }

    const fn least(self) -> usize {
        self.length + self.step - 1
    }

    /// Converts the piece at the start of `bytes` to a number.
    fn piece(self, bytes: &[u8]) -> Option<u64> {
        let bytes = bytes.get(..self.length)?;
        Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }
}

const _: () = assert!(NARROW.least() == SHORTEST);

/// The search index over all pieces of all needles.
pub(crate) struct Windows(Vec<Table>);

/// The search index over the pieces of one grid.
struct Table {
    grid: Grid,
    bits: Box<[u64]>,
    shift: u32,
    /// Factors for multiplicative hashing, which requires odd numbers.
    factors: [u64; 2],
    /// The entries, sorted by piece.
    entries: Zeroizing<Vec<Entry>>,
}

/// Collects the pieces for a search index.
#[derive(Default)]
pub(crate) struct Builder {
    wide: Zeroizing<Vec<Entry>>,
    narrow: Zeroizing<Vec<Entry>>,
}

impl Builder {
    /// Adds pieces of `needle` to the index, so that a search finds any `need` consecutive bytes of `range`. If a match
    /// needs the complete range, only pieces from the middle of the range are added. Adds nothing if `need` is less
    /// than [`SHORTEST`].
    pub(crate) fn enter(&mut self, number: u32, needle: &[u8], range: Range<usize>, need: usize) {
        let Some(grid) = Grid::for_need(need.min(range.len())) else { return };
        let last = range.end - grid.length;
        let middle = range.start + (range.len() - grid.least()) / 2;
        let offsets = if need >= range.len() { middle..=middle + grid.step - 1 } else { range.start..=last };
        let entries = if grid.length == WIDE.length { &mut self.wide } else { &mut self.narrow };
        for offset in offsets {
            if let (Some(piece), Ok(offset)) = (grid.piece(&needle[offset..]), u32::try_from(offset)) {
                entries.push((piece, number, offset));
            }
        }
    }

    pub(crate) fn build(self) -> Windows {
        let tables = [(WIDE, self.wide), (NARROW, self.narrow)].into_iter();
        let tables = tables.filter(|(_, entries)| !entries.is_empty());
        Windows(tables.map(|(grid, entries)| Table::new(grid, entries)).collect())
    }
}

impl Windows {
    /// Calls `found(position in text, needle, offset in needle)` for each piece that a probe hits.
    pub(crate) fn each(&self, text: &[u8], mut found: impl FnMut(usize, u32, u32)) {
        for table in &self.0 {
            table.each(text, &mut found);
        }
    }
}

impl Table {
    fn new(grid: Grid, mut entries: Zeroizing<Vec<Entry>>) -> Self {
        entries.sort_unstable();
        entries.dedup();
        let words = (entries.len() * BITS_PER_PIECE).next_power_of_two().max(1 << 13) / 64;
        let random = RandomState::new();
        let mut table = Self {
            grid,
            bits: vec![0; words].into_boxed_slice(),
            shift: 64 - (words * 64).trailing_zeros(),
            factors: [0, 1].map(|number| random.hash_one(number) | 1),
            entries,
        };
        for index in 0..table.entries.len() {
            let piece = table.entries[index].0;
            for place in [table.place(piece, 0), table.place(piece, 1)] {
                table.bits[place / 64] |= 1 << (place % 64);
            }
        }
        table
    }

    #[expect(clippy::cast_possible_truncation, reason = "shifted down to the number of bits")]
    #[inline(always)]
    fn place(&self, piece: u64, factor: usize) -> usize {
        (piece.wrapping_mul(self.factors[factor]) >> self.shift) as usize
    }

    #[inline(always)]
    fn may_have(&self, piece: u64) -> bool {
        let has = |place: usize| self.bits[place / 64] >> (place % 64) & 1 == 1;
        has(self.place(piece, 0)) && has(self.place(piece, 1))
    }

    fn each(&self, text: &[u8], found: &mut impl FnMut(usize, u32, u32)) {
        // With a constant distance between probes, a probe takes half the instructions.
        if self.grid.step == WIDE.step {
            self.each_at::<{ WIDE.step }>(text, found);
        } else {
            self.each_at::<{ NARROW.step }>(text, found);
        }
    }

    fn each_at<const STEP: usize>(&self, text: &[u8], found: &mut impl FnMut(usize, u32, u32)) {
        let mask = u64::MAX >> (64 - 8 * self.grid.length);
        let mut rest = text;
        while let Some(bytes) = rest.first_chunk::<8>() {
            let piece = u64::from_le_bytes(*bytes) & mask;
            if self.may_have(piece) {
                self.report_matches(piece, text.len() - rest.len(), found);
            }
            rest = &rest[STEP..];
        }
        // Fewer than eight bytes remain at the end of the text.
        if let Some(piece) = self.grid.piece(rest)
            && self.may_have(piece)
        {
            self.report_matches(piece, text.len() - rest.len(), found);
        }
    }

    #[cold]
    fn report_matches(&self, piece: u64, at: usize, found: &mut impl FnMut(usize, u32, u32)) {
        let start = self.entries.partition_point(|entry| entry.0 < piece);
        for (_, number, offset) in self.entries[start..].iter().take_while(|entry| entry.0 == piece) {
            found(at, *number, *offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn windows_of(needle: &[u8], need: usize) -> Windows {
        let mut builder = Builder::default();
        builder.enter(0, needle, 0..needle.len(), need);
        builder.build()
    }

    /// Returns the length of the longest match between `text` and `needle` over all hits.
    fn longest(windows: &Windows, needle: &[u8], text: &[u8]) -> usize {
        let mut longest = 0;
        windows.each(text, |at, _, offset| {
            let offset = offset as usize;
            let pairs = text[at..].iter().zip(&needle[offset..]).take_while(|(one, other)| one == other);
            let before = text[..at].iter().rev().zip(needle[..offset].iter().rev());
            longest = longest.max(pairs.count() + before.take_while(|(one, other)| one == other).count());
        });
        longest
    }

    proptest! {
        #[test]
        fn finds_a_piece_of_the_minimum_length_at_any_position(
            needle in prop::collection::vec(any::<u8>(), 8..40),
            need in 8_usize..14,
            at in any::<prop::sample::Index>(),
            (before, after) in (prop::collection::vec(any::<u8>(), 0..50), prop::collection::vec(any::<u8>(), 0..50)),
        ) {
            let need = need.min(needle.len());
            let start = at.index(needle.len() - need + 1);
            let text = [&before[..], &needle[start..start + need], &after].concat();
            prop_assert!(longest(&windows_of(&needle, need), &needle, &text) >= need);
        }

        #[test]
        fn six_bytes_do_not_match(
            needle in prop::collection::hash_set(any::<u8>(), 30..40),
            (start, need) in (0_usize..24, 8_usize..14),
            filler in any::<u8>(),
        ) {
            let needle: Vec<u8> = needle.into_iter().collect();
            // The bytes before and after the match must differ from the corresponding bytes of the needle.
            let around = |place: Option<usize>| {
                let there = place.and_then(|place| needle.get(place)).copied();
                if there == Some(filler) { filler.wrapping_add(1) } else { filler }
            };
            let (before, after) = (around(start.checked_sub(1)), around(Some(start + 6)));
            let text = [&[before; 9][..], &needle[start..start + 6], &[after; 9]].concat();
            prop_assert_eq!(longest(&windows_of(&needle, need), &needle, &text), 0);
        }
    }

    #[test]
    fn short_things_have_no_piece() {
        assert!(windows_of(b"seven..", 7).0.is_empty());
        assert!(!windows_of(b"eight...", 12).0.is_empty());
    }
}
