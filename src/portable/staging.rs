//! The private folder in which an archive is assembled or checked.

use std::io;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::host::Host;
use crate::host::temporary::Temporary;

/// A folder below `$BOTTLE_HOME` that is removed when this value is dropped. After a crash, a cleanup finds it.
#[derive(Debug)]
pub(crate) struct Staging(Temporary);

impl Staging {
    /// Creates the folder.
    ///
    /// # Errors
    /// When the folder cannot be created.
    pub(crate) fn create(host: &Host) -> io::Result<Self> {
        host.temporary("archive-").map(Self)
    }

    /// The path of the folder.
    pub(crate) fn folder(&self) -> &Path {
        self.0.path()
    }

    /// Creates a folder in it.
    ///
    /// # Errors
    /// When the folder cannot be created.
    pub(crate) fn make(&self, name: &str) -> io::Result<PathBuf> {
        let folder = self.folder().join(name);
        crate::host::files::create_private_folder(&folder)?;
        Ok(folder)
    }

    /// Creates an empty hidden file in the folder of an archive. It is removed when the returned value is dropped. After a
    /// crash, a cleanup finds it.
    ///
    /// # Errors
    /// When the file cannot be created.
    pub(crate) fn file_in(&self, folder: &Path) -> io::Result<NamedTempFile> {
        self.0.file_in(folder)
    }
}
