//! Opens and reads files beneath a directory that other processes may change at the same time.
//!
//! Each component of a path is opened relative to its parent's descriptor, without following links. A component that
//! another process replaces by a link is therefore an error, and no path leaves the directory.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

/// The flags of each opened directory.
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// The flags of each opened file. Opening a named pipe does not block, and an opened terminal does not become the
/// controlling terminal.
const FILE: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// An open directory, below which files are opened by relative paths.
#[derive(Debug)]
pub struct Directory {
    descriptor: OwnedFd,
    /// The path for messages. The path is never opened again.
    path: PathBuf,
}

/// The identity of a file or directory, as long as the file or directory exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileId {
    /// The number of the device.
    pub device: u64,
    /// The number of the inode on the device.
    pub inode: u64,
}

/// Why a file was not read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file is a link, a named pipe, a socket, a device or of another wrong type, or a component of its path is not
    /// a directory.
    #[error("{} is not a regular file", .0.display())]
    NotRegular(PathBuf),
    /// The file has more than the permitted number of bytes.
    #[error("{} has more than {most} bytes", path.display())]
    TooLong {
        /// The path of the file.
        path: PathBuf,
        /// The permitted number of bytes.
        most: u64,
    },
    /// A system call failed.
    #[error("cannot read {}: {error}", path.display())]
    System {
        /// The path of the file.
        path: PathBuf,
        /// The I/O error.
        error: io::Error,
    },
}

impl Directory {
    /// Opens a directory by a path that the user gave. Links in this path are followed.
    ///
    /// # Errors
    /// Returns the I/O error of the failed system call.
    pub fn open(path: &Path) -> io::Result<Self> {
        let descriptor = rustix::fs::openat(CWD, path, DIRECTORY, Mode::empty())?;
        Ok(Self { descriptor, path: path.to_owned() })
    }

    /// Opens a directory by a path whose last component is not a link.
    ///
    /// # Errors
    /// Returns the I/O error of the failed system call; `NOTDIR` or `LOOP` if the last component is a link.
    pub fn open_without_link(path: &Path) -> io::Result<Self> {
        let descriptor = rustix::fs::openat(CWD, path, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
        Ok(Self { descriptor, path: path.to_owned() })
    }

    /// Returns the path for messages.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a directory beneath this directory. `None` if no entry has this path.
    ///
    /// # Errors
    /// Returns the I/O error of the failed system call; `NOTDIR` or `LOOP` if a component is a link or is not a
    /// directory, and `INVAL` if the path is absolute or contains `..`.
    pub fn directory(&self, relative: &Path) -> io::Result<Option<Self>> {
        let mut found = self.descriptor.try_clone()?;
        for name in components(relative)? {
            found = match rustix::fs::openat(&found, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty()) {
                Err(Errno::NOENT) => return Ok(None),
                opened => opened?,
            };
        }
        Ok(Some(Self { descriptor: found, path: self.path.join(relative) }))
    }

    /// Opens a directory by a path that a file in this directory contains. A relative path starts at this directory.
    /// Links and `..` are followed, so the path can name any directory of the machine. The caller has to compare
    /// [`Self::id`] with the expected identity.
    ///
    /// # Errors
    /// Returns the I/O error of the failed system call.
    pub fn resolve(&self, path: &Path) -> io::Result<Self> {
        let descriptor = rustix::fs::openat(&self.descriptor, path, DIRECTORY, Mode::empty())?;
        Ok(Self { descriptor, path: self.path.join(path) })
    }

    /// Opens the parent of this directory. `None` for the root of the file system.
    ///
    /// # Errors
    /// Returns the I/O error of the failed system call.
    pub fn parent(&self) -> io::Result<Option<Self>> {
        let descriptor = rustix::fs::openat(&self.descriptor, "..", DIRECTORY, Mode::empty())?;
        let path = self.path.parent().unwrap_or(&self.path).to_owned();
        let parent = Self { descriptor, path };
        Ok((parent.id()? != self.id()?).then_some(parent))
    }

    /// Opens another descriptor of the same directory.
    ///
    /// # Errors
    /// Returns the I/O error of the failed system call, for example if the process has too many open files.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { descriptor: self.descriptor.try_clone()?, path: self.path.clone() })
    }

