//! Implements a deterministic random number generator.

/// The ASCII letters and digits.
pub(crate) const WORD: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
/// The alphabet of URL-safe base64.
pub(crate) const ADDRESS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
/// The alphabet of base64.
pub(crate) const BASE64: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
/// The alphabet of base32.
pub(crate) const BASE32: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
pub(crate) const HEX: &[u8] = b"0123456789abcdef";
pub(crate) const DIGITS: &[u8] = b"0123456789";

/// A xorshift generator with a fixed seed.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new() -> Self {
        Self(88_172_645_463_325_252)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a random number less than `end`. `end` must not be zero.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        let number = (self.next() >> 32) as usize;
        number % end
    }

    pub(crate) fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    /// Returns a text of `count` random characters from `of`.
    pub(crate) fn text(&mut self, of: &[u8], count: usize) -> String {
        (0..count).map(|_| char::from(*self.pick(of))).collect()
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).take(count).collect()
    }

    pub(crate) fn uuid(&mut self) -> String {
        [8, 4, 4, 4, 12].map(|count| self.text(HEX, count)).join("-")
    }
}
