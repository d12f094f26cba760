//! The directory that `--cwd=live` mounts as a workspace.

use std::path::PathBuf;

use bottle_policy::names::REPOSITORY;
use serde::{Deserialize, Serialize};

/// A directory of the user that a bottle sees as its workspace and may change.
///
/// `bottle` shows the directory to the user before a launch. When the backend mounts the directory, it compares
/// [`LiveDirectory::device`] and [`LiveDirectory::inode`]. A link that appears in the meantime therefore cannot
/// redirect the mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveDirectory {
    /// The canonical path.
    pub path: PathBuf,
    /// The number of the device that contains the directory.
    pub device: u64,
    /// The directory's inode on this device.
    pub inode: u64,
    /// The owner of the directory. New files in the directory belong to this user.
    pub uid: u32,
    /// The group of the directory.
    pub gid: u32,
    /// The inode of the subdirectory `.git`, over which the bottle's own repository is mounted. `None` if the directory
    /// contains no `.git`.
    pub repository: Option<u64>,
}

impl LiveDirectory {
    /// Returns the directories of the bottle's repository in which changes are the agent's work: commits and staged
    /// files. All other files of the workspace belong to the user, so they cannot be lost with the bottle.
    #[must_use]
    pub fn work_directories() -> Vec<String> {
        ["objects", "refs"].map(|directory| format!("{REPOSITORY}/{directory}")).into()
    }
}
