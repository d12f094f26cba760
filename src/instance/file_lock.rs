//! A lock of a file that ends with a value.

use std::fs::File;

/// A file whose lock this process holds until the value is dropped.
///
/// The drop releases the lock itself. Closing the file is not enough: a process that another thread starts has a copy of
/// the descriptor, and with it the lock, until it executes its program.
#[derive(Debug)]
#[must_use]
pub struct FileLock(File);

impl FileLock {
    /// Takes over a file that this process has locked.
    pub(super) fn of_locked(file: File) -> Self {
        Self(file)
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // If this fails, the lock ends when the file is closed.
        let _ = self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_of_the_descriptor_does_not_keep_the_lock() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("lock");
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
