//! Why a body cannot be judged: then it does not pass.

/// What keeps the door from reading a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unreadable {
    /// `Content-Encoding` names what the door cannot undo, or too many of them.
    #[error("it is in a content encoding that the door does not read (gzip, deflate, br and zstd are)")]
    Coding,
    /// It is not what its headers say.
    #[error("it is not in the content encoding that its header names, or it is not whole")]
    Broken,
    /// It grows beyond all reason.
    #[error("it grows too much when it is decompressed")]
    Bomb,
}
