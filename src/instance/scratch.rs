//! A command's temporary folder, and its temporary file outside of it. After a crash, a cleanup finds both.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use tempfile::{NamedTempFile, TempDir};

use super::file_lock::FileLock;

/// The file in the folder that contains the path of the file outside of it.
const OUTSIDE: &str = "file-outside";

/// The maximum length of that path in bytes, which is the kernel's PATH_MAX.
const PATH_MAX: u64 = 4096;

/// The name prefix of files outside of the folder. A cleanup removes only files with such a name.
const PREFIX: &str = ".bottle-unfinished-";

/// A temporary folder whose lock this process holds. It is removed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Scratch {
    folder: TempDir,
    _lock: FileLock,
}

impl Scratch {
    /// A folder with its lock.
    pub(super) fn new(folder: TempDir, lock: FileLock) -> Self {
        Self { folder, _lock: lock }
    }

    /// The path of the folder.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Creates an empty hidden file in another folder, for example of another disk. The file is removed when the
    /// returned value is dropped. There may be one such file at a time.
    ///
    /// # Errors
    /// When the file cannot be created.
    pub(crate) fn file_in(&self, other: &Path) -> io::Result<NamedTempFile> {
        let other = std::path::absolute(other)?;
        tempfile::Builder::new().prefix(PREFIX).make_in(other, |path| {
            // If this process is killed after the file exists, a cleanup has to know its path.
            fs::write(self.folder().join(OUTSIDE), path.as_os_str().as_bytes())?;
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
        })
    }
}

/// The file outside of a temporary folder that a killed process left. `None` if there is none.
pub(super) fn file_outside(folder: &Path) -> Option<PathBuf> {
    let mut path = Vec::new();
    File::open(folder.join(OUTSIDE)).ok()?.take(PATH_MAX).read_to_end(&mut path).ok()?;
    let path = PathBuf::from(OsString::from_vec(path));
    let is_named = path.file_name()?.as_bytes().starts_with(PREFIX.as_bytes());
    let is_file = path.symlink_metadata().is_ok_and(|found| found.is_file());
    (path.is_absolute() && is_named && is_file).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(home: &Path) -> Scratch {
        let folder = tempfile::tempdir_in(home).expect("folder");
        let lock = FileLock::of_locked(File::create(folder.path().join("lock")).expect("lock"));
        Scratch::new(folder, lock)
    }

    #[test]
    fn the_file_outside_is_found_until_it_is_removed_or_has_its_name() {
        let home = tempfile::tempdir().expect("folder");
        let scratch = scratch(home.path());
        assert_eq!(file_outside(scratch.folder()), None);
        let file = scratch.file_in(home.path()).expect("file");
        assert_eq!(file_outside(scratch.folder()).as_deref(), Some(file.path()));
        file.persist(home.path().join("named")).expect("named");
        assert_eq!(file_outside(scratch.folder()), None);
    }

    #[test]
    fn a_path_that_is_no_temporary_file_is_not_removed() {
        let home = tempfile::tempdir().expect("folder");
        let scratch = scratch(home.path());
        let (named, link) = (home.path().join("named"), home.path().join(format!("{PREFIX}link")));
        fs::write(&named, "a user's").expect("written");
        std::os::unix::fs::symlink(&named, &link).expect("link");
        for path in [&named, &link, home.path(), Path::new(".bottle-unfinished-relative"), Path::new("")] {
            fs::write(scratch.folder().join(OUTSIDE), path.as_os_str().as_bytes()).expect("written");
            assert_eq!(file_outside(scratch.folder()), None, "{path:?}");
        }
    }
}
