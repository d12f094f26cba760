//! A file lock that is released when its value is dropped.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// A file whose lock this process holds until the value is dropped.
///
/// Dropping this value releases the lock explicitly, because closing the file is not enough: if another thread starts a
/// process, that process has a copy of the descriptor, and thus the lock, until it calls `exec`.
#[derive(Debug)]
#[must_use]
pub struct FileLock(File);

impl FileLock {
    /// Wraps a file that this process has already locked.
    pub fn of_locked(file: File) -> Self {
        Self(file)
    }

    /// Locks the file at `path`, which is created if it is missing. `take` locks the opened file. If `take` returns
    /// false, because another process holds the lock, the result is `None`. If the file is removed or replaced before
    /// `take` acquires the lock, the new file at `path` is locked instead.
    ///
    /// # Errors
    /// Fails if the file cannot be opened or locked.
    pub fn at(path: &Path, take: impl Fn(&File) -> io::Result<bool>) -> io::Result<Option<Self>> {
        loop {
            let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
            if !take(&file)? {
                return Ok(None);
            }
            let lock = Self(file);
            if lock.is_at(path) {
                return Ok(Some(lock));
            }
        }
    }

    /// Whether the locked file is the one at `path`.
    fn is_at(&self, path: &Path) -> bool {
        let same =
            |own: fs::Metadata, found: fs::Metadata| (own.dev(), own.ino()) == (found.dev(), found.ino());
        fs::metadata(path).is_ok_and(|found| self.0.metadata().is_ok_and(|own| same(own, found)))
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // If this call fails, the lock is released when the file is closed.
        let _ = self.0.unlock();
    }
}

/// Locks a file exclusively. Returns false if another process holds a lock of the file.
///
/// # Errors
/// Fails if the file system has no locks.
pub fn try_lock(file: &File) -> io::Result<bool> {
    tried(file.try_lock())
}

/// Acquires a shared lock of a file. Returns false if another process holds the exclusive lock.
///
/// # Errors
/// Fails if the file system has no locks.
pub fn try_lock_shared(file: &File) -> io::Result<bool> {
    tried(file.try_lock_shared())
}

fn tried(lock: Result<(), TryLockError>) -> io::Result<bool> {
    match lock {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_replaced_before_it_was_locked_is_not_the_lock() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("lock");
        let replaced = std::cell::Cell::new(false);
        let lock = FileLock::at(&path, |file| {
            if !replaced.replace(true) {
                fs::remove_file(&path)?;
            }
            file.lock().map(|()| true)
        });
        let _lock = lock.expect("locked").expect("the lock");
        let other = File::open(&path).expect("the second file");
        assert!(other.try_lock_shared().is_err());
        assert!(FileLock::at(&path, |_| Ok(false)).expect("tried").is_none());
    }

    #[test]
    fn a_copy_of_the_descriptor_does_not_keep_the_lock() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("lock");
        let file = File::create(&path).expect("file");
        file.lock().expect("locked");
        let copy = file.try_clone().expect("a copy, as a new process has it");
        let other = File::open(&path).expect("opened");
        let lock = FileLock::of_locked(file);
        assert!(other.try_lock_shared().is_err());
        drop(lock);
        assert!(other.try_lock_shared().is_ok());
        drop(copy);
    }
}
