//! Copies a tree of an agent's files while the agent may change it.
//!
//! ```text
//!   live tree ──storing──► stored tree        shares unchanged files with the previous stored tree
//!   stored tree ──restoring──► live tree      shares only blocks, where the file system supports it
//! ```
//! The agent controls every name, mode, link and depth, and may change them during the copy. The copy therefore opens
//! every entry through descriptors, one level at a time, and follows no link. The copy contains files, directories,
//! symbolic and hard links, named pipes, permission bits, times and `user.*` attributes. The copy does not contain
//! sockets and devices. It also does not contain set-id bits, which have no effect where an agent's files are mounted.
//! Whiteouts of an overlay file system are copied only in a tree that is an upper layer.
//!
//! `host_files` copies a directory of this machine into a workspace.
//!
//! - `content`: a file's bytes · `attributes`: a file's attributes
//! - `stamps`: detects files that are unchanged since they were stored · `write_back`: writes dirty pages back

pub(super) mod attributes;
mod content;
mod host_files;
pub mod stamps;
mod write_back;

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
pub use self::host_files::copy_host_files;
use self::stamps::{Stamp, Stamps};
use super::nofollow::Readable;
use crate::{Copied, ProgressSink};

/// The name of an overlay's upper directory, which contains the bottle's changes to its image.
pub const UPPER: &str = "upper";

/// The maximum depth of directories. The copy of a deeper tree fails. Each level uses a few open descriptors. Real
/// workspaces are less deep, and `bottle cp` has the same limit.
pub(super) const MAX_DEPTH: usize = 128;

/// The maximum number of entries in all trees of one copy. A copy of more entries fails. Each entry uses memory of this
/// process. Real workspaces have fewer entries.
const MAX_ENTRIES: usize = 10_000_000;

/// The maximum number of hard-linked files that stay linked. The links of any further file become separate files.
pub(super) const MAX_LINKS: usize = 1_000_000;

/// The result of a copy.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The number of files and bytes copied.
    pub copied: Copied,
    /// The total size of all files in bytes, as `ls` shows it.
    pub size: u64,
    /// The number of files and directories that changed while they were copied.
    pub unstable: u64,
    /// The stamps of live files, each with the inode of the file's stored copy.
    pub stamps: Vec<(Stamp, u64)>,
}

/// Copies several trees one after the other, and collects one outcome for all trees.
pub struct Copier<'a> {
    direction: Direction<'a>,
    progress: &'a ProgressSink,
    support: CopySupport,
    /// Whether the tree contains whiteouts, which are devices with number 0.
    whiteouts: bool,
    /// The path at which each hard-linked file was first copied, relative to the top of the copy. The key is the file's
    /// inode.
    links: HashMap<u64, PathBuf>,
    /// The number of entries that may still be copied.
    entries_left: usize,
    outcome: Outcome,
}

enum Direction<'a> {
    Store { unchanged: Option<&'a Stamps> },
    Restore { owner: Option<u32> },
}

/// One level of the directory walk.
struct Level<'a> {
    from: BorrowedFd<'a>,
    to: BorrowedFd<'a>,
    /// The same directory in the previous stored tree.
    previous: Option<BorrowedFd<'a>>,
    /// The top directory of the copy, in which hard links find the first copy of a file.
    top: BorrowedFd<'a>,
    path: &'a Path,
}

impl<'a> Copier<'a> {
    /// Creates a copier that stores a live tree. `unchanged` contains the stamps of the previous stored tree. A file
    /// that is unchanged since its stamp is linked instead of copied.
    pub fn storing(unchanged: Option<&'a Stamps>, progress: &'a ProgressSink) -> Self {
        Self::new(Direction::Store { unchanged }, progress)
    }

    /// Creates a copier that restores a stored tree. If root runs the copy, `owner` owns the restored files.
    pub fn restoring(owner: Option<u32>, progress: &'a ProgressSink) -> Self {
        Self::new(Direction::Restore { owner }, progress)
    }

    fn new(direction: Direction<'a>, progress: &'a ProgressSink) -> Self {
        let (support, links) = (CopySupport::default(), HashMap::new());
        let (entries_left, outcome) = (MAX_ENTRIES, Outcome::default());
        Self { direction, progress, support, whiteouts: false, links, entries_left, outcome }
    }

    /// Returns the outcome for all trees.
    pub fn finish(self) -> Outcome {
        self.outcome
    }

    /// Copies the directory `name` in `from` to a new directory `name` in `to`.
    ///
    /// # Errors
    /// When an entry cannot be read or the copy cannot be written. The error names the path of the entry.
    pub fn tree(
        &mut self,
        from: &OwnedFd,
        to: &OwnedFd,
        previous: Option<&OwnedFd>,
        name: &str,
    ) -> io::Result<()> {
        self.whiteouts = name == UPPER;
        let name = &CString::new(name)?;
        // Each tree is a separate mount, and hard links cannot cross mounts.
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
        self.directory(&level, name, 0)
    }

