//! Errors of bodies that the proxy cannot scan and therefore does not forward.

use super::decoded_memory::MemoryFull;

/// Why the proxy cannot read a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unreadable {
    /// `Content-Encoding` lists an unsupported coding, or too many codings.
    #[error("its content encoding is not supported (gzip, deflate, br and zstd are)")]
    Coding,
    /// The body is not in the coding that its headers declare, or it is incomplete.
    #[error("it is not in its declared content encoding, or it is incomplete")]
    Broken,
    /// The decoded text exceeds the permitted ratio to its input.
    #[error("it grows too much when it is decompressed")]
    Bomb,
    /// The body contains too many compressed files, or nests them too deeply.
    #[error("it contains too many compressed files, or nests them too deeply")]
    Nested,
    /// All bodies that are being decompressed together use too much memory.
    #[error("too many bodies are being decompressed")]
    MemoryFull,
}

impl From<MemoryFull> for Unreadable {
    fn from(MemoryFull: MemoryFull) -> Self {
        Self::MemoryFull
    }
}
