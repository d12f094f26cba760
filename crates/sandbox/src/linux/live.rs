//! Mounts a directory of the user as a workspace (`--cwd=live`).
//!
//! The agent can write to the directory, but not to the directory's `.git`: the bottle's own repository is mounted over
//! `.git`. A mount point cannot be renamed, removed or unmounted in the bottle, so the agent never sees the files that
//! the mount covers. The workspace directory itself is the root of a mount. Only a process outside of the bottle can
//! move the user's `.git` away from under the mount. When the bottle ends, `bottle` reports such a move.

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

/// The name of the repository, both in the user's directory and in the bottle's own workspace directory.
const GIT_DIR: &str = ".git";

const DIRECTORY: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens the user's directory, which was shown to the user before the launch. `outside` is the host user id of a bottle
/// that root starts. The mount shows this id as the owner of the directory's files.
///
/// # Errors
/// [`SetupFailure`] that names the path. Another directory that is now at the path is a failure too.
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

/// Checks that the open directory is the directory that was shown to the user before the launch.
fn require_same(live: &LiveDirectory, directory: &OwnedFd) -> io::Result<()> {
    let stat = fstat(directory)?;
    if (stat.st_dev, stat.st_ino) == (live.device, live.inode) {
        return Ok(());
    }
    Err(io::Error::other("another directory is there now"))
}

/// If the user's directory has a repository, opens the bottle's repository, which will cover the user's repository. The
/// bottle's repository is in the bottle's own workspace directory.
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

/// Mounts the bottle's repository over the user's repository in the attached workspace.
///
/// # Errors
/// When the workspace has no directory `.git`, or when this directory is not the one that was shown to the user before
/// the launch.
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