    fn entry(&mut self, level: &Level<'_>, name: &CStr, depth: usize) -> io::Result<()> {
        let path = level.path.join(OsStr::from_bytes(name.to_bytes()));
        let stat = statat(level.from, name, AtFlags::SYMLINK_NOFOLLOW);
        let Some(stat) = self.ignore_removed(stat).map_err(|error| about(&path, &error))? else {
            return Ok(());
        };
        let copied = match FileType::from_raw_mode(stat.st_mode) {
            // `directory` itself adds the path to its errors.
            FileType::Directory => return self.directory(level, name, depth),
            FileType::RegularFile => self.file(level, name, &path, &stat),
            FileType::Symlink => self.symlink(level, name, &stat),
            FileType::Fifo => self.pipe(level, name, &stat),
            FileType::CharacterDevice if self.whiteouts && stat.st_rdev == 0 => whiteout(level, name),
            _ => Ok(()),
        };
        copied.map_err(|error| about(&path, &error))
    }

    fn directory(&mut self, level: &Level<'_>, name: &CStr, depth: usize) -> io::Result<()> {
        let path = level.path.join(OsStr::from_bytes(name.to_bytes()));
        let named = |error: io::Error| about(&path, &error);
        if depth == MAX_DEPTH {
            let why = format!("more than {MAX_DEPTH} directories deep");
            return Err(named(io::Error::new(io::ErrorKind::InvalidFilename, why)));
        }
        let opened = self.ignore_removed(Readable::directory(level.from, name)).map_err(named)?;
        let Some(from) = opened else { return Ok(()) };
        let stat = from.stat().map_err(|error| named(error.into()))?;
        mkdirat(level.to, name, Mode::RWXU).map_err(|error| named(error.into()))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let to = openat(level.to, name, flags, Mode::empty()).map_err(|error| named(error.into()))?;
        let previous = level.previous.and_then(|previous| Readable::directory(previous, name).ok());
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
        if !self.try_link(level, name, stat) {
            self.copy_file(level, name, stat)?;
            if stat.st_nlink > 1 && self.links.len() < MAX_LINKS {
                self.links.insert(stat.st_ino, path.to_owned());
            }
        }
        self.progress.report(self.outcome.copied);
        Ok(())
    }

    /// Tries to hard-link the file instead of copying it. The link's target is the same file under an earlier copied
    /// name, or the file's copy in the previous stored tree. Returns whether the file is linked.
    fn try_link(&mut self, level: &Level<'_>, name: &CStr, stat: &Stat) -> bool {
        // If linking fails (too many links, or the path is too long), the file is copied instead.
        if stat.st_nlink > 1
            && let Some(first) = self.links.get(&stat.st_ino)
            && linkat(level.top, first, level.to, name, AtFlags::empty()).is_ok()
        {
            return true;
        }
        let (Direction::Store { unchanged: Some(unchanged) }, Some(previous)) =
            (&self.direction, level.previous)
        else {
            return false;
        };
        let live = Stamp::from_stat(stat);
        let Some(stored) = unchanged.stored(&live) else { return false };
        let here = statat(previous, name, AtFlags::SYMLINK_NOFOLLOW);
        let same = here.is_ok_and(|found| found.st_ino == stored && is_file(&found));
        let linked = same && linkat(previous, name, level.to, name, AtFlags::empty()).is_ok();
        if linked {
            self.outcome.stamps.push((live, stored));
        }
        linked
    }

