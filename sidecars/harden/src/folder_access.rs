//! Keeps folders accessible to a process that switches to a user without access to the folders' parents.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

use crate::{HardenError, step};

/// The open descriptor of a folder.
///
/// An unprivileged user cannot pass through folders that only root may enter, even to a subfolder of its own.
/// A descriptor that root opened keeps the subfolder accessible.
#[derive(Debug)]
pub struct Held(OwnedFd);

impl Held {
    /// Opens a folder with `O_PATH`, which only allows accessing its entries.
    ///
    /// # Errors
    /// Fails with [`HardenError::Step`] if the folder does not exist, is a symlink, or is not accessible.
    pub fn open(folder: &Path) -> Result<Self, HardenError> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        open(folder, flags, Mode::empty()).map(Self).map_err(step("open a folder"))
    }

    /// Returns a path to the folder. The path is valid in this process until this value is dropped.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

/// Opens `folder`, and replaces the path by one that goes through the open descriptor.
///
/// # Errors
/// Fails in the same cases as [`Held::open`].
pub fn hold(folder: &mut PathBuf) -> Result<Held, HardenError> {
    let opened = Held::open(folder)?;
    *folder = opened.path();
    Ok(opened)
}
