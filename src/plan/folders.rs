//! The directories that several `--cwd` copy into a workspace.

use std::path::PathBuf;

use bottle_repository::FileId;
use serde::{Deserialize, Serialize};

/// A directory of the user that is copied into a folder of the workspace, beside others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiedFolder {
    /// The name of the folder in the workspace.
    pub name: String,
    /// The directory, or the repository that contains it if that is copied instead.
    pub path: PathBuf,
    /// Whether files that `.gitignore` excludes are copied too.
    #[serde(default)]
    pub all: bool,
}

/// A git directory outside of the directory that is copied, which the user confirmed.
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
    /// The identity of the directory.
    #[must_use]
    pub fn id(&self) -> FileId {
        FileId { device: self.device, inode: self.inode }
    }
}
