//! Folders that stay in reach of a process that becomes somebody to whom the way there is closed.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

use crate::{HardenError, step};

/// A folder that is held open.
///
/// Root's own folders let nobody else through, and a folder further down may still be another user's. What
/// was opened as root stays a way to it.
#[derive(Debug)]
pub struct Held(OwnedFd);

impl Held {
    /// Opens the folder, for getting to what is in it and for nothing else.
    ///
    /// # Errors
    /// [`HardenError::Step`] when there is no such folder, or no way to it.
    pub fn open(folder: &Path) -> Result<Self, HardenError> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        open(folder, flags, Mode::empty()).map(Self).map_err(step("hold a folder open"))
    }

    /// A path to it for this process alone, as long as this value lives.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

/// Holds the folder open and makes its path one that goes through that.
///
/// # Errors
/// As [`Held::open`].
pub fn hold(folder: &mut PathBuf) -> Result<Held, HardenError> {
    let held = Held::open(folder)?;
    *folder = held.path();
    Ok(held)
}
