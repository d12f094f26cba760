//! Why a body cannot be judged: then it does not pass.

/// What keeps the proxy from reading a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unreadable {
    /// `Content-Encoding` names what the proxy cannot undo, or too many of them.
    #[error("it is in a content encoding that the proxy does not read (gzip, deflate, br and zstd are)")]
    Coding,
    /// It is not what its headers say.
    #[error("it is not in the content encoding that its header names, or it is not whole")]
    Broken,
    /// It grows beyond all reason.
    #[error("it grows too much when it is decompressed")]
    Bomb,
    /// More compressed files are in it, or in one another, than anybody looks into.
    #[error("it holds more compressed files, or more of them in one another, than are looked into")]
    Nested,
}
