//! Checks, in the agent's container, the directory of the user that the engine mounted as the workspace.
//!
//! The engine resolved the path again after `bottle` had checked the directory. Between the check and the mount, a
//! different directory or a link could have replaced the directory. Pid 1 runs this check before any program of the
//! image.

use std::io;
use std::path::Path;

use bottle_backend::restrictions::set_id;
use bottle_guest::Confine;
use bottle_policy::names::{REPOSITORY, WORKSPACE};
use rustix::fs::{AtFlags, CWD, FileType, statat};

use super::container_entry::LiveSpec;

/// Checks the mounts, and returns the restriction for the programs of the bottle.
///
/// # Errors
/// When another directory is mounted, or the user's repository is visible.
pub(super) fn confine(spec: &LiveSpec) -> io::Result<Confine> {
    let mounts = std::fs::read("/proc/self/mountinfo")?;
    let mounts = String::from_utf8_lossy(&mounts);
    require_mounted(spec, Path::new(WORKSPACE), |path| is_mount_point(&mounts, path))?;
    set_id::refused().map_err(io::Error::other)
}

fn require_mounted(spec: &LiveSpec, workspace: &Path, is_mounted: impl Fn(&str) -> bool) -> io::Result<()> {
    let found = statat(CWD, workspace, AtFlags::SYMLINK_NOFOLLOW)?;
    if (found.st_dev, found.st_ino) != (spec.device, spec.inode) {
        return Err(io::Error::other("the directory of `--cwd=live` is not the one that was checked"));
    }
    let Some(inode) = spec.repository else { return Ok(()) };
    let found = statat(CWD, workspace.join(".git"), AtFlags::SYMLINK_NOFOLLOW)?;
    let is_directory = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
    let is_users = (found.st_dev, found.st_ino) == (spec.device, inode);
    if !is_directory || is_users || !is_mounted(REPOSITORY) {
        return Err(io::Error::other("the `.git` of `--cwd=live` is not covered by the bottle's repository"));
    }
    Ok(())
}

/// Whether a file system is mounted at this path. `mounts` is the text of `/proc/self/mountinfo`, as in proc(5).
fn is_mount_point(mounts: &str, path: &str) -> bool {
    mounts.lines().any(|line| line.split(' ').nth(4) == Some(path))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    #[test]
    fn another_directory_and_a_visible_repository_are_refused() {
        let top = tempfile::tempdir().expect("a directory");
        let workspace = top.path().join("workspace");
        fs::create_dir_all(workspace.join(".git")).expect("directories");
        let found = fs::metadata(&workspace).expect("there");
        // The visible repository covers the user's repository. The two repositories have different inodes.
        let spec = LiveSpec { device: found.dev(), inode: found.ino(), repository: Some(found.ino()) };
        let check = |spec: &LiveSpec, mounted: bool| require_mounted(spec, &workspace, |_| mounted).is_ok();
        assert!(check(&spec, true));
        assert!(!check(&spec, false), "it is no mount");
        assert!(!check(&LiveSpec { inode: spec.inode + 1, ..spec }, true), "another directory");
        assert!(!check(&LiveSpec { device: spec.device + 1, ..spec }, true), "another file system");
        let users = fs::metadata(workspace.join(".git")).expect("there").ino();
        assert!(!check(&LiveSpec { repository: Some(users), ..spec }, true), "the user's repository");
        fs::rename(workspace.join(".git"), workspace.join("moved")).expect("moved");
        assert!(!check(&spec, true), "none");
        symlink("moved", workspace.join(".git")).expect("a link");
        assert!(!check(&spec, true), "a link");
        assert!(check(&LiveSpec { repository: None, ..spec }, false));
    }

    #[test]
    fn finds_a_mount_point() {
        let mounts = "22 1 8:1 / / rw - ext4 /dev/a rw\n30 22 8:1 /x /workspace rw - ext4 /dev/a rw\n";
        assert!(is_mount_point(mounts, "/workspace"));
        assert!(!is_mount_point(mounts, "/workspace/.git") && !is_mount_point("", "/"));
    }
}
