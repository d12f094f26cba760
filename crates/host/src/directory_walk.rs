//! Walks a directory whose content may be hostile. The number of entries, the time and the depth are bounded, and
//! symlinks are not followed.

use std::ffi::{CStr, CString, OsStr};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, openat, readlinkat, statat};
use rustix::io::Errno;

/// The maximum depth of nested directories. Each level needs an open descriptor.
pub const MAX_DEPTH: usize = 128;

/// The maximum length of the list of unreadable directories, and of the list of directories that are too deep.
const MAX_NAMED: usize = 20;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The bounds of a walk.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// The maximum number of entries.
    pub entries: usize,
    /// The maximum duration.
    pub time: Duration,
}

/// What the walk does after the visit of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The walk continues, and enters the entry if it is a directory.
    Enter,
    /// The walk continues, but does not enter the entry.
    Skip,
    /// The walk ends.
    Stop,
}

/// An entry of a walk.
pub struct Entry<'a> {
    /// The path, relative to the top of the walk.
    pub path: &'a Path,
    /// The kind of the entry.
    pub kind: FileType,
    directory: BorrowedFd<'a>,
    name: &'a CStr,
    siblings: &'a [(CString, FileType)],
}

impl Entry<'_> {
    /// Returns the file name of the entry.
    #[must_use]
    pub fn name(&self) -> &OsStr {
        OsStr::from_bytes(self.name.to_bytes())
    }

    /// Returns the metadata of the entry; of the link itself if the entry is a symlink. `None` if the entry was removed
    /// meanwhile.
    #[must_use]
    pub fn stat(&self) -> Option<Stat> {
        statat(self.directory, self.name, AtFlags::SYMLINK_NOFOLLOW).ok()
    }

    /// Returns the target of the entry, which must be a symlink.
    #[must_use]
    pub fn target(&self) -> Option<PathBuf> {
        let target = readlinkat(self.directory, self.name, Vec::new()).ok()?;
        Some(PathBuf::from(OsStr::from_bytes(target.to_bytes())))
    }

    /// Whether the entry's directory contains an entry of this name. The comparison ignores case, as the file systems
    /// of macOS do.
    #[must_use]
    pub fn is_beside(&self, name: &str) -> bool {
        self.siblings.iter().any(|(other, _)| other.to_bytes().eq_ignore_ascii_case(name.as_bytes()))
    }
}

/// Why a walk ended before it visited all entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// There are more entries than [`Bounds::entries`].
    Entries(usize),
    /// The walk took longer than [`Bounds::time`].
    Time(Duration),
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Entries(entries) => write!(f, "it has more than {entries} files and directories"),
            Self::Time(time) => write!(f, "looking through it takes longer than {} s", time.as_secs()),
        }
    }
}

/// How a walk ended.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Walked {
    /// The bound that ended the walk. `None` if the walk visited all entries, or the visitor stopped it.
    pub bound: Option<Bound>,
    /// The directories that could not be read, at most 20 of them.
    pub unreadable: Vec<PathBuf>,
    /// The directories that the walk did not enter because they are more than [`MAX_DEPTH`] levels deep, at most 20 of
    /// them.
    pub too_deep: Vec<PathBuf>,
}

/// Visits each entry of a directory, except the directory itself. Entries that are removed during the walk are skipped.
///
/// # Errors
/// Fails if the directory itself cannot be read.
pub fn walk(top: &Path, bounds: Bounds, visit: &mut dyn FnMut(&Entry<'_>) -> Next) -> io::Result<Walked> {
    let top = openat(CWD, top, DIRECTORY, Mode::empty())?;
    let mut walk = Walk { bounds, begun: Instant::now(), seen: 0, walked: Walked::default(), visit };
    let entries = entries(&top)?;
    walk.directory(&top, &entries, Path::new(""), 1);
    Ok(walk.walked)
}

struct Walk<'a> {
    bounds: Bounds,
    begun: Instant,
    seen: usize,
    walked: Walked,
    visit: &'a mut dyn FnMut(&Entry<'_>) -> Next,
}

