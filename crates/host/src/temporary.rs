//! Temporary directories of a command: private to the user, and on the same disk as the bottles' files.
//!
//! ```text
//! $BOTTLE_HOME/tmp/NAME               mode 0700, removed when its value is dropped
//! $BOTTLE_HOME/tmp/NAME/.lock         its process holds this lock; if it is free, the process was killed
//! $BOTTLE_HOME/tmp/NAME/outside       the path of a temporary file or directory on another disk
//! ```
//! The system's temporary directory is not used: other users can list it, it is often in memory, and `bottle cleanup`
//! could not find out which files in it a killed command has left.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tempfile::{NamedTempFile, TempDir};

use super::file_lock::{FileLock, try_lock};
use super::{Host, disk, files};

/// The name of the lock file in a temporary directory.
const LOCK: &str = ".lock";

/// The name of the file that contains the path of the temporary file or directory on another disk.
const OUTSIDE: &str = "outside";

/// The maximum length in bytes of the path in the file [`OUTSIDE`]: the kernel's PATH_MAX.
const PATH_MAX: u64 = 4096;

/// The name prefix of temporary files and directories on another disk. A cleanup removes no path on another disk
/// without this prefix.
const PREFIX: &str = ".bottle-unfinished-";

/// The maximum number of attempts to create the directory. An attempt fails if a concurrent cleanup removes the new
/// directory before this process locks it.
const ATTEMPTS: usize = 8;

/// A directory with mode 0700 in `$BOTTLE_HOME/tmp`. It is removed when this value is dropped. If the process is
/// killed, `bottle cleanup` removes it.
#[derive(Debug)]
pub struct Temporary {
    // Removed before the lock is released, so that no cleanup finds a partly removed directory.
    directory: TempDir,
    _lock: FileLock,
}

impl Host {
    /// Creates a directory whose name begins with `prefix` and that contains only its lock file `.lock`. Only this user
    /// can access it, whatever the umask is.
    ///
    /// # Errors
    /// Fails if `$BOTTLE_HOME/tmp` cannot be created, is a link or belongs to another user, or if the disk has no file
    /// locks.
    pub fn temporary(&self, prefix: &str) -> io::Result<Temporary> {
        let parent = parent(&self.home);
        files::private_directory(&parent)?;
        for _ in 0..ATTEMPTS {
            let directory = directory_in(&parent, prefix)?;
            match lock(directory.path()) {
                Ok(lock) => return Ok(Temporary { directory, _lock: lock }),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("another process removes new temporary directories"))
    }
}

impl Temporary {
    /// Returns the path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Creates an empty hidden file with mode 0600 in the directory `other`, which may be on another disk. The file is
    /// removed when the returned value is dropped, or by `bottle cleanup` if this process is killed. Each temporary
    /// directory may have only one such file or directory at a time.
    ///
    /// # Errors
    /// Fails if the file cannot be created.
    pub fn file_in(&self, other: &Path) -> io::Result<NamedTempFile> {
        self.outside(other, |path| files::private_file().write(true).create_new(true).open(path))
    }

    /// Creates an empty hidden directory with mode 0700 in the directory `other`. It is removed like the file of
    /// [`Temporary::file_in`].
    ///
    /// # Errors
    /// Fails if the directory cannot be created.
    pub fn directory_in(&self, other: &Path) -> io::Result<Outside> {
        let made = self.outside(other, |path| fs::DirBuilder::new().mode(0o700).create(path))?;
        Ok(Outside(made.into_temp_path().keep()?))
    }

