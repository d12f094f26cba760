//! Identifies a directory of the user that is a bottle's workspace (`--cwd=live`).

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::plan::LiveFolder;

/// The name of a repository in its working tree.
pub(super) const GIT_DIR: &str = ".git";

/// Why a directory is not the one with which a bottle started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LiveFolderChanged {
    /// There is no directory any more, or another one through a link.
    #[error("it no longer exists")]
    Gone,
    /// It belongs to another user.
    #[error("it belongs to another user than at the start")]
    Owner,
    /// It has no folder `.git` any more.
    #[error("its .git is gone, over which the bottle's own repository is mounted")]
    RepositoryGone,
    /// It has a `.git`, which it had not.
    #[error("it has a .git now, which no repository of the bottle covers")]
    RepositoryNew,
}

/// Identifies a directory, whose path may contain links.
///
/// # Errors
/// When it cannot be read, is no directory, or has a `.git` that is no folder.
pub fn identify(folder: &Path) -> io::Result<LiveFolder> {
    let path = folder.canonicalize()?;
    let metadata = path.metadata()?;
    if !metadata.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    let repository = match path.join(GIT_DIR).symlink_metadata() {
        Ok(found) if found.is_dir() => Some(found.ino()),
        Ok(_) => return Err(io::Error::other("its .git is no folder, so its repository is elsewhere")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let (device, inode) = (metadata.dev(), metadata.ino());
    Ok(LiveFolder { path, device, inode, uid: metadata.uid(), gid: metadata.gid(), repository })
}

/// Identifies the directory of a bottle that ended.
///
/// # Errors
/// When the bottle must not see the directory as it is now.
pub fn identify_again(before: &LiveFolder) -> Result<LiveFolder, LiveFolderChanged> {
    let has_git = before.path.join(GIT_DIR).symlink_metadata().is_ok();
    match identify(&before.path) {
        Ok(now) if now.path != before.path => Err(LiveFolderChanged::Gone),
        Ok(now) if now.uid != before.uid => Err(LiveFolderChanged::Owner),
        Ok(now) => match (before.repository, now.repository) {
            (Some(_), None) => Err(LiveFolderChanged::RepositoryGone),
            (None, Some(_)) => Err(LiveFolderChanged::RepositoryNew),
            _ => Ok(now),
        },
        Err(_) if has_git && before.repository.is_some() => Err(LiveFolderChanged::RepositoryGone),
        Err(_) if has_git => Err(LiveFolderChanged::RepositoryNew),
        Err(_) => Err(LiveFolderChanged::Gone),
    }
}

/// Whether the folder `.git` is another one than when the directory was identified.
#[must_use]
pub(super) fn is_repository_moved(live: &LiveFolder) -> bool {
    let now = live.path.join(GIT_DIR).symlink_metadata().ok().filter(std::fs::Metadata::is_dir);
    live.repository.is_some() && live.repository != now.map(|found| found.ino())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn recognizes_a_changed_directory() {
        let top = tempfile::tempdir().expect("folder");
        let path = top.path().canonicalize().expect("path").join("project");
        fs::create_dir_all(path.join(".git")).expect("folder");
        symlink("project", top.path().join("link")).expect("link");
        let with = identify(&top.path().join("link")).expect("identified");
        assert_eq!(with.path, path);
        assert_eq!(identify_again(&with), Ok(with.clone()));
        let other = LiveFolder { uid: with.uid + 1, ..with.clone() };
        assert_eq!(identify_again(&other), Err(LiveFolderChanged::Owner));
        assert!(!is_repository_moved(&with));
        fs::rename(path.join(".git"), path.join("kept")).expect("moved");
        assert!(is_repository_moved(&with));
        assert_eq!(identify_again(&with), Err(LiveFolderChanged::RepositoryGone));
        let without = identify(&path).expect("identified");
        assert_eq!(without.repository, None);
        fs::write(path.join(".git"), "gitdir: ../elsewhere\n").expect("written");
        assert!(identify(&path).is_err());
        assert_eq!(identify_again(&without), Err(LiveFolderChanged::RepositoryNew));
        assert_eq!(identify_again(&with), Err(LiveFolderChanged::RepositoryGone));
        fs::remove_dir_all(&path).expect("removed");
        assert_eq!(identify_again(&without), Err(LiveFolderChanged::Gone));
    }
}
