//! The private directory in which an archive is assembled or checked.

use std::io;
use std::path::{Path, PathBuf};

use bottle_host::Host;
use bottle_host::temporary::Temporary;
use tempfile::NamedTempFile;

/// A directory below `$BOTTLE_HOME` that is removed when this value is dropped. After a crash, a cleanup removes it.
#[derive(Debug)]
pub struct Staging(Temporary);

impl Staging {
    /// Creates the staging directory.
    ///
    /// # Errors
    /// Fails if the directory cannot be created.
    pub fn create(host: &Host) -> io::Result<Self> {
        host.temporary("archive-").map(Self)
    }

    /// Returns the path of the staging directory.
    pub fn directory(&self) -> &Path {
        self.0.path()
    }

    /// Creates a directory in the staging directory.
    ///
    /// # Errors
    /// Fails if the directory cannot be created.
    pub fn make(&self, name: &str) -> io::Result<PathBuf> {
        let directory = self.directory().join(name);
        bottle_host::files::create_private_directory(&directory)?;
        Ok(directory)
    }

    /// Creates an empty hidden file in `directory`, where the archive will be stored. The file is removed when the
    /// returned value is dropped. After a crash, a cleanup removes the file.
    ///
    /// # Errors
    /// Fails if the file cannot be created.
    pub fn file_in(&self, directory: &Path) -> io::Result<NamedTempFile> {
        self.0.file_in(directory)
    }
}
