//! Stores the body of a push in a file until it has arrived completely. git unpacks only one push at a time, and does
//! not wait for a slow client meanwhile.

use std::fs::{self, File};
use std::io::{self, Seek};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::sync::OwnedSemaphorePermit;

static NUMBER: AtomicU64 = AtomicU64::new(0);

/// A file without a name, which the kernel removes when it is closed. The mirror's file system contains it.
pub(crate) struct Received(File);

impl Received {
    /// Creates an empty file.
    pub(crate) fn create(mirror: &Path) -> io::Result<Self> {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        // If the gate is killed here, its next start removes the file: its name begins like those of git.
        let path = mirror.join("objects").join(format!("tmp_push_{number}"));
        let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        fs::remove_file(&path)?;
        Ok(Self(file))
    }

    /// The file, for writing.
    pub(crate) fn writer(&self) -> io::Result<tokio::fs::File> {
        Ok(tokio::fs::File::from_std(self.0.try_clone()?))
    }

    /// The file, for reading from its begin.
    pub(crate) fn into_reader(mut self) -> io::Result<File> {
        self.0.rewind()?;
        Ok(self.0)
    }
}

/// The right to unpack and scan a push. Two tasks hold it; it ends when one of them ends it, or when both have dropped
/// it.
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
