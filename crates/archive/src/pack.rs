//! Adds files of the host to a tar archive. Links are not followed, and sparse files remain sparse.

use std::io::{self, Write};
use std::path::Path;

use bottle_guest::archive::append_file;
use bottle_repository::{Directory, Entry, Walk};
use rustix::fs::{FileType, Stat};
use tar::{Builder, EntryType, Header};

/// The permission bits of a mode, without the file type.
const PERMISSIONS: u32 = 0o7777;

/// Adds an entry to the archive as `name`. A directory is added without its content. Sockets, devices and pipes are
/// skipped, and so are entries that were removed or replaced since they were listed.
///
/// # Errors
/// Returns an error if the entry cannot be read, or the archive cannot be written.
pub fn append<W: Write>(archive: &mut Builder<W>, entry: &Entry, name: &Path) -> io::Result<()> {
    match entry.kind() {
        FileType::RegularFile => {
            let Some((file, status)) = entry.open()? else { return Ok(()) };
            let mut header = header(&status);
            header.set_size(u64::try_from(status.st_size).unwrap_or(0));
            append_file(archive, &mut header, name, file)
        }
        FileType::Directory => {
            let mut header = header(entry.status());
            header.set_entry_type(EntryType::Directory);
            archive.append_data(&mut header, name, io::empty())
        }
        FileType::Symlink => {
            let Some(target) = entry.link()? else { return Ok(()) };
            let mut header = header(entry.status());
            header.set_entry_type(EntryType::Symlink);
            archive.append_link(&mut header, name, target)
        }
        _ => Ok(()),
    }
}

/// Adds the entry at `path` and, for a directory, everything in it. Links in the path's parent directories are
/// followed.
///
/// # Errors
/// Returns the same errors as [`append`], and an error if the entry does not exist.
pub fn append_all<W: Write>(archive: &mut Builder<W>, path: &Path, name: &Path) -> io::Result<()> {
    let (walk, top) = match (path.parent(), path.file_name()) {
        (Some(parent), Some(top)) => (Walk::entry(Directory::open(directory(parent))?, top), Path::new(top)),
        _ => (Walk::content(Directory::open(path)?), Path::new("")),
    };
    let mut is_missing = true;
    for entry in walk {
        let entry = entry?;
        is_missing = false;
        match entry.path().strip_prefix(top) {
            Ok(below) if !below.as_os_str().is_empty() => append(archive, &entry, &name.join(below))?,
            _ => append(archive, &entry, name)?,
        }
    }
    if is_missing { Err(io::ErrorKind::NotFound.into()) } else { Ok(()) }
}

/// Returns the directory to open for `parent`: the working directory if `parent` is empty.
fn directory(parent: &Path) -> &Path {
    if parent.as_os_str().is_empty() { Path::new(".") } else { parent }
}

#[allow(clippy::unnecessary_cast, reason = "the types differ between systems")]
fn header(status: &Stat) -> Header {
    let mut header = Header::new_gnu();
    header.set_mode(status.st_mode as u32 & PERMISSIONS);
    header.set_mtime(u64::try_from(status.st_mtime).unwrap_or(0));
    header.set_uid(status.st_uid.into());
    header.set_gid(status.st_gid.into());
    header.set_size(0);
    header
}
