//! Creates or clones detached mounts, restricts them, and then attaches them.
//!
//! A mount is attached to an open directory, never to a path, because a link could redirect a path.

use std::ffi::{CStr, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};

use bottle_backend::memory;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};

use super::sys::{Forbid, restrict_mount};

/// The mount is read-only and its device files cannot be used. Its programs can be run.
pub(super) const READ_ONLY: Forbid = Forbid { writes: true, devices: true, programs: false };

/// The mount is read-only, its device files cannot be used, and its programs cannot be run.
pub(super) const DATA: Forbid = Forbid { writes: true, devices: true, programs: true };

/// The mount is writable and its device files cannot be used. Its programs can be run.
pub(super) const WRITABLE: Forbid = Forbid { writes: false, devices: true, programs: false };

/// A detached mount.
pub(super) struct Tree(OwnedFd);

impl Tree {
    /// Clones the mount at `path` on the host, including the mounts below it.
    ///
    /// # Errors
    /// When the path does not exist, or this process may not clone mounts.
    pub(super) fn clone_host(path: &Path, forbid: Forbid) -> io::Result<Self> {
        let flags =
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
        let tree = Self(open_tree(CWD, path, flags)?);
        restrict_mount(&tree.0, forbid, true)?;
        Ok(tree)
    }

    /// Clones the mount at `name` in `directory`, which must belong to an attached mount.
    ///
    /// # Errors
    /// The errors of [`Tree::clone_host`].
    pub(super) fn clone_at(directory: impl AsFd, name: &CStr, forbid: Forbid) -> io::Result<Self> {
        let flags =
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
        let tree = Self(open_tree(directory, name, flags)?);
        restrict_mount(&tree.0, forbid, true)?;
        Ok(tree)
    }

    /// Duplicates this mount with its restrictions. The mount must be attached, because older kernels cannot clone a
    /// detached mount.
    ///
    /// # Errors
    /// The error of the failed system call.
    pub(super) fn duplicate(&self) -> io::Result<Self> {
        let flags =
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        Ok(Self(open_tree(&self.0, "", flags)?))
    }

    /// Creates a file system of the type `kind`. Set-id bits of its programs have no effect.
    ///
    /// # Errors
    /// When the kernel refuses `kind` or an option.
    pub(super) fn new(kind: &str, options: &[(&str, &str)], attributes: MountAttrFlags) -> io::Result<Self> {
        let configured = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
        for (key, value) in options {
            fsconfig_set_string(configured.as_fd(), *key, *value)?;
        }
        fsconfig_create(configured.as_fd())?;
        let attributes = attributes | MountAttrFlags::MOUNT_ATTR_NOSUID;
        Ok(Self(fsmount(configured.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?))
    }

    /// Creates an overlay of the directories in `lower` under the writable directory `upper`. The paths in `lower` are
    /// separated by colons, and the topmost directory comes first. All paths are absolute. `flags` are mount options
    /// without a value.
    ///
    /// # Errors
    /// When the kernel or the file system of a directory does not support overlays.
    pub(super) fn overlay(lower: &str, upper: &str, work: &str, flags: &[&str]) -> io::Result<Self> {
        let configured = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
        for (key, value) in [("lowerdir", lower), ("upperdir", upper), ("workdir", work)] {
            fsconfig_set_string(configured.as_fd(), key, value)?;
        }
        // Overlays use the extended attributes `trusted.*` by default, but root in a user namespace cannot set these
        // attributes.
        fsconfig_set_flag(configured.as_fd(), "userxattr")?;
        for flag in flags {
            fsconfig_set_flag(configured.as_fd(), *flag)?;
        }
        fsconfig_create(configured.as_fd())?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        Ok(Self(fsmount(configured.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?))
    }

    /// Creates a tmpfs of at most `size` bytes. The inode limit of the tmpfs is proportional to `size`.
    ///
    /// # Errors
    /// The errors of [`Tree::new`].
    pub(super) fn in_memory(mode: &str, size: u64, attributes: MountAttrFlags) -> io::Result<Self> {
        let (size, files) = (size.to_string(), memory::files(size).to_string());
        Self::new("tmpfs", &[("mode", mode), ("size", &size), ("nr_inodes", &files)], attributes)
    }

    /// The root directory of the mount.
    pub(super) fn root(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Attaches the mount over an open directory or file.
    ///
    /// # Errors
    /// The error of the failed system call.
    pub(super) fn attach(&self, over: impl AsFd) -> io::Result<()> {
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        Ok(move_mount(self.0.as_fd(), "", over.as_fd(), "", flags)?)
    }

    /// Whether the root of the mount is a directory.
    ///
    /// # Errors
    /// The error of the failed system call.
    pub(super) fn is_directory(&self) -> io::Result<bool> {
        let mode = rustix::fs::fstat(&self.0)?.st_mode;
        Ok(rustix::fs::FileType::from_raw_mode(mode) == rustix::fs::FileType::Directory)
    }
}

/// Creates the missing directories of a path under `root` and opens the last directory.
///
/// # Errors
/// When a part of the path is a link or not a directory.
pub(super) fn directory(root: impl AsFd, path: &Path) -> io::Result<OwnedFd> {
    let mut at: Option<OwnedFd> = None;
    for part in path.components() {
        match part {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => {
                let parent = at.as_ref().map_or(root.as_fd(), AsFd::as_fd);
                let opened = open_or_make(parent, name)?;
                at = Some(opened);
            }
            Component::ParentDir | Component::Prefix(_) => {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no plain absolute path"));
            }
        }
    }
    match at {
        Some(directory) => Ok(directory),
        None => Ok(rustix::io::fcntl_dupfd_cloexec(root, 3)?),
    }
}

fn open_or_make(parent: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(parent, name, flags, Mode::empty()) {
        Err(Errno::NOENT) => {
            rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755))?;
            rustix::fs::openat(parent, name, flags, Mode::empty())
        }
        opened => opened,
    }
}

/// Creates an empty file and its parent directories as a mount point, and opens the file.
///
/// # Errors
/// The errors of [`directory`].
pub(super) fn file(root: impl AsFd, path: &Path) -> io::Result<OwnedFd> {
    let (parent, name) = split(path)?;
    // A path without a parent is created directly in `root`.
    let made = if parent.as_os_str().is_empty() { None } else { Some(directory(&root, parent)?) };
    let parent = made.as_ref().map_or(root.as_fd(), AsFd::as_fd);
    let flags = OFlags::CREATE | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(parent, name, flags, Mode::from_raw_mode(0o444))?)
}

/// Splits a path into its parent and its name.
///
/// # Errors
/// When the path has no parent or no file name.
pub(super) fn split(path: &Path) -> io::Result<(&Path, &OsStr)> {
    path.parent()
        .zip(path.file_name())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "it is no plain absolute path"))
}
