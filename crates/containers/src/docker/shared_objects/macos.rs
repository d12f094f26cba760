//! Shares nothing. No function of this module is called, because an engine on this system is in a virtual machine.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bottle_backend::{BackendError, RepositoryObjects};

fn unsupported() -> io::Error {
    io::Error::from(io::ErrorKind::Unsupported)
}

/// Always fails.
///
/// # Errors
/// [`io::ErrorKind::Unsupported`].
pub(in crate::docker) fn make_directory(_: &Path) -> io::Result<PathBuf> {
    Err(unsupported())
}

/// Always fails.
///
/// # Errors
/// [`BackendError`].
pub(in crate::docker) async fn share(_: &RepositoryObjects, _: &Path) -> Result<(), BackendError> {
    Err(BackendError::failed("cannot share git objects on this system"))
}

/// Does nothing, because the directory never exists.
///
/// # Errors
/// Never.
pub(in crate::docker) fn remove(_: &Path) -> io::Result<()> {
    Ok(())
}

/// Always fails.
///
/// # Errors
/// [`io::ErrorKind::Unsupported`].
pub(super) fn write_archive(_: &Path, _: &mut dyn Write) -> io::Result<()> {
    Err(unsupported())
}
