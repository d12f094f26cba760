//! Handles file trees on Linux: the layers of bottles and of images. An agent or an archive determines their content.
//!
//! ```text
//!   copy        copies trees of files, also while they change, and a directory of the user into a workspace
//!   git_objects shares the objects of a git repository with a bottle
//!   layer_tar   writes a tree as a layer of an image · image_tree: unpacks the layers of an image
//!   portable    the files of exported and imported bottles
//!   nofollow    opens files whatever their mode is, never through a link
//!   remove      removes a tree of any depth
//! ```

pub mod copy;
pub mod git_objects;
pub mod image_tree;
pub mod layer_tar;
mod nofollow;
pub mod portable;
mod remove;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

pub use self::copy::tree_into;
pub use self::remove::remove_tree;
use crate::BackendError;

/// The name of the agent's working directory in the directory of a bottle's layers.
pub const WORKSPACE: &str = "workspace";

/// The name of the directory with the shared git objects in the directory of a bottle's layers.
pub const OBJECTS: &str = "git-objects";

/// Opens a directory without following a link.
///
/// # Errors
/// When `path` is not a directory, or the directory cannot be read.
pub fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

fn open_directory_at(at: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(at, name, flags, Mode::empty())?)
}

/// Creates the error for files that cannot be written or read. If the disk is full, the hint says what the user can do.
pub fn explain(what: String, error: io::Error) -> BackendError {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    if matches!(error.kind(), StorageFull | QuotaExceeded) {
        return BackendError::failed(format!("{what}: {}", bottle_archive::full(&error)))
            .with_hint("free some space; `bottle snapshots` shows what could go");
    }
    BackendError::failed(what).because(error)
}
