//! Errors of bodies that cannot be scanned and so are not forwarded.

/// Why the proxy cannot read a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unreadable {
    /// `Content-Encoding` lists an unsupported coding, or too many.
    #[error("its content encoding is not supported (gzip, deflate, br and zstd are)")]
    Coding,
    /// The body is not in the coding that its headers declare.
    #[error("it is not in its declared content encoding, or it is incomplete")]
    Broken,
    /// The text grows beyond the permitted ratio.
    #[error("it grows too much when it is decompressed")]
    Bomb,
    /// The body contains too many compressed files, or nests them too deeply.
    #[error("it contains too many compressed files, or nests them too deeply")]
    Nested,
}
