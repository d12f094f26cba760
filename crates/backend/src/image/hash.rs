//! Hashes content into names of images and volumes.

use sha2::{Digest, Sha256};

/// The number of hexadecimal digits of a hash in a name. 16 digits (64 bits) are sufficient for the images of one
/// machine.
pub const DIGITS: usize = 16;

/// A SHA-256 hash of several parts. The length of each part is hashed too. Otherwise moving bytes from one part to the
/// next would not change the hash.
pub struct Hash(Sha256);

impl Hash {
    /// Starts a hash. `purpose` is the first part of the hash, so that hashes for different purposes differ even for
    /// equal content.
    pub fn new(purpose: &str) -> Self {
        let mut hash = Self(Sha256::new());
        hash.add(purpose.as_bytes());
        hash
    }

    /// Adds a part to the hash.
    pub fn add(&mut self, part: &[u8]) -> &mut Self {
        self.0.update((part.len() as u64).to_le_bytes());
        self.0.update(part);
        self
    }

    /// Returns the hash, truncated to [`DIGITS`] hexadecimal digits.
    pub fn finish(self) -> String {
        let mut hex = hex::encode(self.0.finalize());
        hex.truncate(DIGITS);
        hex
    }
}
