//! Keeps the permissions, the owner and the extended attributes of the user's files, which git does not store. When a
//! file is changed, a new file replaces it. Without the kept permissions, a private file would become readable by
//! others.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{
    FileType, Gid, Mode, RawMode, Stat, Uid, XattrFlags, fchmod, fchown, fgetxattr, flistxattr, fsetxattr,
    fstat,
};
use rustix::io::Errno;

use crate::directory::{Directory, ReadError};

/// The maximum number of bytes of all attribute names, and the maximum size of one attribute value (`xattr(7)`).
const XATTR_MAX: usize = 64 << 10;

/// The name of the attribute with the access control list of a file (`acl(5)`).
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";

/// The bits of a mode that are restored. Set-id bits are not restored, because they were meant for the old content.
const BITS: RawMode = 0o1777;

/// The bits that make a file executable.
const EXECUTE: RawMode = 0o111;

/// The permissions, the owner and the attributes of a file or directory, which git does not store.
#[derive(Debug)]
pub struct Permissions {
    status: Stat,
    attributes: Vec<(CString, Vec<u8>)>,
}

impl Permissions {
    /// Reads the permissions of a regular file or a directory beneath `directory`. `None` if neither has this path.
    ///
    /// # Errors
    /// Returns the I/O error of the failed system call.
    pub fn of(directory: &Directory, path: &Path) -> io::Result<Option<Self>> {
        let Some(file) = open(directory, path)? else { return Ok(None) };
        let status = fstat(&file)?;
        let attributes = attributes(&file)?;
        Ok(Some(Self { status, attributes }))
    }

    /// Applies the permissions to the file or directory at `path`, if it has the same type as before. A file stays
    /// executable or not executable, as it is now. If only root may set the old owner, the owner is not restored.
    ///
    /// # Errors
    /// Returns the I/O error of the failed system call.
    pub fn restore(&self, directory: &Directory, path: &Path) -> io::Result<()> {
        let Some(file) = open(directory, path)? else { return Ok(()) };
        let now = fstat(&file)?;
        if kind(&now) != kind(&self.status) {
            return Ok(());
        }
        self.give(&file)
    }

    /// Applies the permissions to an open file or directory, as [`Self::restore`] does.
    ///
    /// # Errors
    /// Returns the I/O error of the failed system call.
    pub fn give(&self, file: &impl AsFd) -> io::Result<()> {
        let now = fstat(file)?;
        for (name, value) in &self.attributes {
            match fsetxattr(file, &**name, value, XattrFlags::empty()) {
                // The new path of a renamed file can be on another file system, which does not support the attribute.
                Err(Errno::NOTSUP) => {}
                set => set?,
            }
        }
        if (now.st_uid, now.st_gid) != (self.status.st_uid, self.status.st_gid) {
            let owner = (Uid::from_raw(self.status.st_uid), Gid::from_raw(self.status.st_gid));
            match fchown(file, Some(owner.0), Some(owner.1)) {
                Err(Errno::PERM) => {}
                changed => changed?,
            }
        }
        // The mode is set last, because setting an access control list changes the mode.
        Ok(fchmod(file, Mode::from_raw_mode(self.mode(&now)))?)
    }

    fn mode(&self, now: &Stat) -> RawMode {
        let before = self.status.st_mode & BITS;
        let is_executable = |mode: RawMode| mode & 0o100 != 0;
        if kind(now) == FileType::Directory || is_executable(before) == is_executable(now.st_mode) {
            return before;
        }
        match is_executable(now.st_mode) {
            // Every user who may read the file gets the permission to execute it.
            true => before | (before & 0o444) >> 2,
            false => before & !EXECUTE,
        }
    }
}

/// The permissions of files and of the directories above them, as they were before a change. A directory is removed and
/// made again if the change deletes all of its files.
#[derive(Debug)]
pub struct KeptPermissions {
    /// The permissions. The key is the path.
    all: BTreeMap<PathBuf, Permissions>,
    /// The old path of each renamed file. The key is the new path.
    renamed: BTreeMap<PathBuf, PathBuf>,
}

impl KeptPermissions {
    /// Reads the permissions of the files at these paths beneath `directory`, as far as the files exist. `renamed`
    /// contains the old path of each renamed file; the key is the new path.
    ///
    /// # Errors
    /// Returns the I/O error of the failed system call.
    pub fn read(
        directory: &Directory,
        paths: &[PathBuf],
        renamed: BTreeMap<PathBuf, PathBuf>,
    ) -> io::Result<Self> {
        let around = paths.iter().flat_map(|path| path.ancestors());
        let around: BTreeSet<&Path> = around.filter(|path| !path.as_os_str().is_empty()).collect();
        let all = around.into_iter().filter_map(|path| {
            let found = Permissions::of(directory, path).transpose()?;
            Some(found.map(|found| (path.to_owned(), found)))
        });
        Ok(Self { all: all.collect::<io::Result<_>>()?, renamed })
    }

    /// Returns the permissions of the file that is replaced at this path, or that is renamed to this path. `None` for a
    /// new file.
    #[must_use]
    pub fn of_file(&self, path: &Path) -> Option<&Permissions> {
        let here = self.all.get(path).or_else(|| self.all.get(self.renamed.get(path)?));
        here.filter(|found| kind(&found.status) == FileType::RegularFile)
    }

