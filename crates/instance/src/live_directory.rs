//! Identifies a directory of the user that is a bottle's workspace (`--cwd=live`).

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use bottle_plan::LiveDirectory;

/// The name of the git directory in a working tree.
pub(super) const GIT_DIR: &str = ".git";

/// Why a directory is not the one with which a bottle started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LiveDirectoryChanged {
    /// The directory no longer exists, or a link in its path now points to another directory.
    #[error("it no longer exists")]
    Gone,
    /// The directory belongs to another user.
    #[error("it belongs to another user than at the start")]
    Owner,
    /// The directory no longer contains a directory `.git`.
    #[error("its .git is gone, over which the bottle's own repository is mounted")]
    RepositoryGone,
    /// The directory contains a `.git` that it did not contain before.
    #[error("it has a .git now, which no repository of the bottle covers")]
    RepositoryNew,
}

/// Identifies a directory, whose path may contain links.
///
/// # Errors
/// Fails if the directory cannot be read, is not a directory, or has a `.git` that is not a directory.
pub fn identify(directory: &Path) -> io::Result<LiveDirectory> {
    let path = directory.canonicalize()?;
    let metadata = path.metadata()?;
    if !metadata.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    let repository = match path.join(GIT_DIR).symlink_metadata() {
        Ok(found) if found.is_dir() => Some(found.ino()),
        Ok(_) => return Err(io::Error::other("its .git is no directory, so its repository is elsewhere")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let (device, inode) = (metadata.dev(), metadata.ino());
    Ok(LiveDirectory { path, device, inode, uid: metadata.uid(), gid: metadata.gid(), repository })
}

/// Identifies again the directory of a bottle that has ended.
///
/// # Errors
/// Fails if the directory has changed so that the bottle must not use it.
pub fn identify_again(before: &LiveDirectory) -> Result<LiveDirectory, LiveDirectoryChanged> {
    let has_git = before.path.join(GIT_DIR).symlink_metadata().is_ok();
    match identify(&before.path) {
        Ok(now) if now.path != before.path => Err(LiveDirectoryChanged::Gone),
        Ok(now) if now.uid != before.uid => Err(LiveDirectoryChanged::Owner),
        Ok(now) => match (before.repository, now.repository) {
            (Some(_), None) => Err(LiveDirectoryChanged::RepositoryGone),
            (None, Some(_)) => Err(LiveDirectoryChanged::RepositoryNew),
            _ => Ok(now),
        },
        Err(_) if has_git && before.repository.is_some() => Err(LiveDirectoryChanged::RepositoryGone),
        Err(_) if has_git => Err(LiveDirectoryChanged::RepositoryNew),
        Err(_) => Err(LiveDirectoryChanged::Gone),
    }
}

/// Whether the directory `.git` was replaced since the directory was identified.
#[must_use]
pub(super) fn is_repository_moved(live: &LiveDirectory) -> bool {
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
        let top = tempfile::tempdir().expect("directory");
        let path = top.path().canonicalize().expect("path").join("project");
        fs::create_dir_all(path.join(".git")).expect("directory");
        symlink("project", top.path().join("link")).expect("link");
        let with = identify(&top.path().join("link")).expect("identified");
        assert_eq!(with.path, path);
        assert_eq!(identify_again(&with), Ok(with.clone()));
        let other = LiveDirectory { uid: with.uid + 1, ..with.clone() };
        assert_eq!(identify_again(&other), Err(LiveDirectoryChanged::Owner));
        assert!(!is_repository_moved(&with));
        fs::rename(path.join(".git"), path.join("kept")).expect("moved");
        assert!(is_repository_moved(&with));
        assert_eq!(identify_again(&with), Err(LiveDirectoryChanged::RepositoryGone));
        let without = identify(&path).expect("identified");
        assert_eq!(without.repository, None);
        fs::write(path.join(".git"), "gitdir: ../elsewhere\n").expect("written");
        assert!(identify(&path).is_err());
        assert_eq!(identify_again(&without), Err(LiveDirectoryChanged::RepositoryNew));
        assert_eq!(identify_again(&with), Err(LiveDirectoryChanged::RepositoryGone));
        fs::remove_dir_all(&path).expect("removed");
        assert_eq!(identify_again(&without), Err(LiveDirectoryChanged::Gone));
    }
}
