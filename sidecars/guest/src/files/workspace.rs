//! Checks paths of the workspace, and opens files and directories so that no path leaves the workspace.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use bottle_policy::names::WORKSPACE;
use bottle_protocol::session::files::{FileInfo, FileKind, FilePath};
use bottle_protocol::session::guest::{Failure, FailureKind};
use jiff::Timestamp;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, mkdirat, readlinkat, statat, unlinkat};
use rustix::io::Errno;

use crate::archive::MAX_DEPTH;
use crate::facts::relative_to_root;
use crate::failure::{Outcome, failed};
use crate::rooted::{open_beneath, open_in_root, open_within};

/// The flags to open a file. Without `NONBLOCK`, opening a FIFO would wait for a writer.
const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// The flags to open a directory.
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// The permission bits of a new directory.
const DIRECTORY_MODE: u32 = 0o755;

/// A path relative to the workspace, without `..`. The path is empty for the workspace itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place(PathBuf);

impl Place {
    /// Checks a path in a request. `..` is resolved as text.
    pub(super) fn new(path: &FilePath) -> Outcome<Self> {
        let outside = || refused(path.as_path(), format!("it is outside the workspace, {WORKSPACE}"));
        let found = path.in_workspace().ok_or_else(outside)?;
        if found.components().count() > MAX_DEPTH {
            return Err(refused(path.as_path(), format!("it is more than {MAX_DEPTH} directories deep")));
        }
        Ok(Self(found))
    }

    /// Returns the path.
    pub(super) fn as_path(&self) -> &Path {
        &self.0
    }

    /// Returns the parent directories of the entry, from the innermost to the outermost, without the workspace itself.
    pub(super) fn above(&self) -> impl Iterator<Item = Self> {
        let directories = self.0.ancestors().skip(1).filter(|directory| !directory.as_os_str().is_empty());
        directories.map(|directory| Self(directory.to_owned()))
    }

    /// Returns the path in the form that answers use.
    pub(super) fn to_file_path(&self) -> FilePath {
        FilePath::from(&self.0)
    }
}

/// The open workspace.
pub(super) struct Workspace(OwnedFd);

/// A directory that contains an entry, and the entry's name.
pub(super) struct Parent {
    pub(super) directory: OwnedFd,
    pub(super) name: OsString,
}

impl Workspace {
    /// Opens the workspace below the bottle's root.
    pub(super) fn open(root: &Path) -> Outcome<Self> {
        let opened = open_in_root(root, &relative_to_root(WORKSPACE), DIRECTORY);
        opened.map(Self).map_err(|error| refused(Path::new(WORKSPACE), explain(&error)))
    }

    /// Opens a regular file. Symlinks are followed if they stay inside the workspace.
    pub(super) fn file(&self, place: &Place) -> Outcome<(File, Stat)> {
        // Opening a device can have side effects, so the kind is checked first.
        let kind = open_within(&self.0, place.as_path(), OFlags::PATH).and_then(regular);
        let opened = kind.and_then(|_| open_within(&self.0, place.as_path(), READ)).and_then(regular);
        let (file, stat) = opened.map_err(|error| cannot("read", place.as_path(), &error))?;
        Ok((file.into(), stat))
    }

    /// Opens a directory. Symlinks are followed if they stay inside the workspace.
    pub(super) fn directory(&self, place: &Place) -> io::Result<OwnedFd> {
        open_within(&self.0, place.as_path(), DIRECTORY)
    }

    /// Opens the directory that contains an entry.
    pub(super) fn parent(&self, place: &Place) -> io::Result<Parent> {
        let path = place.as_path();
        let name = path.file_name().ok_or_else(|| io::Error::other("it is the workspace itself"))?;
        let directory = open_within(&self.0, path.parent().unwrap_or(Path::new("")), DIRECTORY)?;
        Ok(Parent { directory, name: name.to_owned() })
    }

    /// Opens the directory that contains an entry, and creates it if it does not exist.
    pub(super) fn make_parent(&self, place: &Place, made: &mut MadeDirectories) -> io::Result<Parent> {
        match self.parent(place) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            done => return done,
        }
        self.make_directories(place.as_path().parent().unwrap_or(Path::new("")), made)?;
        self.parent(place)
    }

    /// Opens a directory, and creates it if it does not exist.
    pub(super) fn make_directory(&self, place: &Place, made: &mut MadeDirectories) -> io::Result<OwnedFd> {
        self.make_directories(place.as_path(), made)
    }

    fn make_directories(&self, path: &Path, made: &mut MadeDirectories) -> io::Result<OwnedFd> {
        let mut directory = self.0.try_clone()?;
        let (parts, mut path) = (path, PathBuf::new());
        for part in parts {
            path.push(part);
            // Each component is opened with its complete path from the workspace, because a symlink may lead to another
            // part of the workspace.
            let opened = match open_within(&self.0, &path, DIRECTORY) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    made.make(&directory, part)?;
                    open_within(&self.0, &path, DIRECTORY)
                }
                done => done,
            };
            directory = opened?;
        }
        Ok(directory)
    }

    /// Describes an entry. A symlink is not followed.
    pub(super) fn describe(&self, place: &Place) -> Outcome<FileInfo> {
        let opened = open_within(&self.0, place.as_path(), OFlags::PATH | OFlags::NOFOLLOW);
        let described = opened.and_then(|opened| {
            let stat = fstat(&opened)?;
            Ok(info(place.as_path(), &stat, || link_target(&opened, OsStr::new(""))))
        });
        described.map_err(|error| cannot("find", place.as_path(), &error))
    }
}

