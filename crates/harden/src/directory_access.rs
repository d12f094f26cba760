//! Keeps directories accessible to a process that switches to a user without access to the directories' parents.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

use crate::{HardenError, step};

/// An open descriptor of a directory.
///
/// An unprivileged user cannot pass through directories that only root may enter, even to reach a subdirectory that
/// this user owns. If root has opened a descriptor of the subdirectory, the subdirectory stays accessible through the
/// descriptor.
#[derive(Debug)]
pub struct Held(OwnedFd);

impl Held {
    /// Opens a directory with `O_PATH`. The descriptor only gives access to the directory's entries.
    ///
    /// # Errors
    /// Fails with [`HardenError::Step`] if the directory does not exist, is a symlink, or is not accessible.
    pub fn open(directory: &Path) -> Result<Self, HardenError> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        open(directory, flags, Mode::empty()).map(Self).map_err(step("open a directory"))
    }

    /// Returns a path to the directory. The path is valid in this process until `self` is dropped.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

/// Opens `directory`, and replaces this path by the path of the open descriptor in `/proc/self/fd`.
///
/// # Errors
/// Fails in the same cases as [`Held::open`].
pub fn hold(directory: &mut PathBuf) -> Result<Held, HardenError> {
    let opened = Held::open(directory)?;
    *directory = opened.path();
    Ok(opened)
}