impl Walk<'_> {
    /// Visits the entries of `directory`. Returns false if the walk ends.
    fn directory(
        &mut self,
        directory: &OwnedFd,
        entries: &[(CString, FileType)],
        path: &Path,
        depth: usize,
    ) -> bool {
        for (name, kind) in entries {
            self.seen += 1;
            if self.seen > self.bounds.entries {
                return self.end(Bound::Entries(self.bounds.entries));
            }
            if self.seen.is_multiple_of(1024) && self.begun.elapsed() > self.bounds.time {
                return self.end(Bound::Time(self.bounds.time));
            }
            let path = path.join(OsStr::from_bytes(name.to_bytes()));
            let directory = directory.as_fd();
            let entry = Entry { path: &path, kind: *kind, directory, name, siblings: entries };
            let goes_on = match (self.visit)(&entry) {
                Next::Stop => false,
                Next::Enter if *kind == FileType::Directory => self.enter(directory, name, &path, depth),
                Next::Enter | Next::Skip => true,
            };
            if !goes_on {
                return false;
            }
        }
        true
    }

    fn enter(&mut self, parent: BorrowedFd<'_>, name: &CStr, path: &Path, depth: usize) -> bool {
        if depth == MAX_DEPTH {
            name_some(&mut self.walked.too_deep, path);
            return true;
        }
        let opened = openat(parent, name, DIRECTORY, Mode::empty()).map_err(io::Error::from);
        match opened.and_then(|directory| entries(&directory).map(|entries| (directory, entries))) {
            Ok((directory, entries)) => self.directory(&directory, &entries, path, depth + 1),
            // The directory was removed or replaced after its parent was listed.
            Err(error) if is_gone(&error) => true,
            Err(_) => {
                name_some(&mut self.walked.unreadable, path);
                true
            }
        }
    }

    fn end(&mut self, bound: Bound) -> bool {
        self.walked.bound = Some(bound);
        false
    }
}

/// Adds a path to a list, unless the list already has [`MAX_NAMED`] paths.
fn name_some(named: &mut Vec<PathBuf>, path: &Path) {
    if named.len() < MAX_NAMED {
        named.push(path.to_owned());
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP))
}

/// Returns the names and kinds of a directory's entries, sorted by name.
fn entries(directory: &OwnedFd) -> io::Result<Vec<(CString, FileType)>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                Err(_) => continue,
            },
            known => known,
        };
        found.push((name.to_owned(), kind));
    }
    found.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    const BOUNDS: Bounds = Bounds { entries: 100, time: Duration::from_secs(60) };

    fn seen(top: &Path, bounds: Bounds) -> (Vec<String>, Walked) {
        let mut paths = Vec::new();
        let walked = walk(top, bounds, &mut |entry| {
            paths.push(entry.path.display().to_string());
            match entry.path.to_str() {
                Some("skipped") => Next::Skip,
                Some("stop") => Next::Stop,
                _ => Next::Enter,
            }
        });
        (paths, walked.expect("walked"))
    }

    #[test]
    fn visits_each_entry_and_follows_no_link() {
        let directory = tempfile::tempdir().expect("directory");
        fs::create_dir_all(directory.path().join("a/b")).expect("directories");
        fs::create_dir_all(directory.path().join("skipped/in")).expect("directories");
        fs::write(directory.path().join("a/b/file"), "x").expect("file");
        symlink("/", directory.path().join("a/root")).expect("link");
        let (paths, walked) = seen(directory.path(), BOUNDS);
        assert_eq!(paths, ["a", "a/b", "a/b/file", "a/root", "skipped"]);
        assert_eq!(walked, Walked::default());
        fs::write(directory.path().join("stop"), "x").expect("file");
        fs::write(directory.path().join("z"), "x").expect("file");
        assert_eq!(seen(directory.path(), BOUNDS).0.last().map(String::as_str), Some("stop"));
    }

    #[test]
    fn ends_at_its_bounds() {
        let directory = tempfile::tempdir().expect("directory");
        for name in ["a", "b", "c"] {
            fs::write(directory.path().join(name), "x").expect("file");
        }
        let (paths, walked) = seen(directory.path(), Bounds { entries: 2, ..BOUNDS });
        assert_eq!((paths.len(), walked.bound), (2, Some(Bound::Entries(2))));
        fs::rename(directory.path().join("c"), directory.path().join("z")).expect("renamed");
        let deep: PathBuf = std::iter::repeat_n("d", 200).collect();
        fs::create_dir_all(directory.path().join(deep)).expect("directories");
        let (paths, walked) = seen(directory.path(), Bounds { entries: 1000, ..BOUNDS });
        assert_eq!(walked.bound, None);
        assert_eq!(walked.too_deep, [std::iter::repeat_n("d", MAX_DEPTH).collect::<PathBuf>()]);
        assert_eq!(paths.len(), 3 + MAX_DEPTH, "the walk goes on after it");
        assert!(walk(&directory.path().join("a"), BOUNDS, &mut |_| Next::Enter).is_err(), "it is a file");
    }
}
