//! Stores the body of a push in a file until it has arrived completely. git unpacks only one push at a time, so it must
//! not wait for a slow client.

use std::fs::{self, File};
use std::io::{self, Seek};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::body_error::BodyError;

/// The maximum size in MiB of all unfinished pushes, twice the size of the largest push. Until a push ends, it occupies
/// both this file and, once git has unpacked it, its quarantine. The limit keeps pushes that wait for the user from
/// filling the disk of the mirror.
const MOST_UNFINISHED: usize = 8 << 10;

static NUMBER: AtomicU64 = AtomicU64::new(0);

/// A file without a name, which the kernel removes when it is closed. The mirror's file system contains it.
pub(crate) struct Received(File);

impl Received {
    /// Creates an empty file.
    pub(crate) fn create(mirror: &Path) -> io::Result<Self> {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        // If the gate is killed here, its next start removes the file: its name begins like the names of git's
        // temporary files.
        let path = mirror.join("objects").join(format!("tmp_push_{number}"));
        let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        fs::remove_file(&path)?;
        Ok(Self(file))
    }

    /// The file, for writing.
    pub(crate) fn writer(&self) -> io::Result<tokio::fs::File> {
        Ok(tokio::fs::File::from_std(self.0.try_clone()?))
    }

    /// The file, for reading from its beginning.
    pub(crate) fn into_reader(mut self) -> io::Result<File> {
        self.0.rewind()?;
        Ok(self.0)
    }
}

/// The disk space that the unfinished pushes share.
#[derive(Clone)]
pub(crate) struct DiskSpace(Arc<Semaphore>);

impl Default for DiskSpace {
    fn default() -> Self {
        Self::of_mebibytes(MOST_UNFINISHED)
    }
}

impl DiskSpace {
    fn of_mebibytes(size: usize) -> Self {
        Self(Arc::new(Semaphore::new(size)))
    }

    /// The space of a push that has not arrived yet.
    pub(crate) fn begin_push(&self) -> PushSpace {
        PushSpace { all: self.clone(), taken: None, left: 0 }
    }
}

/// The disk space of one push, until it is dropped.
pub(crate) struct PushSpace {
    all: DiskSpace,
    taken: Option<OwnedSemaphorePermit>,
    /// The number of bytes of the taken space that are not used yet.
    left: u64,
}

impl PushSpace {
    /// Takes space for the next bytes.
    ///
    /// # Errors
    /// Fails with [`BodyError::Unfinished`] if the unfinished pushes have taken all space.
    pub(crate) fn take(&mut self, bytes: u64) -> Result<(), BodyError> {
        while self.left < bytes {
            let more = Arc::clone(&self.all.0).try_acquire_owned().map_err(|_| BodyError::Unfinished)?;
            self.left += 1 << 20;
            match &mut self.taken {
                Some(taken) => taken.merge(more),
                none => *none = Some(more),
            }
        }
        self.left -= bytes;
        Ok(())
    }
}

/// The right to unpack and scan a push. Two tasks hold the right. It ends when one task ends it, or when both have
/// dropped it.
pub(crate) struct UnpackTurn(Mutex<Option<OwnedSemaphorePermit>>);

impl UnpackTurn {
    pub(crate) fn new(permit: OwnedSemaphorePermit) -> Self {
        Self(Mutex::new(Some(permit)))
    }

    /// Lets the next push be unpacked.
    pub(crate) fn end(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_pushes_share_the_disk_space() {
        let all = DiskSpace::of_mebibytes(4);
        let (mut first, mut second) = (all.begin_push(), all.begin_push());
        first.take(3 << 20).expect("space");
        second.take(1).expect("a rest");
        second.take((1 << 20) - 1).expect("the rest");
        assert!(matches!(second.take(1), Err(BodyError::Unfinished)));
        assert!(matches!(all.begin_push().take(1), Err(BodyError::Unfinished)), "a third push");
        drop(first);
        second.take(3 << 20).expect("the first has ended");
        drop(second);
        all.begin_push().take(4 << 20).expect("all have ended");
    }
}
