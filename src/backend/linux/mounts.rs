//! Mounts as values: cloned or made detached, restricted, and then attached where they belong.
//!
//! Attaching goes by an open folder, never by a path that a link could bend.

use std::ffi::{CStr, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};

use super::sys::{Forbid, restrict_mount};
use crate::backend::memory;

/// A mount that is attached nowhere yet.
pub(super) struct Tree(OwnedFd);

impl Tree {
    /// What is at `path` on the host, with what is mounted below it.
    ///
    /// # Errors
    /// When it is not there, or mounts may not be changed.
    pub(super) fn of_host(path: &Path, forbid: Forbid) -> io::Result<Self> {
        let flags =
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
        let tree = Self(open_tree(CWD, path, flags)?);
        restrict_mount(&tree.0, forbid, true)?;
        Ok(tree)
    }

    /// What is at `name` under an attached folder.
    ///
    /// # Errors
    /// As [`Tree::of_host`].
    pub(super) fn of_folder(folder: impl AsFd, name: &CStr, forbid: Forbid) -> io::Result<Self> {
        let flags =
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
        let tree = Self(open_tree(folder, name, flags)?);
        restrict_mount(&tree.0, forbid, true)?;
        Ok(tree)
    }

    /// The same once more, with what it forbids. This one has to be attached by now: older kernels clone no
    /// mount that is not.
    ///
    /// # Errors
    /// As the system says.
    pub(super) fn again(&self) -> io::Result<Self> {
        let flags =
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        Ok(Self(open_tree(&self.0, "", flags)?))
    }

    /// A new file system of this kind; never with set-id programs.
    ///
    /// # Errors
    /// When the kernel refuses it or an option.
    pub(super) fn new(kind: &str, options: &[(&str, &str)], attributes: MountAttrFlags) -> io::Result<Self> {
        let configured = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
        for (key, value) in options {
            fsconfig_set_string(configured.as_fd(), *key, *value)?;
        }
        fsconfig_create(configured.as_fd())?;
        let attributes = attributes | MountAttrFlags::MOUNT_ATTR_NOSUID;
        Ok(Self(fsmount(configured.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?))
    }

    /// The folders at `lower`, the top one first and a colon between them, with what is in `upper` over them; writes
    /// go there. Each is an absolute path. `flags` are the file system's own.
    ///
    /// # Errors
    /// When the kernel refuses it, or a file system that one of them is on.
    pub(super) fn overlay(lower: &str, upper: &str, work: &str, flags: &[&str]) -> io::Result<Self> {
        let configured = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
        for (key, value) in [("lowerdir", lower), ("upperdir", upper), ("workdir", work)] {
            fsconfig_set_string(configured.as_fd(), key, value)?;
        }
        // Whoever is root in a namespace only cannot set the attributes that are taken otherwise.
        fsconfig_set_flag(configured.as_fd(), "userxattr")?;
        for flag in flags {
            fsconfig_set_flag(configured.as_fd(), *flag)?;
        }
        fsconfig_create(configured.as_fd())?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        Ok(Self(fsmount(configured.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?))
    }

    /// A new file system in memory that holds this many bytes, and files in proportion.
    ///
    /// # Errors
    /// As [`Tree::new`].
    pub(super) fn in_memory(mode: &str, size: u64, attributes: MountAttrFlags) -> io::Result<Self> {
        let (size, files) = (size.to_string(), memory::files(size).to_string());
        Self::new("tmpfs", &[("mode", mode), ("size", &size), ("nr_inodes", &files)], attributes)
    }

    /// The mount itself: its root.
    pub(super) fn root(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Attaches it over an open folder or file.
    ///
    /// # Errors
    /// As the system says.
    pub(super) fn attach(&self, over: impl AsFd) -> io::Result<()> {
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        Ok(move_mount(self.0.as_fd(), "", over.as_fd(), "", flags)?)
    }

    /// Whether it is a folder.
    ///
    /// # Errors
    /// As the system says.
    pub(super) fn is_folder(&self) -> io::Result<bool> {
        let mode = rustix::fs::fstat(&self.0)?.st_mode;
        Ok(rustix::fs::FileType::from_raw_mode(mode) == rustix::fs::FileType::Directory)
    }
}

/// Makes what is missing of the folders of a path under `root` and opens the last one.
///
/// # Errors
/// When a part of the path is there and no folder, or a link.
pub(super) fn folder(root: impl AsFd, path: &Path) -> io::Result<OwnedFd> {
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
        Some(folder) => Ok(folder),
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

/// Makes an empty file to mount over, with the folders on the way, and opens it.
///
/// # Errors
/// As [`folder`].
pub(super) fn file(root: impl AsFd, path: &Path) -> io::Result<OwnedFd> {
    let (parent, name) = split(path)?;
    // A name alone is made right in `root`.
    let made = if parent.as_os_str().is_empty() { None } else { Some(folder(&root, parent)?) };
    let parent = made.as_ref().map_or(root.as_fd(), AsFd::as_fd);
    let flags = OFlags::CREATE | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(parent, name, flags, Mode::from_raw_mode(0o444))?)
}

/// Parent and name.
///
/// # Errors
/// When the path has no name.
pub(super) fn split(path: &Path) -> io::Result<(&Path, &OsStr)> {
    path.parent()
        .zip(path.file_name())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "it is no plain absolute path"))
}