    /// Opens a regular file beneath this directory for reading. `None` if no entry has this path.
    ///
    /// # Errors
    /// Returns [`ReadError::NotRegular`] or [`ReadError::System`].
    pub fn file(&self, relative: &Path) -> Result<Option<File>, ReadError> {
        let path = || self.path.join(relative);
        let failed = |error: io::Error| match Errno::from_io_error(&error) {
            // A component of the path is a link, or is not a directory.
            Some(Errno::LOOP | Errno::NOTDIR) => ReadError::NotRegular(path()),
            _ => ReadError::System { path: path(), error },
        };
        let Some(name) = relative.file_name() else { return Err(failed(Errno::INVAL.into())) };
        let parent = self.directory(relative.parent().unwrap_or(Path::new("")));
        let Some(parent) = parent.map_err(failed)? else { return Ok(None) };
        match rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(None),
            // Opening a device can have an effect, so the type is checked before the file is opened.
            Ok(found) if !is_regular(&found) => return Err(ReadError::NotRegular(path())),
            found => found.map_err(|error| failed(error.into()))?,
        };
        let file = match rustix::fs::openat(&parent, name, FILE, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            opened => opened.map_err(|error| failed(error.into()))?,
        };
        let is_file = rustix::fs::fstat(&file).is_ok_and(|found| is_regular(&found));
        if is_file { Ok(Some(file.into())) } else { Err(ReadError::NotRegular(path())) }
    }

    /// Opens a regular file directly in this directory for reading, and returns its status. `None` if there is no such
    /// file.
    ///
    /// # Errors
    /// Returns the I/O error of the failed system call; `LOOP` for a link.
    pub(crate) fn regular_file(&self, name: &OsStr) -> io::Result<Option<(File, Stat)>> {
        let file = match rustix::fs::openat(&self.descriptor, name, FILE, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            opened => opened?,
        };
        let status = rustix::fs::fstat(&file)?;
        Ok(is_regular(&status).then(|| (file.into(), status)))
    }

    /// Reads a regular file of at most `most` bytes beneath this directory. `None` if no entry has this path.
    ///
    /// # Errors
    /// Returns a [`ReadError`] of any kind.
    pub fn read(&self, relative: &Path, most: u64) -> Result<Option<Vec<u8>>, ReadError> {
        let Some(file) = self.file(relative)? else { return Ok(None) };
        let path = || self.path.join(relative);
        let mut bytes = Vec::new();
        // One more byte than `most` is read, which shows that the file is longer, even if it grows meanwhile.
        let read = file.take(most.saturating_add(1)).read_to_end(&mut bytes);
        read.map_err(|error| ReadError::System { path: path(), error })?;
        if bytes.len() as u64 > most {
            return Err(ReadError::TooLong { path: path(), most });
        }
        Ok(Some(bytes))
    }

    /// Returns the status of an entry beneath this directory, without following a link. `None` if no entry has this
    /// path.
    ///
    /// # Errors
    /// Fails in the same cases as [`Self::directory`].
    pub fn stat(&self, relative: &Path) -> io::Result<Option<Stat>> {
        let Some(name) = relative.file_name() else { return Ok(Some(rustix::fs::fstat(&self.descriptor)?)) };
        let parent = relative.parent().unwrap_or(Path::new(""));
        let Some(parent) = self.directory(parent)? else { return Ok(None) };
        parent.entry_stat(name)
    }

    /// Returns the status of an entry directly in this directory, without following a link. `None` if no entry has this
    /// name.
    ///
    /// # Errors
    /// Returns the I/O error of the failed system call.
    pub(crate) fn entry_stat(&self, name: &OsStr) -> io::Result<Option<Stat>> {
        match rustix::fs::statat(&self.descriptor, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(None),
            found => Ok(Some(found?)),
        }
    }

    /// Returns the target of a link directly in this directory. `None` if no entry has this name, or the entry is not a
    /// link.
    ///
    /// # Errors
    /// Returns the I/O error of the failed system call.
    pub fn link(&self, name: &Path) -> io::Result<Option<PathBuf>> {
        match rustix::fs::readlinkat(&self.descriptor, name, Vec::new()) {
            Err(Errno::NOENT | Errno::INVAL) => Ok(None),
            target => Ok(Some(OsString::from_vec(target?.into_bytes()).into())),
        }
    }

    /// Returns the names of at most `most` entries of this directory, in no order, and whether there are more entries.
    ///
    /// # Errors
    /// Returns the I/O error of the failed system call.
    pub fn names(&self, most: usize) -> io::Result<(Vec<OsString>, bool)> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.descriptor)? {
            let name = entry?.file_name().to_bytes().to_owned();
            if name == b"." || name == b".." {
                continue;
            }
            if names.len() == most {
                return Ok((names, true));
            }
            names.push(OsString::from_vec(name));
        }
        Ok((names, false))
    }

    /// Returns the identity of this directory.
    ///
    /// # Errors
    /// Returns the I/O error of the failed system call.
    pub fn id(&self) -> io::Result<FileId> {
        Ok(FileId::of(&rustix::fs::fstat(&self.descriptor)?))
    }

    /// Returns the user id of this directory's owner.
    ///
    /// # Errors
    /// Returns the I/O error of the failed system call.
    pub fn owner(&self) -> io::Result<u32> {
        Ok(rustix::fs::fstat(&self.descriptor)?.st_uid)
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl FileId {
    /// Returns the identity of the file with this status.
    #[must_use]
    #[allow(clippy::unnecessary_cast, clippy::cast_sign_loss, reason = "the types differ between systems")]
    pub fn of(status: &Stat) -> Self {
        Self { device: status.st_dev as u64, inode: status.st_ino as u64 }
    }
}

fn is_regular(status: &Stat) -> bool {
    FileType::from_raw_mode(status.st_mode) == FileType::RegularFile
}

/// Returns the components of a relative path without `..`.
fn components(relative: &Path) -> io::Result<Vec<&OsStr>> {
    let name = |component| match component {
        Component::Normal(name) => Some(Ok(name)),
        Component::CurDir => None,
        _ => Some(Err(Errno::INVAL.into())),
    };
    relative.components().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    struct Scene {
        _top: tempfile::TempDir,
        inside: Directory,
    }

    fn scene() -> Scene {
        let top = tempfile::tempdir().expect("a directory");
        let inside = top.path().join("inside");
        std::fs::create_dir_all(inside.join("sub")).expect("made");
        std::fs::write(top.path().join("outside"), "private").expect("written");
        std::fs::write(inside.join("sub/file"), "12345").expect("written");
        symlink("../outside", inside.join("link")).expect("link");
        symlink("..", inside.join("up")).expect("link");
        symlink("sub", inside.join("alias")).expect("link");
        let fifo = inside.join("fifo");
        rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).expect("a named pipe");
        let inside = Directory::open(&inside).expect("opened");
        Scene { _top: top, inside }
    }

    #[test]
    fn reads_regular_files_up_to_a_bound() {
        let Scene { inside, _top } = scene();
        let read = |path: &str, most| inside.read(Path::new(path), most);
        assert_eq!(read("sub/file", 5).expect("read").as_deref(), Some(&b"12345"[..]));
        assert_eq!(read("./sub/./file", 5).expect("read").as_deref(), Some(&b"12345"[..]));
        assert!(matches!(read("sub/file", 4), Err(ReadError::TooLong { most: 4, .. })));
        for missing in ["none", "none/none", "sub/none"] {
            assert_eq!(read(missing, 5).expect("read"), None, "{missing}");
        }
    }

    #[test]
    fn follows_no_link_and_waits_for_no_pipe() {
        let Scene { inside, _top } = scene();
        for path in ["link", "fifo", "sub", "up/outside", "alias/file", "sub/file/x"] {
            let read = inside.read(Path::new(path), 100);
            assert!(matches!(read, Err(ReadError::NotRegular(_))), "{path}: {read:?}");
        }
        for path in ["../outside", "/etc/passwd", "sub/../../outside", ".."] {
            assert!(matches!(inside.read(Path::new(path), 100), Err(ReadError::System { .. })), "{path}");
            assert!(inside.directory(Path::new(path)).is_err(), "{path}");
        }
        assert!(inside.directory(Path::new("alias")).is_err());
        assert!(Directory::open_without_link(&inside.path().join("alias")).is_err());
    }

    #[test]
    fn lists_a_bounded_number_of_names() {
        let Scene { inside, _top } = scene();
        let (mut names, more) = inside.names(10).expect("listed");
        names.sort();
        assert_eq!(
            (names, more),
            (["alias", "fifo", "link", "sub", "up"].map(OsString::from).to_vec(), false)
        );
        let (names, more) = inside.names(2).expect("listed");
        assert_eq!((names.len(), more), (2, true));
        assert_eq!(inside.link(Path::new("alias")).expect("read"), Some("sub".into()));
        assert_eq!(inside.link(Path::new("sub")).expect("read"), None);
    }
}
