//! Why references are not read or written.

use std::io;
use std::path::PathBuf;

use crate::directory::ReadError;

/// Why a reference was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum RefError {
    /// A file could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The content of a file is malformed.
    #[error("{} is malformed", .0.display())]
    Malformed(PathBuf),
    /// The number of references, or the length of a chain of references, exceeds the limit.
    #[error("{} has too many references", .0.display())]
    TooMany(PathBuf),
    /// The branch is checked out in a working tree.
    #[error("it is checked out in {}", .0.display())]
    CheckedOut(PathBuf),
    /// The reference points to another reference.
    #[error("it points to another reference")]
    Symbolic,
    /// The name of another reference is a directory in the path of this reference, or the other way round.
    #[error("there is a reference {0}")]
    Conflict(String),
    /// Another process changed the reference.
    #[error("another process changed it")]
    Changed,
    /// Another process has locked the reference.
    #[error("another git has locked it: {} exists", .0.display())]
    Locked(PathBuf),
    /// A file could not be written.
    #[error("cannot write {}: {error}", path.display())]
    Write {
        /// The path of the file.
        path: PathBuf,
        /// The I/O error.
        error: io::Error,
    },
}
