//! A tree of an agent's files copied beside itself, while the agent goes on with it.
//!
//! ```text
//!   live tree ──into_store──► stored tree      shares with the previous stored tree what did not change
//!   stored tree ──into_life──► live tree       shares nothing but blocks, where the file system can
//! ```
//! Every name, mode, link and depth is the agent's choice and may change under our hands: everything is
//! opened by descriptor, one level at a time, never through a link. Files, folders, symbolic and hard
//! links, named pipes, permission bits, times and `user.*` attributes come through; sockets and devices do
//! not, nor do set-id bits, which mean nothing where an agent's files are mounted. Of what an overlay file system
//! keeps beside files, what was removed comes through: in the tree that is one's upper layer, and nowhere else.
//!
//! - `content`: one file's bytes · `attributes`: everything else about it
//! - `stamps`: which file is unchanged since it was stored

mod attributes;
mod content;
pub(crate) mod stamps;

use std::collections::HashMap;
use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, Stat, Uid, linkat, mkdirat, mknodat, openat, statat,
};
use rustix::io::Errno;

use self::attributes::Owner;
use self::content::CopySupport;
use self::stamps::{Stamp, Stamps};
use super::layers::UPPER;
use super::nofollow::Readable;
use crate::backend::{Copied, ProgressSink};

/// Folders within folders; a few open descriptors each. Deeper trees are no one's work, and `cp` refuses
/// them too.
const MAX_DEPTH: usize = 128;

/// Everything that has a name, in all trees together. More is no one's work, and what is remembered of each is
/// memory of ours.
const MAX_ENTRIES: usize = 10_000_000;

/// The most hard links that are kept together; beyond it each becomes a file of its own.
const MAX_LINKS: usize = 1_000_000;

/// What came of a copy.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// How much there was to do.
    pub(crate) copied: Copied,
    /// Bytes of all files, as `ls` counts them.
    pub(crate) size: u64,
    /// Files and folders that changed while they were copied.
    pub(crate) restless: u64,
    /// Live files and the inodes of their stored copies.
    pub(crate) stamps: Vec<(Stamp, u64)>,
}

/// Copies trees, one after the other, with one outcome.
pub(crate) struct Copier<'a> {
    direction: Direction<'a>,
    told: &'a ProgressSink,
    ways: CopySupport,
    /// Whether a device of number 0 stands for what was removed of an image.
    whiteouts: bool,
    /// Where the first of several names of a file was copied to, under the top of the copy.
    links: HashMap<u64, PathBuf>,
    /// How many more entries there may be.
    room: usize,
    outcome: Outcome,
}

enum Direction<'a> {
    IntoStore { unchanged: Option<&'a Stamps> },
    IntoLife { owner: Option<u32> },
}

/// One level of the walk.
struct Level<'a> {
    from: BorrowedFd<'a>,
    to: BorrowedFd<'a>,
    /// The same folder of the previous stored tree.
    previous: Option<BorrowedFd<'a>>,
    /// The top of the copy, for hard links.
    top: BorrowedFd<'a>,
    path: &'a Path,
}

impl<'a> Copier<'a> {
    /// Stores a live tree. With `unchanged` (of the tree that is given as the previous one) files that did
    /// not change are linked instead of copied.
    pub(crate) fn into_store(unchanged: Option<&'a Stamps>, told: &'a ProgressSink) -> Self {
        Self::new(Direction::IntoStore { unchanged }, told)
    }

    /// Brings a stored tree to life, for this owner when root does it.
    pub(crate) fn into_life(owner: Option<u32>, told: &'a ProgressSink) -> Self {
        Self::new(Direction::IntoLife { owner }, told)
    }

    fn new(direction: Direction<'a>, told: &'a ProgressSink) -> Self {
        let (ways, links) = (CopySupport::default(), HashMap::new());
        let (room, outcome) = (MAX_ENTRIES, Outcome::default());
        Self { direction, told, ways, whiteouts: false, links, room, outcome }
    }

    /// What came of all trees so far.
    pub(crate) fn finish(self) -> Outcome {
        self.outcome
    }

    /// Copies the folder `name` of `from` to the new folder `name` of `to`, whatever is in it.
    ///
    /// # Errors
    /// When something that is there cannot be read, or the copy cannot be written; names the path.
    pub(crate) fn tree(
        &mut self,
        from: &OwnedFd,
        to: &OwnedFd,
        previous: Option<&OwnedFd>,
        name: &str,
    ) -> io::Result<()> {
        self.whiteouts = name == UPPER;
        let name = &CString::new(name)?;
        // Each tree has a top of its own, as each is mounted on its own and links do not cross it.
        self.links.clear();
        if FileType::from_raw_mode(statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode)
            != FileType::Directory
        {
            return Err(about(
                Path::new(OsStr::from_bytes(name.to_bytes())),
                &io::ErrorKind::NotADirectory.into(),
            ));
        }
        let level = Level {
            from: from.as_fd(),
            to: to.as_fd(),
            previous: previous.map(AsFd::as_fd),
            top: to.as_fd(),
            path: Path::new(""),
        };
        self.folder(&level, name, 0)
    }

