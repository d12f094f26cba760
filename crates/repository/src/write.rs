//! Writes files through descriptors beneath a directory that other processes may change at the same time.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::{Component, Path};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::directory::Directory;

/// The flags for the creation of a file.
const NEW: OFlags = OFlags::WRONLY
    .union(OFlags::CREATE)
    .union(OFlags::EXCL)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// The flags for opening a file to append to it. Opening a named pipe does not block.
const APPEND: OFlags = OFlags::WRONLY
    .union(OFlags::APPEND)
    .union(OFlags::CREATE)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// A new file. If it is not renamed, it is removed when this value is dropped.
#[derive(Debug)]
pub(crate) struct NewFile<'a> {
    directory: &'a Directory,
    name: &'a OsStr,
    file: File,
    is_renamed: bool,
}

impl Directory {
    /// Opens a directory beneath this directory. Missing directories are created. They get the group permissions of
    /// their parent, as in a repository that a group shares.
    pub(crate) fn directory_or_new(&self, relative: &Path) -> io::Result<Self> {
        let mut found = self.directory(Path::new(""))?.ok_or(Errno::NOENT)?;
        for component in relative.components() {
            let Component::Normal(name) = component else { return Err(Errno::INVAL.into()) };
            let name = Path::new(name);
            if let Some(next) = found.directory(name)? {
                found = next;
                continue;
            }
            match rustix::fs::mkdirat(&found, name, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            let next = found.directory(name)?.ok_or(Errno::NOENT)?;
            let shared =
                Mode::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) & Mode::from_raw_mode(0o2070);
            if shared.contains(Mode::WGRP) {
                let own = Mode::from_raw_mode(rustix::fs::fstat(&next)?.st_mode);
                rustix::fs::fchmod(&next, own | shared)?;
            }
            found = next;
        }
        Ok(found)
    }

    /// Creates a directory directly in this directory.
    ///
    /// # Errors
    /// Returns the I/O error of the failed system call; `EXIST` if the directory already has an entry of this name.
    pub fn new_directory(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::mkdirat(self, name, Mode::from_raw_mode(0o777))?)
    }

    /// Creates a file directly in this directory. Only the owner of the file can access it.
    ///
    /// # Errors
    /// Fails in the same cases as [`Self::new_directory`].
    pub fn new_file(&self, name: &OsStr) -> io::Result<File> {
        self.new_file_with(name, Mode::RUSR | Mode::WUSR)
    }

    /// Creates a file directly in this directory with this mode, from which the umask removes bits.
    pub(crate) fn new_file_with(&self, name: &OsStr, mode: Mode) -> io::Result<File> {
        Ok(rustix::fs::openat(self, name, NEW, mode)?.into())
    }

    /// Removes a file or link directly in this directory.
    ///
    /// # Errors
    /// Returns the I/O error of the failed system call.
    pub(crate) fn remove_file(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(self, name, AtFlags::empty())?)
    }

    /// Creates a link to `target` directly in this directory.
    ///
    /// # Errors
    /// Fails in the same cases as [`Self::new_directory`].
    pub fn new_link(&self, name: &OsStr, target: &Path) -> io::Result<()> {
        Ok(rustix::fs::symlinkat(target, self, name)?)
    }

    /// Moves an entry of this directory into another directory on the same file system. The entry replaces an existing
    /// file, or an empty directory, of the same type.
    ///
    /// # Errors
    /// Returns the I/O error of the failed system call.
    pub fn rename(&self, name: &OsStr, to: &Self, new: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::renameat(self, name, to, new)?)
    }

    /// Creates a file directly in this directory. The directory must not have an entry of this name. If the group may
    /// write to the directory and `mode` lets the owner write the file, the group may also write the file.
    pub(crate) fn create<'a>(&'a self, name: &'a OsStr, mode: u32) -> io::Result<NewFile<'a>> {
        #[allow(clippy::cast_possible_truncation, reason = "the type differs between systems")]
        let bits = |mode: u32| Mode::from_raw_mode(mode as rustix::fs::RawMode);
        let file = rustix::fs::openat(self, name, NEW, bits(mode))?;
        let parent = Mode::from_raw_mode(rustix::fs::fstat(self)?.st_mode);
        if parent.contains(Mode::WGRP) && mode & 0o200 != 0 {
            let own = Mode::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
            rustix::fs::fchmod(&file, own | Mode::RGRP | Mode::WGRP)?;
        }
        Ok(NewFile { directory: self, name, file: file.into(), is_renamed: false })
    }

    /// Opens a file directly in this directory to append to it. If the file does not exist, it is created. A file with
    /// another hard link is refused, because that link can be outside of the directory.
    pub(crate) fn append(&self, name: &OsStr) -> io::Result<File> {
        match rustix::fs::statat(self, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile => {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            Ok(_) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let file = rustix::fs::openat(self, name, APPEND, Mode::from_raw_mode(0o666))?;
        let opened = rustix::fs::fstat(&file)?;
        let is_regular = FileType::from_raw_mode(opened.st_mode) == FileType::RegularFile;
        if !is_regular || opened.st_nlink > 1 {
            return Err(io::Error::other("it is not a regular file with one name"));
        }
        Ok(file.into())
    }

    /// Removes an empty directory, or a tree of empty directories, as git does at the path of a new reference. Fails
    /// with `NOTEMPTY` if the directory contains anything else, or more than `levels` nested directories.
    pub(crate) fn remove_empty(&self, name: &Path, levels: usize) -> io::Result<()> {
        const MOST: usize = 1000;
        let opened = self.directory(name).map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::NOTDIR | Errno::LOOP) => Errno::NOTEMPTY.into(),
            _ => error,
        });
        let Some(inside) = opened? else { return Ok(()) };
        let (names, more) = inside.names(MOST)?;
        let levels = levels.checked_sub(1).filter(|_| !more).ok_or(Errno::NOTEMPTY)?;
        for name in names {
            inside.remove_empty(Path::new(&name), levels)?;
        }
        Ok(rustix::fs::unlinkat(self, name, AtFlags::REMOVEDIR)?)
    }
}

impl NewFile<'_> {
    /// Writes all bytes of `from`.
    pub(crate) fn copy_from(&mut self, from: &mut (impl Read + Seek)) -> io::Result<()> {
        from.rewind()?;
        io::copy(from, &mut self.file).map(drop)
    }

    /// Writes these bytes.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    /// Syncs the file to disk, and renames it to `name` in its directory. An existing file of this name is replaced.
    pub(crate) fn rename(mut self, name: &OsStr) -> io::Result<()> {
        self.file.sync_all()?;
        rustix::fs::renameat(self.directory, self.name, self.directory, name)?;
        self.is_renamed = true;
        rustix::fs::fsync(self.directory).or_else(|error| match error {
            // Some file systems do not support syncing a directory.
            Errno::INVAL | Errno::BADF => Ok(()),
            error => Err(error.into()),
        })
    }
}

impl Drop for NewFile<'_> {
    fn drop(&mut self) {
        if !self.is_renamed {
            let _ = rustix::fs::unlinkat(self.directory, self.name, AtFlags::empty());
        }
    }
}
