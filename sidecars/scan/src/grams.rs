//! Short pieces of many texts, looked for in one pass whose cost does not grow with their number.
//!
//! The text is probed at every fourth place, five bytes at a time. Each thing to be found is entered with the
//! pieces at four neighbouring places of it, so that one of them falls on a probe wherever it stands. A small
//! table of bits says no to nearly every probe; what remains is looked up and compared whole by the caller.

/// Bytes of a piece.
const PIECE: usize = 5;
/// Distance of the probes.
const STEP: usize = 4;
/// What must be equal for a thing to be found for certain: a piece at each of the distances.
pub(crate) const SHORTEST: usize = PIECE + STEP - 1;
const MASK: u64 = (1 << (8 * PIECE)) - 1;

/// A piece, and what it belongs to: `(thing, offset in it)`.
type Entry = (u64, u32, u32);

/// The pieces; see the module.
pub(crate) struct Grams {
    bits: Box<[u64]>,
    shift: u32,
    /// Sorted by piece.
    entries: Box<[Entry]>,
}

impl Drop for Grams {
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.entries);
    }
}

/// Collects pieces.
#[derive(Default)]
pub(crate) struct Builder(zeroize::Zeroizing<Vec<Entry>>);

impl Builder {
    /// Enters the eight bytes of `thing` from `at` on: where all of it must be there, they are enough.
    pub(crate) fn enter_at(&mut self, number: u32, thing: &[u8], at: usize) {
        for offset in at..at + STEP {
            self.enter(number, thing, offset);
        }
    }

    /// Enters every piece of a range of `thing`, so that any [`SHORTEST`] bytes of it are found.
    pub(crate) fn enter_all(&mut self, number: u32, thing: &[u8], range: std::ops::Range<usize>) {
        for offset in range.start..(range.end + 1).saturating_sub(PIECE) {
            self.enter(number, thing, offset);
        }
    }

    fn enter(&mut self, number: u32, thing: &[u8], offset: usize) {
        if let (Some(piece), Ok(place)) = (thing.get(offset..offset + PIECE), u32::try_from(offset)) {
            self.0.push((key(piece), number, place));
        }
    }

    pub(crate) fn build(mut self) -> Grams {
        self.0.sort_unstable();
        self.0.dedup();
        let words = (self.0.len() * 32).next_power_of_two().max(1 << 13) / 64;
        let mut grams = Grams {
            bits: vec![0; words].into_boxed_slice(),
            shift: 64 - (words * 64).trailing_zeros(),
            entries: self.0.as_slice().into(),
        };
        for index in 0..grams.entries.len() {
            let key = grams.entries[index].0;
            let (first, second) = (grams.first(key), grams.second(key));
            grams.bits[first / 64] |= 1 << (first % 64);
            grams.bits[second / 64] |= 1 << (second % 64);
        }
        grams
    }
}

/// A piece as a number.
fn key(piece: &[u8]) -> u64 {
    piece.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

impl Grams {
    #[expect(clippy::cast_possible_truncation, reason = "shifted down to the number of bits")]
    fn first(&self, key: u64) -> usize {
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    #[expect(clippy::cast_possible_truncation, reason = "shifted down to the number of bits")]
    fn second(&self, key: u64) -> usize {
        (key.wrapping_mul(0xc2b2_ae3d_27d4_eb4f) >> self.shift) as usize
    }

    fn has(&self, place: usize) -> bool {
        self.bits[place / 64] >> (place % 64) & 1 == 1
    }

    /// Calls `found(place in text, thing, offset in it)` for each piece that stands at a probe.
    pub(crate) fn each(&self, text: &[u8], mut found: impl FnMut(usize, u32, u32)) {
        if self.entries.is_empty() {
            return;
        }
        for (number, window) in text.windows(8).step_by(STEP).enumerate() {
            let bytes: [u8; 8] = window.try_into().unwrap_or_default();
            self.probe(u64::from_le_bytes(bytes) & MASK, number * STEP, &mut found);
        }
        // The last probes, where no eight bytes are left.
        let rest = text.len().saturating_sub(7).next_multiple_of(STEP);
        for at in (rest..text.len()).step_by(STEP) {
            if let Some(piece) = text.get(at..at + PIECE) {
                self.probe(key(piece), at, &mut found);
            }
        }
    }

    #[inline(always)]
    fn probe(&self, key: u64, at: usize, found: &mut impl FnMut(usize, u32, u32)) {
        if self.has(self.first(key)) && self.has(self.second(key)) {
            self.look(key, at, found);
        }
    }

    #[cold]
    fn look(&self, key: u64, at: usize, found: &mut impl FnMut(usize, u32, u32)) {
        let start = self.entries.partition_point(|entry| entry.0 < key);
        for entry in self.entries[start..].iter().take_while(|entry| entry.0 == key) {
            found(at, entry.1, entry.2);
        }
    }
}
