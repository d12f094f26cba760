//! The directory that `--cwd=live` mounts as a workspace.

use std::path::PathBuf;

use bottle_policy::names::REPOSITORY;
use serde::{Deserialize, Serialize};

/// A directory of the user that a bottle sees as its workspace and may change.
///
/// The user is shown the directory before a launch. The backend compares [`LiveDirectory::device`] and
/// [`LiveDirectory::inode`] when it mounts the directory, so that no link that appears meanwhile can redirect the
/// mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveDirectory {
    /// The canonical path.
    pub path: PathBuf,
    /// The number of the device that contains the directory.
    pub device: u64,
    /// The directory's inode on this device.
    pub inode: u64,
    /// The directory's owner, to whom new files in it belong.
    pub uid: u32,
    /// The directory's group.
    pub gid: u32,
    /// The inode of the subdirectory `.git`, over which the bottle's own repository is mounted. `None` if there is no
    /// `.git`.
    pub repository: Option<u64>,
}

impl LiveDirectory {
    /// The directories of the bottle's repository whose changes count as work: commits and staged files. All other
    /// files of the workspace are the user's, so they cannot be lost with the bottle.
    #[must_use]
    pub fn work_directories() -> Vec<String> {
        ["objects", "refs"].map(|directory| format!("{REPOSITORY}/{directory}")).into()
    }
}
