//! Limits the memory of all decompressed text together.
//!
//! A few compressed bytes can decompress to many megabytes, which stay in memory as a decoder's window or as an
//! incomplete message. An agent can open many streams at once, so a limit for each stream does not limit the total.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum total memory of decoders' windows and of WebSocket messages, in bytes. 32 zstd decoders use this much if
/// each has decoded 8 MiB of text. A decoder's window is at most as long as the text that it has decoded, and few
/// bodies are as long as a megabyte.
pub(crate) const MAX_DECODED: u64 = 256 << 20;

/// The memory that all parts use together. Clones share the same total.
#[derive(Debug, Clone, Default)]
pub(crate) struct DecodedMemory(Arc<AtomicU64>);

/// One part of the memory. Dropping the value releases the part.
#[derive(Debug)]
pub(crate) struct DecodedPart {
    all: DecodedMemory,
    used: u64,
}

/// The error that all parts together would use more than [`MAX_DECODED`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryFull;

impl DecodedMemory {
    /// Returns an empty part.
    pub(crate) fn part(&self) -> DecodedPart {
        DecodedPart { all: self.clone(), used: 0 }
    }
}

impl DecodedPart {
    /// Extends the part to `bytes` bytes. If the part is already longer, the part is unchanged.
    ///
    /// # Errors
    /// [`MemoryFull`]. The part is then unchanged.
    pub(crate) fn grow(&mut self, bytes: u64) -> Result<(), MemoryFull> {
        let more = bytes.saturating_sub(self.used);
        if more == 0 {
            return Ok(());
        }
        let all = &self.all.0;
        if all.fetch_add(more, Ordering::Relaxed).saturating_add(more) > MAX_DECODED {
            all.fetch_sub(more, Ordering::Relaxed);
            return Err(MemoryFull);
        }
        self.used = bytes;
        Ok(())
    }
}

impl Drop for DecodedPart {
    fn drop(&mut self) {
        self.all.0.fetch_sub(self.used, Ordering::Relaxed);
    }
}
