//! Replaces files atomically, and creates private directories.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use tempfile::NamedTempFile;

use super::disk;

/// Why a file or directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}", path.display())]
pub struct FileError {
    action: &'static str,
    path: PathBuf,
    /// The I/O error.
    pub source: io::Error,
}

impl FileError {
    /// Creates the error for a file or directory that cannot be read.
    #[must_use]
    pub fn read(path: &Path, source: io::Error) -> Self {
        Self { action: "read", path: path.to_owned(), source }
    }

    /// Creates the error for a file or directory that cannot be written.
    #[must_use]
    pub fn write(path: &Path, source: io::Error) -> Self {
        Self { action: "write", path: path.to_owned(), source }
    }

    /// Returns what the user can do next.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        disk::hint(&self.source)
    }
}

/// Creates a directory and its missing parents, accessible only to this user. If the directory exists, it stays
/// unchanged and the call succeeds.
///
/// # Errors
/// Returns an error if the directory cannot be created.
pub fn create_private_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Creates a directory and its missing parents like [`create_private_directory`]. If the directory exists and other
/// users can access it, the function removes their access.
///
/// # Errors
/// Returns an error if the directory cannot be created, is a link, or belongs to another user.
pub fn private_directory(path: &Path) -> io::Result<()> {
    create_private_directory(path)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = File::from(rustix::fs::open(path, flags, rustix::fs::Mode::empty())?);
    let found = directory.metadata()?;
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it belongs to another user"));
    }
    match found.mode() & 0o777 {
        0o700 => Ok(()),
        _ => directory.set_permissions(Permissions::from_mode(0o700)),
    }
}

/// Binds a socket that only this user can connect to.
///
/// # Errors
/// Returns an error if the socket cannot be bound, for example because the path exists.
pub fn bind_private(path: &Path) -> io::Result<UnixListener> {
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Returns the options to create files with mode 0600.
#[must_use]
pub fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

/// The buffered writer for the new content of a file.
pub type Filled<'a> = BufWriter<&'a mut File>;

/// Replaces the file at `path` with the output of `fill`. The new file has mode 0600. A reader sees either
/// the old or the new content. After a power failure, the file may contain the old or new content, or may be
/// empty.
///
/// # Errors
/// Returns the error of `fill`, or an error if the file's directory cannot be written. If an error is returned, the old
/// file is unchanged.
pub fn replace(path: &Path, fill: impl FnOnce(&mut Filled<'_>) -> io::Result<()>) -> io::Result<()> {
    persist(write_temporary(path, fill)?, path)
}

/// Replaces a file like [`replace`], but syncs the new content to disk before the rename.
///
/// # Errors
/// Returns the same errors as [`replace`].
pub fn replace_durably(path: &Path, fill: impl FnOnce(&mut Filled<'_>) -> io::Result<()>) -> io::Result<()> {
    let file = write_temporary(path, fill)?;
    file.as_file().sync_data()?;
    persist(file, path)
}

fn write_temporary(
    path: &Path,
    fill: impl FnOnce(&mut Filled<'_>) -> io::Result<()>,
) -> io::Result<NamedTempFile> {
    let directory = path.parent().ok_or_else(|| io::Error::other("it has no directory"))?;
    let mut file = NamedTempFile::new_in(directory).map_err(disk::plain)?;
    let mut out = BufWriter::new(file.as_file_mut());
    fill(&mut out)?;
    out.flush()?;
    drop(out);
    Ok(file)
}

fn persist(file: NamedTempFile, path: &Path) -> io::Result<()> {
    file.persist(path).map(drop).map_err(|error| error.error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_old_file_until_the_new_one_is_complete() {
        let here = tempfile::tempdir().expect("directory");
        let path = here.path().join("file");
        replace(&path, |file| file.write_all(b"one")).expect("written");
        let failed = replace_durably(&path, |file| {
            file.write_all(b"tw")?;
            Err(io::Error::other("full"))
        });
        assert_eq!(failed.expect_err("it fails").to_string(), "full");
        assert_eq!(std::fs::read(&path).expect("read"), b"one");
        replace_durably(&path, |file| file.write_all(b"three")).expect("written");
        assert_eq!(std::fs::read(&path).expect("read"), b"three");
        assert_eq!(path.metadata().expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(
            std::fs::read_dir(here.path()).expect("directory").count(),
            1,
            "nothing is left beside it"
        );
    }
}