    fn copy_file(&mut self, level: &Level<'_>, name: &CStr, seen: &Stat) -> io::Result<()> {
        let Some(from) = self.ignore_removed(Readable::file(level.from, name))? else { return Ok(()) };
        let stat = from.stat()?;
        if !is_file(&stat) {
            self.outcome.unstable += 1;
            return Ok(());
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let to = File::from(openat(level.to, name, flags, Mode::RUSR | Mode::WUSR)?);
        let live = matches!(self.direction, Direction::Store { .. });
        let source = File::from(from.file_descriptor().try_clone()?);
        let content = self.support.copy(&source, &to, live)?;
        attributes::copy(from.file_descriptor(), &to, &stat, self.owner(&stat))?;
        self.outcome.copied.bytes += content.written;
        self.outcome.unstable += u64::from(!content.unchanged);
        let stored = rustix::fs::fstat(&to)?;
        match self.direction {
            Direction::Store { .. } if content.unchanged => {
                self.outcome.stamps.push((content.stamp, stored.st_ino));
            }
            Direction::Store { .. } => {}
            Direction::Restore { .. } => self.outcome.stamps.push((Stamp::from_stat(&stored), seen.st_ino)),
        }
        Ok(())
    }

    fn symlink(&mut self, level: &Level<'_>, name: &CStr, stat: &Stat) -> io::Result<()> {
        let target = rustix::fs::readlinkat(level.from, name, Vec::new());
        let Some(target) = self.ignore_removed(target)? else { return Ok(()) };
        rustix::fs::symlinkat(&target, level.to, name)?;
        attributes::copy_by_name(level.to, name, stat, self.owner(stat))
    }

    fn pipe(&mut self, level: &Level<'_>, name: &CStr, stat: &Stat) -> io::Result<()> {
        mknodat(level.to, name, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        attributes::copy_by_name(level.to, name, stat, self.owner(stat))?;
        Ok(super::nofollow::chmod(level.to, name, attributes::mode(stat))?)
    }

    fn owner(&self, stat: &Stat) -> Option<Owner> {
        // If an ordinary user runs the copy, that user owns all files.
        let owner = match self.direction {
            Direction::Restore { owner: Some(owner) } => Owner { user: owner, group: owner },
            _ => Owner { user: stat.st_uid, group: stat.st_gid },
        };
        rustix::process::geteuid().is_root().then_some(owner)
    }

    fn names_in(&mut self, directory: &OwnedFd) -> io::Result<Vec<CString>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(directory)? {
            let name = entry?.file_name().to_owned();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            self.entries_left = self.entries_left.checked_sub(1).ok_or_else(|| {
                io::Error::new(
                    io::ErrorKind::QuotaExceeded,
                    format!("more than {MAX_ENTRIES} files and directories"),
                )
            })?;
            names.push(name);
        }
        Ok(names)
    }

    /// Returns `None` for an entry of a live tree that was removed or replaced after it was listed. In a stored tree,
    /// which does not change, a missing entry is an error.
    fn ignore_removed<T>(&mut self, found: rustix::io::Result<T>) -> io::Result<Option<T>> {
        let live = matches!(self.direction, Direction::Store { .. });
        match found {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NXIO | Errno::INVAL) if live => {
                self.outcome.unstable += 1;
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Copies the content of the directory `from` to a new directory `name` in `to`. If root runs the copy, `owner` owns
/// the files. The source must not change during the copy.
///
/// # Errors
/// The errors of [`Copier::tree`].
pub fn tree_into(from: &Path, to: &Path, name: &str, owner: Option<u32>) -> io::Result<Outcome> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let (from, to) =
        (rustix::fs::open(from, flags, Mode::empty())?, rustix::fs::open(to, flags, Mode::empty())?);
    let progress = ProgressSink::discard();
    let mut copier = Copier::restoring(owner, &progress);
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

/// Creates a whiteout. Overlay file systems mark a removed file with a whiteout. A whiteout is a device without a
/// driver, so it is harmless, and every user may create one.
fn whiteout(level: &Level<'_>, name: &CStr) -> io::Result<()> {
    Ok(mknodat(level.to, name, FileType::CharacterDevice, Mode::empty(), 0)?)
}

fn is_file(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

/// Adds the path to an error. Adds only the end of a long path.
pub(super) fn about(path: &Path, error: &io::Error) -> io::Error {
    let shown = path.to_string_lossy();
    let tail: String = shown.chars().rev().take(100).collect::<Vec<_>>().into_iter().rev().collect();
    let shown = if tail.len() < shown.len() { format!("…{tail}") } else { tail };
    io::Error::new(error.kind(), format!("{shown:?}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_a_tree_with_too_many_entries_and_names_the_path() {
        let scratch = tempfile::tempdir().expect("directory");
        std::fs::create_dir_all(scratch.path().join("from/work/many")).expect("tree");
        std::fs::create_dir(scratch.path().join("to")).expect("directory");
        for name in ["a", "b", "c"] {
            std::fs::write(scratch.path().join("from/work/many").join(name), name).expect("file");
        }
        let open = |name: &str| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            rustix::fs::open(scratch.path().join(name), flags, Mode::empty()).expect("opened")
        };
        let progress = ProgressSink::discard();
        for (entries, fits) in [(4, true), (3, false)] {
            let mut copier = Copier::storing(None, &progress);
            copier.entries_left = entries;
            let copied = copier.tree(&open("from"), &open("to"), None, "work");
            assert_eq!(copied.is_ok(), fits, "{copied:?}");
            if let Err(error) = copied {
                let message = error.to_string();
                assert!(
                    message.contains("work/many") && message.contains("more than 10000000 files"),
                    "{message}"
                );
            }
            std::fs::remove_dir_all(scratch.path().join("to/work")).expect("removed");
        }
    }
}