    /// Makes a file or directory with an unused name in the directory `other`.
    fn outside<T>(
        &self,
        other: &Path,
        make: impl Fn(&Path) -> io::Result<T>,
    ) -> io::Result<NamedTempFile<T>> {
        let other = std::path::absolute(other)?;
        tempfile::Builder::new().prefix(PREFIX).make_in(other, |path| {
            // The path is stored before the file is made, so that a cleanup finds the file if this process is killed.
            fs::write(self.path().join(OUTSIDE), path.as_os_str().as_bytes())?;
            make(path)
        })
    }
}

/// A directory outside of a temporary directory. It is removed when this value is dropped.
#[derive(Debug)]
pub struct Outside(PathBuf);

impl Outside {
    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        // If the removal fails, for example because a subdirectory is not writable, the directory stays, visible to the
        // user.
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl AsRef<Path> for Temporary {
    fn as_ref(&self) -> &Path {
        self.path()
    }
}

/// Creates a directory with mode 0700 in `parent`, for content that the caller then renames to its final path in
/// `parent`. The directory is removed when the returned value is dropped. `bottle cleanup` does not remove the
/// directory if the process is killed, so use [`Host::temporary`] for all other purposes.
///
/// # Errors
/// Fails if the directory cannot be created.
pub fn directory_in(parent: &Path, prefix: &str) -> io::Result<TempDir> {
    let private = Permissions::from_mode(0o700);
    tempfile::Builder::new().prefix(prefix).permissions(private).tempdir_in(parent).map_err(disk::plain)
}

/// Lists the paths that killed processes left: each directory in `$BOTTLE_HOME/tmp` whose lock is free. If such a
/// directory names a path on another disk, the list contains that path too. The list is sorted. [`remove_leftover`]
/// removes these paths.
///
/// # Errors
/// Fails if `$BOTTLE_HOME/tmp` exists but cannot be read.
pub fn leftovers(home: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(parent(home)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if !is_locked(&path) {
            found.extend(left_outside(&path));
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Removes a path that [`leftovers`] returned. If a process has locked the directory meanwhile, the directory stays,
/// because that process has just created it.
///
/// # Errors
/// Fails if the path cannot be removed.
pub fn remove_leftover(path: &Path) -> io::Result<()> {
    let is_directory = path.symlink_metadata().is_ok_and(|found| found.is_dir());
    if !is_directory {
        return ignore_missing(fs::remove_file(path));
    }
    if is_outside(path) {
        return ignore_missing(fs::remove_dir_all(path));
    }
    match FileLock::at(&path.join(LOCK), try_lock) {
        Ok(Some(_lock)) => ignore_missing(fs::remove_dir_all(path)),
        Ok(None) => Ok(()),
        Err(error) => ignore_missing(Err(error)),
    }
}

fn ignore_missing(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Returns the path of `$BOTTLE_HOME/tmp`.
fn parent(home: &Path) -> PathBuf {
    home.join("tmp")
}

/// Locks a new directory. Fails with `NotFound` if a cleanup has removed it.
fn lock(directory: &Path) -> io::Result<FileLock> {
    let lock = FileLock::at(&directory.join(LOCK), |file| file.lock().map(|()| true))?;
    lock.ok_or_else(|| io::ErrorKind::WouldBlock.into())
}

/// Whether a process holds the lock of a directory. If the lock cannot be tested, it is treated as held.
fn is_locked(directory: &Path) -> bool {
    match File::open(directory.join(LOCK)) {
        Ok(file) => match file.try_lock_shared() {
            Ok(()) => {
                drop(FileLock::of_locked(file));
                false
            }
            Err(_) => true,
        },
        Err(error) => !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
    }
}

/// Returns the path that a killed process left outside of its temporary directory. `None` if there is no such path.
fn left_outside(directory: &Path) -> Option<PathBuf> {
    let mut path = Vec::new();
    File::open(directory.join(OUTSIDE)).ok()?.take(PATH_MAX).read_to_end(&mut path).ok()?;
    let path = PathBuf::from(OsString::from_vec(path));
    let is_there = path.symlink_metadata().is_ok_and(|found| found.is_file() || found.is_dir());
    (path.is_absolute() && is_outside(&path) && is_there).then_some(path)
}

/// Whether a path has the file name of a temporary file or directory on another disk.
fn is_outside(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_bytes().starts_with(PREFIX.as_bytes()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        path.symlink_metadata().expect("there").mode() & 0o7777
    }

    #[test]
    fn a_directory_is_private_and_goes_with_its_value() {
        let home = tempfile::tempdir().expect("directory");
        let host = Host::of_home(home.path());
        let parent = parent(home.path());
        fs::create_dir(&parent).expect("an older bottle's");
        fs::set_permissions(&parent, Permissions::from_mode(0o777)).expect("mode");
        let temporary = host.temporary("diff-").expect("made");
        assert_eq!((mode(&parent), mode(temporary.path())), (0o700, 0o700));
        assert_eq!(mode(&temporary.path().join(LOCK)), 0o600);
        assert_eq!(temporary.path().parent(), Some(parent.as_path()));
        drop(temporary);
        assert_eq!(fs::read_dir(parent).expect("listed").count(), 0);
    }

    #[test]
    fn a_link_is_not_followed() {
        let home = tempfile::tempdir().expect("directory");
        let elsewhere = tempfile::tempdir().expect("directory");
        fs::set_permissions(elsewhere.path(), Permissions::from_mode(0o755)).expect("mode");
        symlink(elsewhere.path(), parent(home.path())).expect("link");
        Host::of_home(home.path()).temporary("diff-").expect_err("a link");
        assert_eq!(mode(elsewhere.path()), 0o755);
    }

    #[test]
    fn a_cleanup_removes_what_a_killed_process_left_and_nothing_else() {
        let home = tempfile::tempdir().expect("directory");
        assert!(leftovers(home.path()).expect("there is no tmp yet").is_empty());
        let host = Host::of_home(home.path());
        let living = host.temporary("edit-").expect("made");
        let killed = host.temporary("diff-").expect("made");
        let outside = killed.directory_in(home.path()).expect("directory");
        fs::write(outside.path().join("copied"), "x").expect("written");
        let kept = outside.path().to_owned();
        // The outside directory is not removed, as if its process had been killed.
        let _stays = std::mem::ManuallyDrop::new(outside);
        // A killed process releases the lock and removes no files.
        let Temporary { directory, _lock } = killed;
        let killed = directory.keep();
        drop(_lock);
        let unlocked = parent(home.path()).join("edit-new");
        fs::create_dir(&unlocked).expect("killed before it had a lock");
        let found = leftovers(home.path()).expect("listed");
        assert_eq!(found, [kept.clone(), killed.clone(), unlocked.clone()]);
        // The process that created the directory `edit-new` was not killed, and locks the directory meanwhile.
        let late = lock(&unlocked).expect("locked");
        found.iter().for_each(|path| remove_leftover(path).expect("removed"));
        assert!(living.path().exists() && unlocked.exists());
        assert!(!killed.exists() && !kept.exists());
        drop(late);
        assert_eq!(leftovers(home.path()).expect("listed"), [unlocked]);
    }

    #[test]
    fn what_is_outside_is_found_until_it_is_removed_or_has_its_name() {
        let home = tempfile::tempdir().expect("directory");
        let temporary = Host::of_home(home.path()).temporary("export-").expect("made");
        assert_eq!(left_outside(temporary.path()), None);
        let file = temporary.file_in(home.path()).expect("file");
        assert_eq!(left_outside(temporary.path()).as_deref(), Some(file.path()));
        file.persist(home.path().join("named")).expect("named");
        assert_eq!(left_outside(temporary.path()), None);
        let directory = temporary.directory_in(home.path()).expect("directory");
        assert_eq!(mode(directory.path()), 0o700);
        assert_eq!(left_outside(temporary.path()).as_deref(), Some(directory.path()));
        fs::write(directory.path().join("file"), "x").expect("written");
        drop(directory);
        assert_eq!(left_outside(temporary.path()), None);
    }

    #[test]
    fn a_path_that_is_no_temporary_file_is_not_removed() {
        let home = tempfile::tempdir().expect("directory");
        let temporary = Host::of_home(home.path()).temporary("export-").expect("made");
        let (named, link) = (home.path().join("named"), home.path().join(format!("{PREFIX}link")));
        fs::write(&named, "a user's").expect("written");
        symlink(&named, &link).expect("link");
        for path in [&named, &link, home.path(), Path::new(".bottle-unfinished-relative"), Path::new("")] {
            fs::write(temporary.path().join(OUTSIDE), path.as_os_str().as_bytes()).expect("written");
            assert_eq!(left_outside(temporary.path()), None, "{path:?}");
        }
    }
}