impl Parent {
    /// Returns the metadata of the entry. A symlink is not followed. Returns `None` if the entry does not exist.
    pub(super) fn entry(&self) -> io::Result<Option<Stat>> {
        entry(&self.directory, &self.name)
    }

    /// Opens the entry. Fails if it is not a regular file.
    pub(super) fn file(&self) -> io::Result<(File, Stat)> {
        let stat = self.entry()?.ok_or(Errno::NOENT)?;
        check_regular(&stat)?;
        let (file, stat) = open_regular(&self.directory, &self.name)?;
        Ok((file, stat))
    }

    /// Opens the entry as a directory.
    pub(super) fn subdirectory(&self) -> io::Result<OwnedFd> {
        subdirectory(&self.directory, &self.name)
    }
}

/// The directories that a request created. Dropping this value removes them again.
#[derive(Default)]
pub(super) struct MadeDirectories(Vec<(OwnedFd, OsString)>);

impl MadeDirectories {
    fn make(&mut self, parent: &OwnedFd, name: &OsStr) -> io::Result<()> {
        match mkdirat(parent, name, Mode::from_raw_mode(DIRECTORY_MODE)) {
            Ok(()) => self.0.push((parent.try_clone()?, name.to_owned())),
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Keeps the directories, because the request succeeded.
    pub(super) fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for MadeDirectories {
    fn drop(&mut self) {
        for (parent, name) in self.0.iter().rev() {
            // The call fails if the directory is no longer empty. In this case, the directory stays.
            let _ = unlinkat(parent, name, AtFlags::REMOVEDIR);
        }
    }
}

/// Returns the metadata of an entry in a directory. A symlink is not followed. Returns `None` if the entry does not
/// exist.
pub(super) fn entry(directory: impl AsFd, name: &OsStr) -> io::Result<Option<Stat>> {
    match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Opens a subdirectory. Fails for a symlink.
pub(super) fn subdirectory(directory: impl AsFd, name: &OsStr) -> io::Result<OwnedFd> {
    open_beneath(directory, Path::new(name), DIRECTORY | OFlags::NOFOLLOW, Mode::empty())
}

/// Opens a regular file in a directory. Fails for a symlink. The caller has already checked the type of the entry. If
/// the type is different now, the entry was replaced in the meantime.
pub(super) fn open_regular(directory: impl AsFd, name: &OsStr) -> io::Result<(File, Stat)> {
    let opened = open_beneath(directory, Path::new(name), READ | OFlags::NOFOLLOW, Mode::empty())?;
    regular(opened).map(|(opened, stat)| (opened.into(), stat))
}

fn regular(opened: OwnedFd) -> io::Result<(OwnedFd, Stat)> {
    let stat = fstat(&opened)?;
    check_regular(&stat)?;
    Ok((opened, stat))
}

/// Fails if the metadata is not of a regular file.
pub(super) fn check_regular(stat: &Stat) -> io::Result<()> {
    let why = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => return Ok(()),
        FileType::Directory => "it is a directory",
        FileType::Symlink => "it is a symlink; name the file to which it leads",
        _ => "it is a device, a FIFO or a socket",
    };
    Err(io::Error::other(why))
}

/// Describes an entry.
pub(super) fn info(path: &Path, stat: &Stat, target: impl FnOnce() -> Option<FilePath>) -> FileInfo {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        _ => FileKind::Other,
    };
    let size = if kind == FileKind::Directory { 0 } else { number(stat.st_size) };
    FileInfo {
        path: FilePath::from(path),
        kind,
        size,
        mode: stat.st_mode & 0o7777,
        modified: Timestamp::new(number(stat.st_mtime), number(stat.st_mtime_nsec)).ok(),
        links: number(stat.st_nlink),
        target: if kind == FileKind::Symlink { target() } else { None },
    }
}

/// Reads the target of a symlink.
pub(super) fn link_target(directory: impl AsFd, name: &OsStr) -> Option<FilePath> {
    let target = readlinkat(directory, name, Vec::new()).ok()?;
    Some(FilePath::from(OsStr::from_bytes(target.to_bytes())))
}

/// Converts a number from the kernel to `U`. The type of the kernel's number depends on the processor architecture.
pub(super) fn number<T: TryInto<U>, U: Default>(number: T) -> U {
    number.try_into().unwrap_or_default()
}

/// Returns the failure of an operation on a path.
pub(super) fn cannot(verb: &str, path: &Path, error: &io::Error) -> Failure {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    failed(FailureKind::BadPath, format!("cannot {verb} {path:?}: {}", explain(error)))
}

/// Returns the failure for a path that is not allowed.
pub(super) fn refused(path: &Path, why: impl std::fmt::Display) -> Failure {
    failed(FailureKind::BadPath, format!("cannot use {path:?}: {why}"))
}

/// Explains an error of the kernel for a path of the workspace.
fn explain(error: &io::Error) -> String {
    let why = match Errno::from_io_error(error) {
        Some(Errno::XDEV) => "a symlink in it leads outside the workspace, or is absolute",
        Some(Errno::LOOP) => "it has too many symlinks, or one that the kernel provides",
        Some(Errno::NOENT) => "it does not exist",
        Some(Errno::EXIST) => "it exists already",
        Some(Errno::NOTDIR) => "a part of it is not a directory",
        Some(Errno::ISDIR) => "it is a directory",
        Some(Errno::NOTEMPTY) => "it is a directory that is not empty",
        _ => return error.to_string(),
    };
    why.to_owned()
}
