//! Reads the files of a saved image from a directory or an archive. File names in the image are untrusted. No file name
//! can open a file outside the directory or the archive.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};

use bottle_guest::archive::{Members, What};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::Errno;

use super::bad_image::BadImage;

/// The maximum number of files in the archive of a saved image. An archive with more files is refused. Saved images
/// have only a few files for each layer.
const FILES_MAX: usize = 10_000;

/// The maximum length of a chain of links. A longer chain is refused. If two layers are equal, an engine writes a link
/// to one of them.
const LINKS_MAX: usize = 4;

/// The files of a saved image.
pub struct Container(Files);

enum Files {
    /// The files are in this directory.
    Directory(OwnedFd),
    /// The files are in this archive. The map contains the archive's entries by name.
    Archive(File, HashMap<PathBuf, ArchiveEntry>),
}

/// An entry of an archive.
enum ArchiveEntry {
    /// A file, with the position and the size of its content.
    File { start: u64, size: u64 },
    /// A link to another entry.
    Link(PathBuf),
}

impl Container {
    /// Opens a directory that contains a saved image.
    ///
    /// # Errors
    /// When the directory cannot be opened.
    pub fn directory(path: &Path) -> Result<Self, BadImage> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        open(path, flags, Mode::empty())
            .map(|directory| Self(Files::Directory(directory)))
            .map_err(|error| BadImage::refused(format!("cannot be read: {error}")))
    }

    /// Opens an archive and reads the headers of its entries.
    ///
    /// # Errors
    /// When the archive is incomplete, has too many files, contains a file twice, or contains an entry that is not a
    /// file, a link or a directory.
    pub fn archive(path: &Path) -> Result<Self, BadImage> {
        let file = File::open(path).map_err(|error| BadImage::refused(format!("cannot be read: {error}")))?;
        let damaged = |error: io::Error| BadImage::refused(format!("is damaged: {error}"));
        let length = file.metadata().map_err(damaged)?.len();
        let mut archive = tar::Archive::new(file.try_clone().map_err(damaged)?);
        let mut members = Members::new(archive.entries_with_seek().map_err(damaged)?);
        let mut entries = HashMap::new();
        while let Some(member) = members.next().map_err(damaged)? {
            let name = member.place().map_err(damaged)?;
            let place = match member.what {
                What::File => {
                    let size = member.content.size();
                    let start = member.content.position();
                    let start =
                        start.ok_or_else(|| damaged(io::Error::other("it contains a sparse file")))?;
                    if start.checked_add(size).is_none_or(|end| end > length) {
                        return Err(BadImage::refused(format!("is truncated: {name:?} is incomplete")));
                    }
                    ArchiveEntry::File { start, size }
                }
                What::Link(target) => ArchiveEntry::Link(target),
                What::Directory => continue,
                _ => return Err(BadImage::refused(format!("is not a saved image: {name:?} is not a file"))),
            };
            if entries.len() == FILES_MAX {
                return Err(BadImage::refused(format!(
                    "is not a saved image: it has more than {FILES_MAX} files"
                )));
            }
            if entries.insert(name.clone(), place).is_some() {
                return Err(BadImage::refused(format!("is damaged: {name:?} occurs twice")));
            }
        }
        Ok(Self(Files::Archive(file, entries)))
    }

    /// Opens a file. Returns `None` if the file does not exist.
    ///
    /// # Errors
    /// When `name` is not the name of a file, or refers to a path outside the image.
    pub fn open(&self, name: &str) -> Result<Option<Content>, BadImage> {
        let name = Path::new(name.strip_prefix("./").unwrap_or(name));
        match &self.0 {
            Files::Directory(directory) => open_beneath(directory, name),
            Files::Archive(file, entries) => {
                let Some((start, size)) = find(entries, name)? else { return Ok(None) };
                let file = file.try_clone().map_err(BadImage::Disk)?;
                Ok(Some(Content { file, at: start, left: size }))
            }
        }
    }

    /// Reads a file of at most `most` bytes. Returns `None` if the file does not exist.
    ///
    /// # Errors
    /// The errors of [`Container::open`]. Also when the file is longer than `most` bytes.
    pub fn read(&self, name: &str, most: u64) -> Result<Option<Vec<u8>>, BadImage> {
        let Some(content) = self.open(name)? else { return Ok(None) };
        if content.left > most {
            return Err(BadImage::refused(format!("is damaged: {name:?} is longer than {most} bytes")));
        }
        let mut bytes = Vec::new();
        let mut content = content.take(most);
        content.read_to_end(&mut bytes).map_err(|error| BadImage::at(Path::new(name), error))?;
        Ok(Some(bytes))
    }
}

