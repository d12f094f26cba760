//! Keeps folders accessible to a process that switches to a user without access to their parents.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

use crate::{HardenError, step};

/// An open folder descriptor.
///
/// Only root can traverse root's folders, even if a folder further down belongs to another user. A
/// descriptor that root opened keeps the folder accessible.
#[derive(Debug)]
pub struct Held(OwnedFd);

impl Held {
    /// Opens the folder with `O_PATH`, only to access its entries.
    ///
    /// # Errors
    /// [`HardenError::Step`] if the folder does not exist or is inaccessible.
    pub fn open(folder: &Path) -> Result<Self, HardenError> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        open(folder, flags, Mode::empty()).map(Self).map_err(step("open a folder"))
    }

    /// A path to the folder, valid in this process while this value lives.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

/// Opens the folder and replaces its path by one through the descriptor.
///
/// # Errors
/// As [`Held::open`].
pub fn hold(folder: &mut PathBuf) -> Result<Held, HardenError> {
    let opened = Held::open(folder)?;
    *folder = opened.path();
    Ok(opened)
}
