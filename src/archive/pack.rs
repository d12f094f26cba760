//! Adds files of the host to a tar archive. Links are not followed, and sparse files remain sparse.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use bottle_guest::archive::append_file;
use rustix::fs::OFlags;
use tar::{Builder, Header};

/// Adds the entry at `path` to the archive as `name`. A folder is added without its content.
///
/// # Errors
/// Returns an error if the entry cannot be read, or the archive cannot be written.
pub(crate) fn append<W: Write>(archive: &mut Builder<W>, path: &Path, name: &Path) -> io::Result<()> {
    if !path.symlink_metadata()?.is_file() {
        archive.follow_symlinks(false);
        return archive.append_path_with_name(path, name);
    }
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let mut header = Header::new_gnu();
    header.set_metadata(&file.metadata()?);
    append_file(archive, &mut header, name, file)
}

/// Adds the entry at `path` and, for a folder, everything in it.
///
/// # Errors
/// Returns the same errors as [`append`].
pub(crate) fn append_all<W: Write>(archive: &mut Builder<W>, path: &Path, name: &Path) -> io::Result<()> {
    append(archive, path, name)?;
    if path.symlink_metadata()?.is_dir() {
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            append_all(archive, &entry.path(), &name.join(entry.file_name()))?;
        }
    }
    Ok(())
}
