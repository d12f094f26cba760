//! The directories that several `--cwd` options copy into a workspace.

use std::io;
use std::path::{Path, PathBuf};

use bottle_repository::{Directory, FileId, Lender, Located};
use serde::{Deserialize, Serialize};

/// A directory of the user that is copied into the workspace together with other directories.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiedDirectory {
    /// The name of the directory in the workspace.
    pub name: String,
    /// The directory, or the repository that contains it if the repository is copied instead.
    pub path: PathBuf,
    /// Whether files that `.gitignore` excludes are copied too.
    #[serde(default)]
    pub all: bool,
}

/// A directory that the user confirmed. Either a git directory outside of the copied directory, or a directory with
/// objects that the repository borrows (for example git's `alternates`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitDirectory {
    /// The path, for messages.
    pub path: PathBuf,
    /// The device that contains the directory.
    pub device: u64,
    /// The directory's inode on this device.
    pub inode: u64,
}

impl GitDirectory {
    /// Describes the git directory of a located repository. Uses the real path if the real path leads to the same
    /// directory.
    ///
    /// # Errors
    /// The system's error.
    pub fn of(located: &Located) -> io::Result<Self> {
        let FileId { device, inode } = located.git.id()?;
        let found = Self { path: located.git.path().to_owned(), device, inode };
        let real = found.path.canonicalize().ok().filter(|real| found.is_at(real));
        Ok(Self { path: real.unwrap_or_else(|| found.path.clone()), ..found })
    }

    /// Describes a directory with objects that a repository borrows.
    #[must_use]
    pub fn of_lender(lender: &Lender) -> Self {
        let FileId { device, inode } = lender.id;
        Self { path: lender.objects.path().to_owned(), device, inode }
    }

    /// Whether this path currently refers to the directory.
    #[must_use]
    pub fn is_at(&self, path: &Path) -> bool {
        Directory::open(path).and_then(|found| found.id()).is_ok_and(|found| found == self.id())
    }

    /// The identity of the directory.
    #[must_use]
    pub fn id(&self) -> FileId {
        FileId { device: self.device, inode: self.inode }
    }
}
