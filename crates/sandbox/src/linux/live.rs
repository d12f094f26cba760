//! Mounts a directory of the user as a workspace (`--cwd=live`).
//!
//! The agent can write to the directory, but not to its `.git`: the bottle's own repository is mounted over it. A mount
//! point cannot be renamed, removed or unmounted in the bottle, so the agent never sees the files below it. The
//! directory itself is the root of its mount. Only a process outside of the bottle can move the user's `.git` away from
//! under the mount; `bottle` reports that when the bottle ends.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use bottle_plan::LiveDirectory;
use rustix::fs::{CWD, Mode, OFlags, fstat, openat};

use super::mounts::Tree;
use super::owners::{OnDisk, owner_as};
use super::sys::{Forbid, map_owners};
use crate::local::failure::Step;
use crate::local::spawn_ipc::SetupFailure;

/// The name of the repository, in the directory and in the bottle's own directory.
const GIT_DIR: &str = ".git";

const DIRECTORY: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens the directory that the user was shown. `outside` is the host user id of a bottle that root starts; the mount
/// then shows it as the owner of the directory's files.
///
/// # Errors
/// [`SetupFailure`] that names the path, also when another directory is at the path now.
pub(super) fn open(live: &LiveDirectory, forbid: Forbid, outside: Option<u32>) -> Result<Tree, SetupFailure> {
    let path = &live.path;
    let directory = openat(CWD, path, DIRECTORY, Mode::empty()).step_at("open", path)?;
    require_same(live, &directory).step_at("mount", path)?;
    let tree = Tree::clone_at(&directory, c".", forbid).step_at("mount", path)?;
    if let Some(id) = outside {
        owner_as(OnDisk { uid: live.uid, gid: live.gid }, id)
            .and_then(|users| map_owners(tree.root(), users))
            .step_at("keep the owner of the files (an idmapped mount) in", path)?;
    }
    Ok(tree)
}

/// Checks that the open directory is the one that the user was shown.
fn require_same(live: &LiveDirectory, directory: &OwnedFd) -> io::Result<()> {
    let stat = fstat(directory)?;
    if (stat.st_dev, stat.st_ino) == (live.device, live.inode) {
        return Ok(());
    }
    Err(io::Error::other("another directory is there now"))
}

/// Opens the bottle's repository in its own workspace directory, if the user's directory has a repository for it to
/// cover.
///
/// # Errors
/// [`SetupFailure`] that names the path.
pub(super) fn open_repository(
    live: &LiveDirectory,
    own: &Path,
    forbid: Forbid,
) -> Result<Option<Tree>, SetupFailure> {
    if live.repository.is_none() {
        return Ok(None);
    }
    let path = own.join(GIT_DIR);
    Tree::clone_host(&path, forbid).step_at("mount the repository", &path).map(Some)
}

/// Mounts the bottle's repository over the one in the attached workspace.
///
/// # Errors
/// When the workspace has no directory `.git`, or another one than the user was shown.
pub(super) fn cover(live: &LiveDirectory, workspace: &Tree, repository: &Tree) -> Result<(), SetupFailure> {
    let path = live.path.join(GIT_DIR);
    let over = openat(workspace.root(), GIT_DIR, DIRECTORY, Mode::empty()).step_at("open", &path)?;
    if Some(fstat(&over).step_at("look at", &path)?.st_ino) != live.repository {
        return Err(io::Error::other("another repository is there now")).step_at("mount over", &path);
    }
    repository.attach(over).step_at("mount the bottle's repository over", &path)
}

/// The disk space of the user's own files in the directory, in bytes. These files do not belong to the bottle.
pub(super) fn size(live: &LiveDirectory) -> u64 {
    let all = bottle_guest::use_of_disk(&live.path);
    match live.repository {
        Some(_) => all.saturating_sub(bottle_guest::use_of_disk(&live.path.join(GIT_DIR))),
        None => all,
    }
}
