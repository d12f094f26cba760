//! Keeps directories open.
//!
//! On macOS, no path goes through an open descriptor of a directory to the entries of the directory. Only a process
//! that switches users needs such a path, and on macOS no process switches users ([`crate::identity`]).

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

use crate::{HardenError, step};

/// The open descriptor of a directory, with the directory's path.
#[derive(Debug)]
pub struct Held {
    _directory: OwnedFd,
    path: PathBuf,
}

impl Held {
    /// Opens a directory.
    ///
    /// # Errors
    /// Fails with [`HardenError::Step`] if the directory does not exist, is a symlink, or is not accessible.
    pub fn open(directory: &Path) -> Result<Self, HardenError> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let opened = open(directory, flags, Mode::empty()).map_err(step("open a directory"))?;
        Ok(Self { _directory: opened, path: directory.to_owned() })
    }

    /// Returns the directory's path.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.path.clone()
    }
}

/// Opens `directory`. The path stays unchanged.
///
/// # Errors
/// Fails in the same cases as [`Held::open`].
pub fn hold(directory: &mut PathBuf) -> Result<Held, HardenError> {
    Held::open(directory)
}