fn find(entries: &HashMap<PathBuf, ArchiveEntry>, name: &Path) -> Result<Option<(u64, u64)>, BadImage> {
    let mut name = name.to_owned();
    for _ in 0..=LINKS_MAX {
        match entries.get(&name) {
            None => return Ok(None),
            Some(ArchiveEntry::File { start, size }) => return Ok(Some((*start, *size))),
            Some(ArchiveEntry::Link(target)) => name = beside(&name, target)?,
        }
    }
    Err(BadImage::refused(format!("is damaged: {name:?} is a chain of too many links")))
}

/// Resolves the target of a link lexically, without reading the file system.
fn beside(link: &Path, target: &Path) -> Result<PathBuf, BadImage> {
    let mut path = link.parent().unwrap_or(Path::new("")).to_owned();
    for component in target.components() {
        match component {
            Component::Normal(part) => path.push(part),
            Component::CurDir => {}
            Component::ParentDir if path.pop() => {}
            _ => return Err(BadImage::refused(format!("is hostile: the link {link:?} points outside it"))),
        }
    }
    Ok(path)
}

fn open_beneath(directory: &OwnedFd, name: &Path) -> Result<Option<Content>, BadImage> {
    // Without `NONBLOCK`, opening a named pipe would block.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match open_below(directory, name, flags) {
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::XDEV) => {
            return Err(BadImage::refused(format!("is hostile: the link {name:?} points outside it")));
        }
        file => file.map_err(|error| BadImage::at(name, error))?,
    };
    let stat = fstat(&file).map_err(|error| BadImage::at(name, error))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(BadImage::refused(format!("is not a saved image: {name:?} is not a file")));
    }
    let left = u64::try_from(stat.st_size).unwrap_or(0);
    Ok(Some(Content { file: file.into(), at: 0, left }))
}

/// Opens a path in a directory. Follows a link only if its target is in the directory.
#[cfg(target_os = "linux")]
fn open_below(directory: &OwnedFd, name: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    use rustix::fs::ResolveFlags;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(directory, name, flags, Mode::empty(), resolve)
}

/// Opens a path in a directory. Follows no links, because this system cannot confine their targets to a directory.
#[cfg(not(target_os = "linux"))]
fn open_below(directory: &OwnedFd, name: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    use rustix::fs::openat;
    let parent_flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at = directory.try_clone().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    for component in name.parent().unwrap_or(Path::new("")).components() {
        let Component::Normal(part) = component else { return Err(Errno::XDEV) };
        at = openat(&at, part, parent_flags, Mode::empty())?;
    }
    openat(&at, name.file_name().ok_or(Errno::INVAL)?, flags | OFlags::NOFOLLOW, Mode::empty())
}

/// An open file of a saved image.
pub struct Content {
    file: File,
    at: u64,
    /// The number of bytes not read yet.
    pub left: u64,
}

impl Read for Content {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = usize::try_from(self.left).map_or(buffer.len(), |left| left.min(buffer.len()));
        if wanted == 0 {
            return Ok(0);
        }
        let read = self.file.read_at(&mut buffer[..wanted], self.at)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.at += read as u64;
        self.left -= read as u64;
        Ok(read)
    }
}
