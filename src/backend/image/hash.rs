//! Hashes content into names.

use sha2::{Digest, Sha256};

/// Hex digits of a hash in a name: 64 bits are enough for the images of one machine.
pub(crate) const DIGITS: usize = 16;

/// A hash over length-prefixed parts.
pub(crate) struct Hash(Sha256);

impl Hash {
    /// A hash for one purpose, which is its first part.
    pub(crate) fn new(purpose: &str) -> Self {
        let mut hash = Self(Sha256::new());
        hash.add(purpose.as_bytes());
        hash
    }

    /// Adds a part.
    pub(crate) fn add(&mut self, part: &[u8]) -> &mut Self {
        self.0.update((part.len() as u64).to_le_bytes());
        self.0.update(part);
        self
    }

    /// The hash, truncated to the length of a tag.
    pub(crate) fn finish(self) -> String {
        let mut hex = hex::encode(self.0.finalize());
        hex.truncate(DIGITS);
        hex
    }
}
