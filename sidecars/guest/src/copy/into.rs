//! Unpacks an archive into a directory of the bottle.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Timespec, Timestamps, fchmod, futimens, linkat, mkdirat, statat,
    symlinkat, unlinkat,
};
use rustix::io::Errno;
use tar::Archive;

use crate::archive::{Member, Members, What, about, place};
use crate::rooted::{make_directory, open_beneath};

/// The flags to open a directory without following a symlink.
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW);

/// The destination of an archive.
pub(super) struct Target {
    pub(super) root: PathBuf,
    /// The path of the target directory relative to `root`. Symlinks in the path are followed within `root`.
    pub(super) directory: PathBuf,
}

/// Unpacks an archive into the target directory. Existing files and symlinks are replaced. Existing directories are
/// merged. Unpacking stops at the first error, and entries that were already unpacked are kept.
pub(super) fn unpack(target: &Target, reader: impl Read) -> io::Result<Unpacked> {
    unpack_into(&make_directory(&target.root, &target.directory)?, reader)
}

/// What an archive contained.
#[derive(Debug, Default)]
pub(crate) struct Unpacked {
    /// The number of entries.
    pub(crate) entries: u64,
    /// The permission bits of the directories that are entries. Other directories were created only because they contain
    /// an entry.
    pub(crate) directories: HashMap<PathBuf, u32>,
}

/// Unpacks an archive into an open directory, like [`unpack`].
pub(crate) fn unpack_into(directory: &OwnedFd, reader: impl Read) -> io::Result<Unpacked> {
    let mut reader = WholeArchive { reader, ended: false };
    let unpacked = members_into(directory, &mut reader);
    if reader.ended {
        // The parser's own error says only where it missed data.
        let is_of_parser =
            |error: &io::Error| matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::Other);
        return Err(unpacked.err().filter(|error| !is_of_parser(error)).unwrap_or_else(|| {
            io::Error::new(io::ErrorKind::UnexpectedEof, "the archive is truncated: its end mark is missing")
        }));
    }
    let unpacked = unpacked?;
    // Reads the padding and the client's end message. Reading fails if there is no end message, because the archive is
    // truncated in this case.
    io::copy(&mut reader, &mut io::sink()).map(|_| unpacked)
}

fn members_into(directory: &OwnedFd, reader: impl Read) -> io::Result<Unpacked> {
    let mut unpacked = Unpacked::default();
    let mut archive = Archive::new(reader);
    let mut members = Members::new(archive.entries()?);
    while let Some(mut member) = members.next()? {
        let place = member.place()?;
        make(directory, &mut member, &place).map_err(|error| about(&place, error))?;
        if member.what == What::Directory {
            unpacked.directories.insert(place, directory_mode(member.mode));
        }
        unpacked.entries += 1;
    }
    Ok(unpacked)
}

/// Detects an archive that ends without the blocks of zeros that mark its end. The parser takes the end of the data for
/// the end of the archive, so it does not notice that the entries after it are missing.
struct WholeArchive<R> {
    reader: R,
    /// Whether the data has ended.
    ended: bool,
}

impl<R: Read> Read for WholeArchive<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        self.ended |= read == 0 && !buffer.is_empty();
        Ok(read)
    }
}

/// Returns the permission bits for a directory. The owner needs write permission to fill the directory.
fn directory_mode(mode: u32) -> u32 {
    mode | 0o700
}

fn make<R: Read>(top: &OwnedFd, member: &mut Member<'_, R>, place: &Path) -> io::Result<()> {
    let Some(name) = place.file_name().map(PathBuf::from) else {
        // The entry for the target directory itself, which `tar` writes as `./`.
        return match member.what {
            What::Directory => Ok(()),
            _ => Err(io::Error::other("a file or link has no name")),
        };
    };
    let parents = place.parent().unwrap_or(Path::new(""));
    let parent = parents_of(top, parents)?;
    match &member.what {
        What::Directory => {
            let directory = make_one_directory(&parent, &name)?;
            fchmod(directory, Mode::from_raw_mode(directory_mode(member.mode)))?;
        }
        What::Link(link) => {
            clear(&parent, &name)?;
            symlinkat(link, &parent, &name)?;
        }
        What::File => {
            clear(&parent, &name)?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
            let file = open_beneath(&parent, &name, flags, Mode::from_raw_mode(0o600))?;
            let mut file = File::from(file);
            member.content.copy_to(&mut file)?;
            fchmod(&file, Mode::from_raw_mode(member.mode))?;
            set_time(&file, member.mtime)?;
        }
        What::HardLink(target) => link_file(top, target, (&parent, &name))?,
        What::Other(_) => return Err(io::Error::other("a device or a pipe is not copied")),
    }
    Ok(())
}

/// Creates a hard link to a file that the archive contains before the link.
fn link_file(top: &OwnedFd, target: &Path, (parent, name): (&OwnedFd, &Path)) -> io::Result<()> {
    let target = place(target)?;
    let missing = || about(&target, "the target of the hard link is not a file of the archive");
    let file = target.file_name().map(Path::new).ok_or_else(missing)?;
    // No symlink of the path is followed, so the target is below `top`.
    let directory = open_beneath(top, target.parent().unwrap_or(Path::new("")), DIRECTORY, Mode::empty())
        .map_err(|_| missing())?;
    let stat = statat(&directory, file, AtFlags::SYMLINK_NOFOLLOW).map_err(|_| missing())?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(missing());
    }
    // A link to a file that is already in its place must not remove this file.
    if statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|existing| (existing.st_dev, existing.st_ino) == (stat.st_dev, stat.st_ino))
    {
        return Ok(());
    }
    clear(parent, name)?;
    Ok(linkat(&directory, file, parent, name, AtFlags::empty())?)
}

fn parents_of(top: &OwnedFd, parents: &Path) -> io::Result<OwnedFd> {
    let mut current = top.try_clone()?;
    for part in parents {
        current = make_one_directory(&current, Path::new(part))?;
    }
    Ok(current)
}

/// Opens the directory `name`, and creates it if it does not exist. Fails if `name` is a symlink, even if its target is
/// a directory.
fn make_one_directory(parent: &OwnedFd, name: &Path) -> io::Result<OwnedFd> {
    match mkdirat(parent, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    open_beneath(parent, name, DIRECTORY, Mode::empty()).map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::LOOP | Errno::NOTDIR) => about(name, "a file or link is in the place of a directory"),
        _ => error,
    })
}

/// Removes an existing file or symlink, but never a directory.
fn clear(parent: &OwnedFd, name: &Path) -> io::Result<()> {
    match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
            Err(io::Error::other("a directory is in its place"))
        }
        Ok(_) => Ok(unlinkat(parent, name, AtFlags::empty())?),
    }
}

/// Sets the modification time of a file, because build tools compare modification times.
fn set_time(file: &File, mtime: u64) -> io::Result<()> {
    let time = Timespec { tv_sec: i64::try_from(mtime).unwrap_or(0), tv_nsec: 0 };
    Ok(futimens(file, &Timestamps { last_access: time, last_modification: time })?)
}
