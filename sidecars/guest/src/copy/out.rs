//! Packs a file or directory of the bottle into an archive.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, PROC_SUPER_MAGIC, Stat, fstat, fstatfs, readlinkat, statat,
};
use rustix::io::Errno;
use tar::{Builder, EntryType, Header};

use crate::archive::{MAX_DEPTH, about, append_file};
use crate::rooted::{open_beneath, open_in_root};

/// The flags to open a file without blocking. Without `NONBLOCK`, opening a named pipe would block until the pipe has a
/// writer.
const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// The magic number of `sysfs` (statfs(2)).
const SYSFS_MAGIC: i64 = 0x6265_6572;

/// The name of files with git's ignore rules.
const RULES: &str = ".gitignore";

/// Packs the file or directory `path` of the bottle. A directory is packed with its contents. The name in the archive
/// is the last component of `path`. For the root directory, only the contents are packed.
///
/// # Errors
/// Fails if `path` itself is a symlink, because the agent may have created it to choose what is copied instead.
pub(super) fn archive(root: &Path, path: &Path, writer: impl Write) -> io::Result<()> {
    let mut archive = Builder::new(writer);
    let opened = open_in_root(root, path, READ | OFlags::NOFOLLOW).map_err(|error| {
        if Errno::from_io_error(&error) == Some(Errno::LOOP) {
            link(root, path).unwrap_or(error)
        } else {
            error
        }
    })?;
    let stat = fstat(&opened)?;
    let name = path.file_name().map(PathBuf::from).unwrap_or_default();
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => add_directory(&mut archive, &opened, &stat, &name, 0)?,
        FileType::RegularFile => add_file(&mut archive, opened, &stat, &name)?,
        _ => return Err(io::Error::other("neither a file nor a directory")),
    }
    archive.into_inner()?.flush()
}

/// Returns the error for a symlink, which names the target. Returns `None` if the path is no longer a symlink.
fn link(root: &Path, path: &Path) -> Option<io::Error> {
    let parent = open_in_root(root, path.parent()?, OFlags::PATH | OFlags::DIRECTORY).ok()?;
    let target = readlinkat(&parent, path.file_name()?, Vec::new()).ok()?;
    Some(io::Error::other(format!("it is a link to {target:?}; copy that path instead")))
}

/// Packs the contents of an open directory.
pub(crate) fn archive_contents(directory: &OwnedFd, writer: impl Write) -> io::Result<()> {
    let mut archive = Builder::new(writer);
    add_directory(&mut archive, directory, &fstat(directory)?, Path::new(""), 0)?;
    archive.into_inner()?.flush()
}

/// Packs an open file with this name.
pub(crate) fn archive_file(file: File, stat: &Stat, name: &Path, writer: impl Write) -> io::Result<()> {
    let mut archive = Builder::new(writer);
    add_file(&mut archive, file.into(), stat, name)?;
    archive.into_inner()?.flush()
}

fn add_directory<W: Write>(
    archive: &mut Builder<W>,
    directory: &OwnedFd,
    stat: &Stat,
    name: &Path,
    depth: usize,
) -> io::Result<()> {
    if !name.as_os_str().is_empty() {
        let mut header = header(EntryType::Directory, stat, 0);
        archive.append_data(&mut header, name, io::empty())?;
    }
    // The kernel's virtual file systems are skipped, because they contain endless files.
    let kind = fstatfs(directory)?.f_type;
    if kind == PROC_SUPER_MAGIC || kind == SYSFS_MAGIC {
        return Ok(());
    }
    if depth == MAX_DEPTH {
        return Err(about(name, format!("more than {MAX_DEPTH} directories deep")));
    }
    // The ignore rules come first, so that a reader can apply them while it reads the archive.
    add(archive, directory, Path::new(RULES), &name.join(RULES), depth + 1)?;
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let entry = std::ffi::OsStr::from_bytes(entry.file_name().to_bytes());
        if entry != "." && entry != ".." && entry != RULES {
            add(archive, directory, Path::new(entry), &name.join(entry), depth + 1)?;
        }
    }
    Ok(())
}

/// Adds one entry of `directory` to the archive. An entry that disappears, cannot be read or has an unsupported type is
/// skipped, so that the rest of the tree is still copied.
fn add<W: Write>(
    archive: &mut Builder<W>,
    directory: &OwnedFd,
    entry: &Path,
    name: &Path,
    depth: usize,
) -> io::Result<()> {
    // Opening a device can have side effects, so the kind is checked first.
    let kind =
        statat(directory, entry, AtFlags::SYMLINK_NOFOLLOW).map(|stat| FileType::from_raw_mode(stat.st_mode));
    if !matches!(kind, Ok(FileType::RegularFile | FileType::Directory | FileType::Symlink)) {
        return Ok(());
    }
    let opened = match open_beneath(directory, entry, READ | OFlags::NOFOLLOW, Mode::empty()) {
        Ok(opened) => opened,
        Err(error) if Errno::from_io_error(&error) == Some(Errno::LOOP) => {
            return add_link(archive, directory, entry, name);
        }
        Err(error) => {
            tracing::debug!(%error, ?name, "skipped in a copy");
            return Ok(());
        }
    };
    let stat = fstat(&opened)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => add_directory(archive, &opened, &stat, name, depth),
        FileType::RegularFile => add_file(archive, opened, &stat, name),
        _ => Ok(()),
    }
}

fn add_link<W: Write>(
    archive: &mut Builder<W>,
    directory: impl AsFd,
    entry: &Path,
    name: &Path,
) -> io::Result<()> {
    let Ok(target) = readlinkat(directory, entry, Vec::new()) else { return Ok(()) };
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Symlink);
    header.set_size(0);
    header.set_mode(0o777);
    archive.append_link(&mut header, name, std::ffi::OsString::from_vec(target.into_bytes()))
}

fn add_file<W: Write>(archive: &mut Builder<W>, file: OwnedFd, stat: &Stat, name: &Path) -> io::Result<()> {
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let mut header = header(EntryType::Regular, stat, size);
    append_file(archive, &mut header, name, File::from(file))
}

/// Builds the header of an entry. The header contains no owner, because the user ids of a bottle have no meaning
/// outside the bottle.
fn header(kind: EntryType, stat: &Stat, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(stat.st_mode & 0o777);
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
    header
}
