//! Names that follow from content.

use sha2::{Digest, Sha256};

/// Digits of a hash in a name: 64 bits tell the images of one machine apart.
pub(crate) const DIGITS: usize = 16;

/// A hash over parts, none of which can pass for another.
pub(crate) struct Hash(Sha256);

impl Hash {
    /// For one purpose.
    pub(crate) fn new(purpose: &str) -> Self {
        let mut hash = Self(Sha256::new());
        hash.add(purpose.as_bytes());
        hash
    }

    /// One part more.
    pub(crate) fn add(&mut self, part: &[u8]) -> &mut Self {
        self.0.update((part.len() as u64).to_le_bytes());
        self.0.update(part);
        self
    }

    /// In the length of a tag.
    pub(crate) fn finish(self) -> String {
        let mut hex = hex::encode(self.0.finalize());
        hex.truncate(DIGITS);
        hex
    }
}
