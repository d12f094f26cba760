//! The destinations of an image's blobs: a directory, or the archive itself.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use crate::image::saved::Digest;

/// The file name of a blob while it is written to a directory.
const NEW: &str = ".new";

/// Stores blobs, one after the other.
pub trait Blobs: Send {
    /// Begins a blob. Returns the writer of its content.
    ///
    /// # Errors
    /// When the file cannot be created or prepared.
    fn begin(&self) -> io::Result<Box<dyn Write + Send>>;

    /// Completes the blob that was begun last. `size` is the number of bytes that were written.
    ///
    /// # Errors
    /// When the blob cannot be stored under its digest.
    fn keep(&self, digest: Digest, size: u64) -> io::Result<()>;

    /// Removes the blob that was begun last. `size` is the number of bytes that were written.
    ///
    /// # Errors
    /// When the blob cannot be removed.
    fn discard(&self, size: u64) -> io::Result<()>;
}

/// A directory in which the file name of a blob is its digest.
pub struct BlobDirectory(pub PathBuf);

impl Blobs for BlobDirectory {
    fn begin(&self) -> io::Result<Box<dyn Write + Send>> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(self.0.join(NEW))?;
        Ok(Box::new(file))
    }

    fn keep(&self, digest: Digest, _: u64) -> io::Result<()> {
        std::fs::rename(self.0.join(NEW), self.0.join(digest.digits()))
    }

    fn discard(&self, _: u64) -> io::Result<()> {
        std::fs::remove_file(self.0.join(NEW))
    }
}