    fn entry(&mut self, level: &Level<'_>, name: &CStr, depth: usize) -> io::Result<()> {
        let path = level.path.join(OsStr::from_bytes(name.to_bytes()));
        let stat = statat(level.from, name, AtFlags::SYMLINK_NOFOLLOW);
        let Some(stat) = self.unless_removed(stat).map_err(|error| about(&path, &error))? else {
            return Ok(());
        };
        let copied = match FileType::from_raw_mode(stat.st_mode) {
            // Has named the path by itself.
            FileType::Directory => return self.folder(level, name, depth),
            FileType::RegularFile => self.file(level, name, &path, &stat),
            FileType::Symlink => self.symlink(level, name, &stat),
            FileType::Fifo => self.pipe(level, name, &stat),
            FileType::CharacterDevice if self.whiteouts && stat.st_rdev == 0 => whiteout(level, name),
            _ => Ok(()),
        };
        copied.map_err(|error| about(&path, &error))
    }

    fn folder(&mut self, level: &Level<'_>, name: &CStr, depth: usize) -> io::Result<()> {
        let path = level.path.join(OsStr::from_bytes(name.to_bytes()));
        let named = |error: io::Error| about(&path, &error);
        if depth == MAX_DEPTH {
            let why = format!("more than {MAX_DEPTH} folders deep");
            return Err(named(io::Error::new(io::ErrorKind::InvalidFilename, why)));
        }
        let opened = self.unless_removed(Readable::folder(level.from, name)).map_err(named)?;
        let Some(from) = opened else { return Ok(()) };
        let stat = from.stat().map_err(|error| named(error.into()))?;
        mkdirat(level.to, name, Mode::RWXU).map_err(|error| named(error.into()))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let to = openat(level.to, name, flags, Mode::empty()).map_err(|error| named(error.into()))?;
        let previous = level.previous.and_then(|previous| Readable::folder(previous, name).ok());
        let entries = self.names_in(from.file_descriptor()).map_err(named)?;
        let below = Level {
            from: from.file_descriptor().as_fd(),
            to: to.as_fd(),
            previous: previous.as_ref().map(|previous| previous.file_descriptor().as_fd()),
            top: level.top,
            path: &path,
        };
        for entry in entries {
            self.entry(&below, &entry, depth + 1)?;
        }
        attributes::copy(from.file_descriptor(), &to, &stat, self.owner(&stat)).map_err(named)
    }

    fn file(&mut self, level: &Level<'_>, name: &CStr, path: &Path, stat: &Stat) -> io::Result<()> {
        self.outcome.copied.files += 1;
        self.outcome.size += u64::try_from(stat.st_size).unwrap_or(0);
        if !self.linked(level, name, stat) {
            self.copied(level, name, stat)?;
            if stat.st_nlink > 1 && self.links.len() < MAX_LINKS {
                self.links.insert(stat.st_ino, path.to_owned());
            }
        }
        self.told.tell(self.outcome.copied);
        Ok(())
    }

    /// Whether the file could be linked: to another name it has in this tree, or to the copy that the previous
    /// stored tree has of it.
    fn linked(&mut self, level: &Level<'_>, name: &CStr, stat: &Stat) -> bool {
        // A link that cannot be made (too many, a path too long) is no loss: the file is copied instead.
        if stat.st_nlink > 1
            && let Some(first) = self.links.get(&stat.st_ino)
            && linkat(level.top, first, level.to, name, AtFlags::empty()).is_ok()
        {
            return true;
        }
        let (Direction::IntoStore { unchanged: Some(unchanged) }, Some(previous)) =
            (&self.direction, level.previous)
        else {
            return false;
        };
        let live = Stamp::of(stat);
        let Some(stored) = unchanged.stored(&live) else { return false };
        let here = statat(previous, name, AtFlags::SYMLINK_NOFOLLOW);
        let same = here.is_ok_and(|found| found.st_ino == stored && is_file(&found));
        let linked = same && linkat(previous, name, level.to, name, AtFlags::empty()).is_ok();
        if linked {
            self.outcome.stamps.push((live, stored));
        }
        linked
    }