    /// Restores the permissions of the directories that were made again.
    ///
    /// # Errors
    /// Returns the I/O error of the failed system call.
    pub fn restore_directories(&self, directory: &Directory) -> io::Result<()> {
        let directories = self.all.iter().filter(|(_, found)| kind(&found.status) == FileType::Directory);
        // The subdirectories come before their parent, because the permissions of the parent may prevent opening them.
        directories.rev().try_for_each(|(path, found)| found.restore(directory, path))
    }
}

fn kind(status: &Stat) -> FileType {
    FileType::from_raw_mode(status.st_mode)
}

/// Opens a regular file or a directory, without following a link.
fn open(directory: &Directory, path: &Path) -> io::Result<Option<std::os::fd::OwnedFd>> {
    match directory.file(path) {
        Ok(file) => Ok(file.map(Into::into)),
        Err(ReadError::NotRegular(_)) => match directory.directory(path) {
            Ok(found) => found.map(|found| found.as_fd().try_clone_to_owned()).transpose(),
            // The entry is a link or something else that git does not write.
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::NOTDIR | Errno::LOOP)) => {
                Ok(None)
            }
            Err(error) => Err(error),
        },
        Err(ReadError::System { error, .. }) => Err(error),
        Err(error) => Err(io::Error::other(error)),
    }
}

/// Reads the user's extended attributes and the access control list of a file. All other attributes belong to the
/// system and are not read.
fn attributes(file: impl AsFd) -> io::Result<Vec<(CString, Vec<u8>)>> {
    let mut names = vec![0; XATTR_MAX];
    let length = match flistxattr(&file, &mut names[..]) {
        Err(Errno::NOTSUP) => 0,
        length => length?,
    };
    let mut found = Vec::new();
    let mut value = Vec::new();
    for name in names[..length].split_inclusive(|byte| *byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        if !name.to_bytes().starts_with(b"user.") && name.to_bytes() != ACCESS_LIST {
            continue;
        }
        value.resize(XATTR_MAX, 0);
        match fgetxattr(&file, name, &mut value[..]) {
            // The attribute was removed in the meantime.
            Err(Errno::NODATA) => {}
            length => found.push((name.to_owned(), value[..length?].to_vec())),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        path.symlink_metadata().expect("metadata").permissions().mode() & 0o7777
    }

    fn make(path: &Path, mode: u32) {
        let _ = fs::remove_file(path);
        fs::write(path, "x").expect("written");
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set");
    }

    #[test]
    fn a_file_that_was_written_again_has_its_permissions() {
        let top = tempfile::tempdir().expect("a directory");
        let directory = Directory::open(top.path()).expect("opened");
        let (name, path) = (Path::new("file"), top.path().join("file"));
        // The cases: the mode of the old file, the mode of the new file, and the resulting mode.
        for (before, written, expected) in [
            (0o600, 0o644, 0o600),
            (0o664, 0o644, 0o664),
            (0o640, 0o755, 0o750),
            (0o600, 0o755, 0o700),
            (0o700, 0o755, 0o700),
            (0o711, 0o755, 0o711),
            (0o755, 0o644, 0o644),
            (0o711, 0o644, 0o600),
            (0o4755, 0o755, 0o755),
        ] {
            make(&path, before);
            let kept = Permissions::of(&directory, name).expect("read").expect("a file");
            fs::rename(&path, top.path().join("old")).expect("renamed");
            make(&path, written);
            kept.restore(&directory, name).expect("restored");
            assert_eq!(mode(&path), expected, "{before:o} {written:o}");
        }
    }

    #[test]
    fn a_link_and_a_directory_do_not_get_those_of_a_file() {
        let top = tempfile::tempdir().expect("a directory");
        let directory = Directory::open(top.path()).expect("opened");
        let (name, path) = (Path::new("file"), top.path().join("file"));
        make(&path, 0o600);
        let kept = Permissions::of(&directory, name).expect("read").expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("set");
        fs::rename(&path, top.path().join("target")).expect("renamed");
        symlink("target", &path).expect("a link");
        kept.restore(&directory, name).expect("restored");
        assert_eq!(mode(&top.path().join("target")), 0o644);
        assert!(Permissions::of(&directory, name).expect("read").is_none());
        assert!(Permissions::of(&directory, Path::new("none")).expect("read").is_none());
        fs::remove_file(&path).expect("removed");
        fs::create_dir(&path).expect("made");
        kept.restore(&directory, name).expect("restored");
        assert_ne!(mode(&path), 0o600, "a directory is no file");
    }

    #[test]
    fn a_directory_that_was_made_again_has_its_permissions_and_attributes() {
        let top = tempfile::tempdir().expect("a directory");
        let directory = Directory::open(top.path()).expect("opened");
        let (name, path) = (Path::new("private"), top.path().join("private"));
        fs::create_dir(&path).expect("made");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("set");
        let has_attributes = rustix::fs::setxattr(&path, "user.origin", b"mine", XattrFlags::empty()).is_ok();
        let kept = Permissions::of(&directory, name).expect("read").expect("a directory");
        fs::rename(&path, top.path().join("old")).expect("renamed");
        fs::create_dir(&path).expect("made");
        kept.restore(&directory, name).expect("restored");
        assert_eq!(mode(&path), 0o700);
        let mut value = [0; 4];
        let read = rustix::fs::getxattr(&path, "user.origin", &mut value);
        assert_eq!(read.is_ok_and(|_| value == *b"mine"), has_attributes);
    }
}
