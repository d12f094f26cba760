//! The repositories of the user that were copied into a bottle, as they were at the bottle's start.

use std::path::{Path, PathBuf};

use bottle_plan::Identity;
use bottle_repository::{FileId, ObjectId, Repository, locate};
use serde::{Deserialize, Serialize};

/// A repository of the user. A directory in this repository was copied into a bottle, or mounted in it.
///
/// An agent or a project can put another repository at the same path later. If the repository was replaced, the user
/// decides what a command does with the new repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiedRepository {
    /// The name of the copied directory in the workspace; empty if the copied directory is the workspace itself.
    #[serde(rename = "folder")]
    pub name: String,
    /// The top of the working tree.
    pub top: PathBuf,
    /// The device of the git directory that all worktrees of the repository share.
    pub device: u64,
    /// The inode of this git directory.
    pub inode: u64,
    /// The user id of the repository's owner.
    pub owner: u32,
    /// The commit of `HEAD`. `None` if `HEAD` had no commit.
    #[serde(default)]
    pub head: Option<String>,
    /// The real paths of the directories from which the repository borrowed objects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lenders: Vec<PathBuf>,
}

impl CopiedRepository {
    /// Finds the repositories of the directories that a bottle copies. Skips directories without a usable repository.
    #[must_use]
    pub fn find_all(identity: &Identity) -> Vec<Self> {
        if identity.directories.is_empty() {
            return Self::find("", &identity.cwd).into_iter().collect();
        }
        identity
            .directories
            .iter()
            .filter_map(|directory| Self::find(&directory.name, &directory.path))
            .collect()
    }

    fn find(name: &str, directory: &Path) -> Option<Self> {
        let repository = Repository::open(locate::locate(directory).ok()??).ok()?;
        let located = repository.located();
        let FileId { device, inode } = located.common.id().ok()?;
        Some(Self {
            name: name.to_owned(),
            top: located.top.path().to_owned(),
            device,
            inode,
            owner: located.owner,
            head: repository.head().ok()?.map(|head| head.to_string()),
            lenders: repository.lenders().ok()?,
        })
    }

    /// Whether `repository` is this repository.
    #[must_use]
    pub fn is(&self, repository: &Repository) -> bool {
        let located = repository.located();
        let id = FileId { device: self.device, inode: self.inode };
        located.top.path() == self.top
            && located.owner == self.owner
            && located.common.id().is_ok_and(|found| found == id)
    }

    /// Returns the commit of `HEAD` at the bottle's start.
    #[must_use]
    pub fn head(&self) -> Option<ObjectId> {
        ObjectId::parse(self.head.as_deref()?)
    }
}