    fn copied(&mut self, level: &Level<'_>, name: &CStr, seen: &Stat) -> io::Result<()> {
        let Some(from) = self.unless_removed(Readable::file(level.from, name))? else { return Ok(()) };
        let stat = from.stat()?;
        if !is_file(&stat) {
            self.outcome.restless += 1;
            return Ok(());
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let to = File::from(openat(level.to, name, flags, Mode::RUSR | Mode::WUSR)?);
        let live = matches!(self.direction, Direction::IntoStore { .. });
        let source = File::from(from.file_descriptor().try_clone()?);
        let content = self.ways.copy(&source, &to, live)?;
        attributes::copy(from.file_descriptor(), &to, &stat, self.owner(&stat))?;
        self.outcome.copied.bytes += content.written;
        self.outcome.restless += u64::from(!content.settled);
        let stored = rustix::fs::fstat(&to)?;
        match self.direction {
            Direction::IntoStore { .. } if content.settled => {
                self.outcome.stamps.push((content.stamp, stored.st_ino));
            }
            Direction::IntoStore { .. } => {}
            Direction::IntoLife { .. } => self.outcome.stamps.push((Stamp::of(&stored), seen.st_ino)),
        }
        Ok(())
    }

    fn symlink(&mut self, level: &Level<'_>, name: &CStr, stat: &Stat) -> io::Result<()> {
        let target = rustix::fs::readlinkat(level.from, name, Vec::new());
        let Some(target) = self.unless_removed(target)? else { return Ok(()) };
        rustix::fs::symlinkat(&target, level.to, name)?;
        attributes::of_name(level.to, name, stat, self.owner(stat))
    }

    fn pipe(&mut self, level: &Level<'_>, name: &CStr, stat: &Stat) -> io::Result<()> {
        mknodat(level.to, name, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        attributes::of_name(level.to, name, stat, self.owner(stat))?;
        Ok(super::nofollow::chmod(level.to, name, attributes::mode(stat))?)
    }

    fn owner(&self, stat: &Stat) -> Option<Owner> {
        // Whoever is not root owns all of it anyway.
        let owner = match self.direction {
            Direction::IntoLife { owner: Some(owner) } => Owner { user: owner, group: owner },
            _ => Owner { user: stat.st_uid, group: stat.st_gid },
        };
        rustix::process::geteuid().is_root().then_some(owner)
    }

    fn names_in(&mut self, folder: &OwnedFd) -> io::Result<Vec<CString>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(folder)? {
            let name = entry?.file_name().to_owned();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            self.room = self.room.checked_sub(1).ok_or_else(|| {
                io::Error::new(
                    io::ErrorKind::QuotaExceeded,
                    format!("more than {MAX_ENTRIES} files and folders"),
                )
            })?;
            names.push(name);
        }
        Ok(names)
    }

    /// Nothing when what was listed a moment ago is gone, or something else by now. A stored tree holds
    /// still.
    fn unless_removed<T>(&mut self, found: rustix::io::Result<T>) -> io::Result<Option<T>> {
        let live = matches!(self.direction, Direction::IntoStore { .. });
        match found {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NXIO | Errno::INVAL) if live => {
                self.outcome.restless += 1;
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Copies what is in the folder `from` to a new folder of this name, for this owner when root does it. What is
/// there is somebody's own and holds still.
///
/// # Errors
/// As [`Copier::tree`].
pub(crate) fn tree_into(from: &Path, to: &Path, name: &str, owner: Option<u32>) -> io::Result<Outcome> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let (from, to) =
        (rustix::fs::open(from, flags, Mode::empty())?, rustix::fs::open(to, flags, Mode::empty())?);
    let nobody = ProgressSink::nobody();
    let mut copier = Copier::into_life(owner, &nobody);
    mkdirat(&to, name, Mode::from_raw_mode(0o755))?;
    let top = openat(&to, name, flags, Mode::empty())?;
    let level =
        Level { from: from.as_fd(), to: top.as_fd(), previous: None, top: top.as_fd(), path: Path::new("") };
    for entry in copier.names_in(&from)? {
        copier.entry(&level, &entry, 0)?;
    }
    if owner.is_some() {
        rustix::fs::fchown(&top, owner.map(Uid::from_raw), owner.map(Gid::from_raw))?;
    }
    Ok(copier.finish())
}

/// What an overlay file system keeps in the place of what was removed. It is no device: nothing answers to it,
/// and everyone may make one.
fn whiteout(level: &Level<'_>, name: &CStr) -> io::Result<()> {
    Ok(mknodat(level.to, name, FileType::CharacterDevice, Mode::empty(), 0)?)
}

fn is_file(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

/// An error that names its path, of which only the end is shown when it is long.
fn about(path: &Path, error: &io::Error) -> io::Error {
    let shown = path.to_string_lossy();
    let tail: String = shown.chars().rev().take(100).collect::<Vec<_>>().into_iter().rev().collect();
    let shown = if tail.len() < shown.len() { format!("…{tail}") } else { tail };
    io::Error::new(error.kind(), format!("{shown:?}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_of_more_entries_than_anyone_makes_is_refused_by_name() {
        let room = tempfile::tempdir().expect("folder");
        std::fs::create_dir_all(room.path().join("from/work/many")).expect("tree");
        std::fs::create_dir(room.path().join("to")).expect("folder");
        for name in ["a", "b", "c"] {
            std::fs::write(room.path().join("from/work/many").join(name), name).expect("file");
        }
        let open = |name: &str| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            rustix::fs::open(room.path().join(name), flags, Mode::empty()).expect("opened")
        };
        let nobody = ProgressSink::nobody();
        for (entries, fits) in [(4, true), (3, false)] {
            let mut copier = Copier::into_store(None, &nobody);
            copier.room = entries;
            let copied = copier.tree(&open("from"), &open("to"), None, "work");
            assert_eq!(copied.is_ok(), fits, "{copied:?}");
            if let Err(error) = copied {
                let said = error.to_string();
                assert!(said.contains("work/many") && said.contains("more than 10000000 files"), "{said}");
            }
            std::fs::remove_dir_all(room.path().join("to/work")).expect("removed");
        }
    }
}
