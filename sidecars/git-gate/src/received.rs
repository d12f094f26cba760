//! Stores the body of a push in a file until it has arrived completely. git unpacks only one push at a time, so git
//! must not wait for a slow client.

use std::fs::{self, File};
use std::io::{self, Seek};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::body_error::BodyError;

/// The maximum total size in MiB of all unfinished pushes. This limit is twice the maximum size of one push. An
/// unfinished push occupies the file in which it is stored and, after git has unpacked it, its quarantine. Because of
/// this limit, pushes that wait for the user cannot fill the disk of the mirror.
const MOST_UNFINISHED: usize = 8 << 10;

static NUMBER: AtomicU64 = AtomicU64::new(0);

/// A file without a name on the mirror's file system. The kernel removes the file when it is closed.
pub(crate) struct Received(File);

impl Received {
    /// Creates an empty file.
    pub(crate) fn create(mirror: &Path) -> io::Result<Self> {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        // If the gate is killed before it has unlinked the file, the next start of the gate removes it. The name begins
        // with `tmp_`, like the names of git's temporary files.
        let path = mirror.join("objects").join(format!("tmp_push_{number}"));
        let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        fs::remove_file(&path)?;
        Ok(Self(file))
    }

    /// Returns the file for writing.
    pub(crate) fn writer(&self) -> io::Result<tokio::fs::File> {
        Ok(tokio::fs::File::from_std(self.0.try_clone()?))
    }

    /// Returns the file for reading from the beginning.
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

    /// Returns the disk space of a new push. The returned value holds no space until the push takes space.
    pub(crate) fn begin_push(&self) -> PushSpace {
        PushSpace { all: self.clone(), taken: None, left: 0 }
    }
}

/// The disk space of one push. Dropping it releases the space.
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

/// The permit to unpack and scan one push. Two tasks share this value. The permit is released when one task calls
/// [`end`](Self::end), or when both tasks have dropped the value.
pub(crate) struct UnpackTurn(Mutex<Option<OwnedSemaphorePermit>>);

impl UnpackTurn {
    pub(crate) fn new(permit: OwnedSemaphorePermit) -> Self {
        Self(Mutex::new(Some(permit)))
    }

    /// Releases the permit, so that the next push can be unpacked.
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
