//! Keeps folders open.
//!
//! macOS has no path that leads through an open descriptor to the entries of its folder. Only a process that switches
//! users needs one, and on macOS none does ([`crate::identity`]).

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

use crate::{HardenError, step};

/// The open descriptor of a folder, with the folder's path.
#[derive(Debug)]
pub struct Held {
    _folder: OwnedFd,
    path: PathBuf,
}

impl Held {
    /// Opens a folder.
    ///
    /// # Errors
    /// Fails with [`HardenError::Step`] if the folder does not exist, is a symlink, or is not accessible.
    pub fn open(folder: &Path) -> Result<Self, HardenError> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let opened = open(folder, flags, Mode::empty()).map_err(step("open a folder"))?;
        Ok(Self { _folder: opened, path: folder.to_owned() })
    }

    /// Returns the folder's path.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.path.clone()
    }
}

/// Opens `folder`, and keeps its path.
///
/// # Errors
/// Fails in the same cases as [`Held::open`].
pub fn hold(folder: &mut PathBuf) -> Result<Held, HardenError> {
    Held::open(folder)
}
