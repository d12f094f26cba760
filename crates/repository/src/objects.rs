//! Gives a git process that runs in `bottle`'s own git directory access to the objects of a repository that an agent or
//! a project may have written.
//!
//! Git does not get access to the repository's `objects` directory itself, because its subdirectory `info` can name
//! further directories, and programs. Instead, git gets a directory that `bottle` creates, the view. The view contains
//! a link to each directory in which git stores objects:
//!
//! ```text
//! ours:   view/pack ──► their objects/pack      view/info   none
//!         view/ab   ──► their objects/ab
//! ```
//! On Linux, each link refers to an open descriptor of this process. The link therefore stays valid for the same
//! directory, even if another process replaces the directory at its path.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit};

use crate::directory::{Directory, ReadError};
use crate::lenders::MAX_LENDERS;

/// The name of the directory with packs.
const PACKS: &str = "pack";

/// The maximum number of files with objects in a repository.
const MAX_FILES: usize = 5_000_000;

/// The maximum length in bytes of the list of directories from which objects are borrowed.
const MAX_ALTERNATES: u64 = 64 << 10;

/// The number of descriptors that suffices for the directories of a few repositories.
const DESCRIPTORS: u64 = 4096;

/// The open directories with the objects of a repository.
#[derive(Debug)]
pub struct Objects {
    /// The directories in which git stores objects, with their names in `objects`.
    parts: Vec<(String, Directory)>,
    /// The objects of other repositories that this repository borrows.
    borrowed: Vec<Objects>,
}

/// Why the objects of a repository cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ObjectsError {
    /// A file could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The repository has more than 5 million files with objects.
    #[error("{} has too many files", .0.display())]
    TooMany(PathBuf),
    /// A directory borrows the objects of another directory that is not permitted.
    #[error("{} borrows the objects in {}", by.display(), from.display())]
    Borrows {
        /// The directory that borrows objects.
        by: PathBuf,
        /// The directory with the borrowed objects.
        from: PathBuf,
    },
    /// Another user owns the directory.
    #[error("{} belongs to another user", .0.display())]
    Owner(PathBuf),
}

impl Objects {
    /// Opens a directory with objects, and the directories from which it borrows objects. All of these directories must
    /// be among `lenders`.
    ///
    /// # Errors
    /// Returns an [`ObjectsError`] of any kind. A file with objects that is not a regular file is an error.
    pub fn open(objects: &Directory, lenders: &[PathBuf]) -> Result<Self, ObjectsError> {
        let mut left = MAX_LENDERS;
        Self::open_with(objects, lenders, &mut left)
    }

    fn open_with(objects: &Directory, lenders: &[PathBuf], left: &mut usize) -> Result<Self, ObjectsError> {
        let mut found = Self { parts: parts(objects)?, borrowed: Vec::new() };
        for path in alternates(objects)? {
            let borrows = || ObjectsError::Borrows { by: objects.path().to_owned(), from: path.clone() };
            *left = left.checked_sub(1).ok_or_else(borrows)?;
            if !lenders.contains(&path) {
                return Err(borrows());
            }
            // The path contained no links when it was recorded, so it must not contain a link now.
            let lender = open_real(&path).map_err(|error| ReadError::System { path: path.clone(), error })?;
            let owner = lender.owner().map_err(|error| ReadError::System { path: path.clone(), error })?;
            let own = objects.owner();
            let own = own.map_err(|error| ReadError::System { path: objects.path().to_owned(), error })?;
            if owner != own {
                return Err(ObjectsError::Owner(path));
            }
            found.borrowed.push(Self::open_with(&lender, lenders, left)?);
        }
        Ok(found)
    }

    /// Returns the real paths of all directories from which a repository borrows objects, directly or indirectly.
    /// Directories that do not exist are left out.
    ///
    /// # Errors
    /// Returns [`ObjectsError::Read`], and [`ObjectsError::TooMany`] if there are more than 32.
    pub fn lenders(objects: &Directory) -> Result<Vec<PathBuf>, ObjectsError> {
        let mut found: Vec<PathBuf> = Vec::new();
        let mut next = alternates(objects)?;
        while let Some(path) = next.pop() {
            if found.contains(&path) {
                continue;
            }
            let Ok(lender) = open_real(&path) else { continue };
            if found.len() == MAX_LENDERS {
                return Err(ObjectsError::TooMany(objects.path().join("info/alternates")));
            }
            next.extend(alternates(&lender)?);
            found.push(path);
        }
        Ok(found)
    }

    /// Creates a value without objects.
    pub(crate) fn none() -> Self {
        Self { parts: Vec::new(), borrowed: Vec::new() }
    }

    /// Makes the views of these objects and of the borrowed objects, as directories `NAME`, `NAME-0`, `NAME-1` and so
    /// on in `parent`. Returns the names of these directories.
    pub(crate) fn view(&self, parent: &Path, name: &str) -> io::Result<Vec<String>> {
        let view = parent.join(name);
        std::fs::create_dir(&view)?;
        for (name, part) in &self.parts {
            std::os::unix::fs::symlink(link_to(part), view.join(name))?;
        }
        let mut names = vec![name.to_owned()];
        for (number, borrowed) in self.borrowed.iter().enumerate() {
            names.extend(borrowed.view(parent, &format!("{name}-{number}"))?);
        }
        Ok(names)
    }
}

/// Returns a path at which another process of this user can access an open directory.
fn link_to(directory: &Directory) -> PathBuf {
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;
        let number = directory.as_fd().as_raw_fd();
        let path = PathBuf::from(format!("/proc/{}/fd/{number}", std::process::id()));
        if path.exists() {
            return path;
        }
    }
    directory.path().to_owned()
}

/// Opens a directory whose path must not contain links.
pub(crate) fn open_real(path: &Path) -> io::Result<Directory> {
    let root = Directory::open(Path::new("/"))?;
    let relative = path.strip_prefix("/").map_err(|_| io::ErrorKind::InvalidInput)?;
    root.directory(relative)?.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Opens the directories in which git stores objects. Fails if one of them contains an entry that is not a regular
/// file.
fn parts(objects: &Directory) -> Result<Vec<(String, Directory)>, ObjectsError> {
    allow_descriptors();
    let mut left = MAX_FILES;
    let mut parts = Vec::new();
    let loose = (0..=u8::MAX).map(|byte| format!("{byte:02x}"));
    for name in std::iter::once(PACKS.to_owned()).chain(loose) {
        let path = objects.path().join(&name);
        let part =
            objects.directory(Path::new(&name)).map_err(|error| match Errno::from_io_error(&error) {
                Some(Errno::NOTDIR | Errno::LOOP) => ReadError::NotRegular(path.clone()),
                _ => ReadError::System { path: path.clone(), error },
            })?;
        let Some(part) = part else { continue };
        check(&part, name == PACKS, &mut left)?;
        parts.push((name, part));
    }
    Ok(parts)
}

/// Checks that a directory contains only regular files. If `has_directories` is set, it may also contain directories of
/// regular files.
fn check(part: &Directory, has_directories: bool, left: &mut usize) -> Result<(), ObjectsError> {
    let unread = |error: Errno| ReadError::System { path: part.path().to_owned(), error: error.into() };
    for entry in Dir::read_from(part.as_fd()).map_err(unread)? {
        let entry = entry.map_err(unread)?;
        *left = left.checked_sub(1).ok_or_else(|| ObjectsError::TooMany(part.path().to_owned()))?;
        let kind = match entry.file_type() {
            FileType::Unknown => match rustix::fs::statat(part, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)
            {
                Ok(found) => FileType::from_raw_mode(found.st_mode),
                // Git has removed the entry since the directory was listed.
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(unread(error).into()),
            },
            kind => kind,
        };
        let name = Path::new(std::ffi::OsStr::from_bytes(entry.file_name().to_bytes()));
        match kind {
            FileType::RegularFile => {}
            FileType::Directory if matches!(name.as_os_str().as_bytes(), b"." | b"..") => {}
            // Git stores a chain of multi-pack indexes in a subdirectory.
            FileType::Directory if has_directories => {
                let inside = part.directory(name);
                let inside =
                    inside.map_err(|error| ReadError::System { path: part.path().join(name), error })?;
                inside.iter().try_for_each(|inside| check(inside, false, left))?;
            }
            _ => return Err(ReadError::NotRegular(part.path().join(name)).into()),
        }
    }
    Ok(())
}

/// Returns the real paths of the directories from which a directory borrows objects. Directories that do not exist are
/// left out.
pub(crate) fn alternates(objects: &Directory) -> Result<Vec<PathBuf>, ReadError> {
    let Some(text) = objects.read(Path::new("info/alternates"), MAX_ALTERNATES)? else {
        return Ok(Vec::new());
    };
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty() && line[0] != b'#');
    let path = |line: &[u8]| PathBuf::from(std::ffi::OsString::from_vec(line.to_vec()));
    // Git never writes quoted paths into this file, so a quoted path is treated as a name, under which no directory
    // exists.
    Ok(lines.filter_map(|line| objects.path().join(path(line)).canonicalize().ok()).collect())
}

/// Raises the limit on open descriptors of this process to [`DESCRIPTORS`], or to its hard limit if that limit is
/// lower.
fn allow_descriptors() {
    let Rlimit { current, maximum } = rustix::process::getrlimit(Resource::Nofile);
    if current.is_some_and(|current| current < DESCRIPTORS) {
        let wanted = maximum.map_or(DESCRIPTORS, |maximum| maximum.min(DESCRIPTORS));
        let _ = rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    }
}
