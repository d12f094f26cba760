//! Walks a directory that other processes may change during the walk.
//!
//! Each directory is opened relative to the descriptor of its parent and without following a link, and an entry keeps
//! the descriptor of its parent. Therefore no entry is outside of the walked directory, even if its path has changed by
//! the time the entry is used.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{Dir, FileType, Stat};
use rustix::io::Errno;

use crate::directory::{Directory, FileId, ReadError};
use crate::ignore_rules::{IgnoreRules, RuleError};

/// The maximum depth of directories. Each level needs two open descriptors. Real projects are less deep. Copies of
/// bottles' files have the same limit.
pub const MAX_DEPTH: usize = 128;

/// The maximum number of entries of a walk, including ignored ones.
pub const MAX_ENTRIES: usize = 10_000_000;

/// The maximum number of attempts to open an entry that other processes keep replacing.
const TRIES: usize = 8;

/// The name of a git directory. Ignore rules do not apply to its files.
const GIT_DIRECTORY: &[u8] = b".git";

/// Returns whether a file is included although the rules ignore it, or whether a directory contains such a file. The
/// path is relative to the walked directory.
pub type Keep = Box<dyn Fn(&Path, FileType) -> bool + Send>;

/// Returns whether an entry and everything below it is left out. The path is relative to the walked directory.
pub type LeaveOut = Box<dyn Fn(&Path, FileType) -> bool + Send>;

/// Ends walks from another thread, or after a time.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    stopped: Arc<AtomicBool>,
    at: Option<Instant>,
}

/// Sets a [`Stop`] when this value is dropped.
#[derive(Debug)]
pub struct StopOnDrop(Stop);

impl Stop {
    /// Creates a value that ends walks after this duration.
    #[must_use]
    pub fn after(time: Duration) -> Self {
        Self { at: Instant::now().checked_add(time), ..Self::default() }
    }

    /// Ends the walks now.
    pub fn set(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Whether the walks have to end.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.stopped.load(Ordering::Relaxed) || self.at.is_some_and(|at| at <= Instant::now())
    }

    /// Returns a value that ends the walks when it is dropped.
    #[must_use]
    pub fn on_drop(&self) -> StopOnDrop {
        StopOnDrop(self.clone())
    }
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.set();
    }
}

/// An iterator over the entries of a directory, in no order, except that a directory comes before its content.
///
/// After an error, the walk continues without the entry, or without the content of the directory.
pub struct Walk {
    levels: Vec<Level>,
    rules: Option<IgnoreRules>,
    keep: Option<Keep>,
    leave_out: Option<LeaveOut>,
    /// The paths of entries that are left out with everything below them.
    except: Vec<PathBuf>,
    stop: Stop,
    /// The directory that was the last entry. Its content comes next.
    next: Option<Pending>,
    entries_left: usize,
}

/// An entry of a walked directory.
#[derive(Debug, Clone)]
pub struct Entry {
    parent: Arc<Directory>,
    name: OsString,
    path: PathBuf,
    status: Stat,
}

/// Why an entry is not part of a walk.
#[derive(Debug, thiserror::Error)]
pub enum WalkError {
    /// A directory is nested too deeply.
    #[error("{} is more than {MAX_DEPTH} directories deep", .0.display())]
    TooDeep(PathBuf),
    /// There are too many entries. The walk ends.
    #[error("{} has more than {MAX_ENTRIES} files and directories", .0.display())]
    TooMany(PathBuf),
    /// [`Stop`] was set. The walk ends.
    #[error("the walk was stopped")]
    Stopped,
    /// The ignore rules in a directory are unknown.
    #[error(transparent)]
    Rules(#[from] RuleError),
    /// A system call failed.
    #[error("{}: {error}", path.display())]
    System {
        /// The path of the entry.
        path: PathBuf,
        /// The I/O error.
        error: io::Error,
    },
}

impl From<WalkError> for io::Error {
    fn from(error: WalkError) -> Self {
        let kind = match &error {
            WalkError::System { error, .. }
            | WalkError::Rules(RuleError::Unreadable(ReadError::System { error, .. })) => error.kind(),
            WalkError::Stopped => io::ErrorKind::Interrupted,
            _ => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

/// A directory whose entries are being listed.
struct Level {
    directory: Arc<Directory>,
    names: Names,
    /// The path of the directory, relative to the walked directory.
    path: PathBuf,
    /// How the ignore rules apply to the entries of the directory.
    scope: Scope,
    /// The mark of the ignore rules before the rules of this directory.
    rules: usize,
}

enum Names {
    /// All names in the directory.
    Listed(Dir),
    /// Only this name.
    One(Option<OsString>),
}

/// How the ignore rules apply to the entries of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// The rules decide which entries are left out.
    Ruled,
    /// The rules ignore the directory, so the walk includes only those files in it that `keep` selects.
    Ignored,
    /// The rules do not apply.
    Free,
}

/// A directory that was returned as an entry, and whose content is not listed yet.
struct Pending {
    directory: Directory,
    path: PathBuf,
    scope: Scope,
}

impl Walk {
    /// Walks the content of a directory.
    #[must_use]
    pub fn content(directory: Directory) -> Self {
        let start = Pending { directory, path: PathBuf::new(), scope: Scope::Ruled };
        Self::new(Vec::new(), Some(start))
    }

    /// Walks one entry of a directory: the entry itself, and the entries below it. If the entry does not exist, the
    /// walk is empty.
    #[must_use]
    pub fn entry(directory: Directory, name: &OsStr) -> Self {
        let (directory, names) = (Arc::new(directory), Names::One(Some(name.to_owned())));
        let level = Level { directory, names, path: PathBuf::new(), scope: Scope::Ruled, rules: usize::MAX };
        Self::new(vec![level], None)
    }

    fn new(levels: Vec<Level>, next: Option<Pending>) -> Self {
        Self {
            levels,
            rules: None,
            keep: None,
            leave_out: None,
            except: Vec::new(),
            stop: Stop::default(),
            next,
            entries_left: MAX_ENTRIES,
        }
    }

    /// Leaves out the entries that these rules and the `.gitignore` files of the walked directories ignore. The files
    /// of each directory `.git` are still included. The rules apply only to a walk that [`Self::content`] created.
    #[must_use]
    pub fn with_rules(mut self, rules: IgnoreRules) -> Self {
        self.rules = Some(rules);
        self
    }

    /// Includes files that the rules ignore if `keep` selects them, such as files that git tracks.
    #[must_use]
    pub fn keeping(mut self, keep: Keep) -> Self {
        self.keep = Some(keep);
        self
    }

    /// Leaves out the entry at this path and everything below it. The path is relative to the walked directory.
    #[must_use]
    pub fn except(mut self, path: impl Into<PathBuf>) -> Self {
        self.except.push(path.into());
        self
    }

    /// Leaves out the entries that `leave_out` selects and everything below them.
    #[must_use]
    pub fn leaving_out(mut self, leave_out: LeaveOut) -> Self {
        self.leave_out = Some(leave_out);
        self
    }

    /// Makes the walk end with [`WalkError::Stopped`] when `stop` is set.
    #[must_use]
    pub fn until(mut self, stop: Stop) -> Self {
        self.stop = stop;
        self
    }

    /// Leaves out everything below the directory that was the last entry.
    pub fn skip_content(&mut self) {
        self.next = None;
    }

    /// Returns the ignore files found so far that were not read, because they are links or not regular files.
    #[must_use]
    pub fn ignore_files_not_read(&self) -> &[PathBuf] {
        self.rules.as_ref().map_or(&[], IgnoreRules::not_read)
    }

    /// Starts to list a directory.
    fn enter(&mut self, pending: Pending) -> Result<(), WalkError> {
        let Pending { directory, path, scope } = pending;
        if self.levels.len() == MAX_DEPTH {
            return Err(WalkError::TooDeep(directory.path().to_owned()));
        }
        let rules = match &mut self.rules {
            Some(rules) if scope == Scope::Ruled => rules.enter(&directory, &path)?,
            Some(_) | None => usize::MAX,
        };
        let names = Dir::read_from(&directory).map_err(|error| failed(directory.path(), error))?;
        let directory = Arc::new(directory);
        self.levels.push(Level { directory, names: Names::Listed(names), path, scope, rules });
        Ok(())
    }

    /// Returns the entry with this name in the innermost directory. `None` if the entry does not exist or is left out.
    fn visit(&mut self, name: OsString) -> Result<Option<Entry>, WalkError> {
        let Some(level) = self.levels.last() else { return Ok(None) };
        let path = level.path.join(&name);
        if self.except.contains(&path) {
            return Ok(None);
        }
        let parent = level.directory.clone();
        let whole = || parent.path().join(&name);
        for _ in 0..TRIES {
            let status = match parent.entry_stat(&name) {
                Ok(Some(status)) => status,
                Ok(None) => return Ok(None),
                Err(error) => return Err(WalkError::System { path: whole(), error }),
            };
            let kind = FileType::from_raw_mode(status.st_mode);
            let Some(scope) = self.scope(level, &name, &path, kind) else { return Ok(None) };
            if kind == FileType::Directory {
                let directory = match parent.directory(Path::new(&name)) {
                    // The directory was replaced after its status was read.
                    Ok(None) => continue,
                    Err(error) if is_replaced(&error) => continue,
                    opened => opened.map_err(|error| WalkError::System { path: whole(), error })?,
                };
                self.next = directory.map(|directory| Pending { directory, path: path.clone(), scope });
            }
            return Ok(Some(Entry { parent, name, path, status }));
        }
        Err(WalkError::System { path: whole(), error: io::Error::other("it is replaced again and again") })
    }

    /// Determines how the rules apply to an entry and to its content. `None` if the entry is left out.
    fn scope(&self, level: &Level, name: &OsStr, path: &Path, kind: FileType) -> Option<Scope> {
        if self.leave_out.as_ref().is_some_and(|leave_out| leave_out(path, kind)) {
            return None;
        }
        let Some(rules) = &self.rules else { return Some(Scope::Free) };
        let is_directory = kind == FileType::Directory;
        let ignored = match level.scope {
            Scope::Free => return Some(Scope::Free),
            Scope::Ignored => true,
            Scope::Ruled if is_directory && name.as_bytes() == GIT_DIRECTORY => return Some(Scope::Free),
            Scope::Ruled => rules.ignores(path, is_directory),
        };
        let kept = || self.keep.as_ref().is_some_and(|keep| keep(path, kind));
        match ignored {
            false => Some(Scope::Ruled),
            true => kept().then_some(Scope::Ignored),
        }
    }
}

impl Iterator for Walk {
    type Item = Result<Entry, WalkError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(pending) = self.next.take()
                && let Err(error) = self.enter(pending)
            {
                return Some(Err(error));
            }
            if self.stop.is_set() && !self.levels.is_empty() {
                self.levels.clear();
                return Some(Err(WalkError::Stopped));
            }
            let level = self.levels.last_mut()?;
            let name = match level.names.next() {
                Some(Ok(name)) => name,
                None => {
                    let left = self.levels.pop()?;
                    if let Some(rules) = &mut self.rules {
                        rules.leave(left.rules);
                    }
                    continue;
                }
                Some(Err(error)) => {
                    level.names = Names::One(None);
                    return Some(Err(failed(level.directory.path(), error)));
                }
            };
            let Some(left) = self.entries_left.checked_sub(1) else {
                let top =
                    self.levels.first().map_or_else(PathBuf::new, |top| top.directory.path().to_owned());
                self.levels.clear();
                return Some(Err(WalkError::TooMany(top)));
            };
            self.entries_left = left;
            if let Some(entry) = self.visit(name).transpose() {
                return Some(entry);
            }
        }
    }
}

impl Names {
    fn next(&mut self) -> Option<rustix::io::Result<OsString>> {
        match self {
            Self::One(name) => name.take().map(Ok),
            Self::Listed(names) => loop {
                let entry = match names.read()? {
                    Ok(entry) => entry,
                    Err(error) => return Some(Err(error)),
                };
                let name = entry.file_name().to_bytes();
                if name != b"." && name != b".." {
                    return Some(Ok(OsString::from_vec(name.to_owned())));
                }
            },
        }
    }
}

impl Entry {
    /// Returns the entry at a path beneath a directory. `None` if there is no such entry, or if a directory in its path
    /// is a link.
    pub(crate) fn at(top: &Directory, path: &Path) -> io::Result<Option<Self>> {
        let Some(name) = path.file_name() else { return Ok(None) };
        let parent = match top.directory(path.parent().unwrap_or(Path::new(""))) {
            Err(error) if is_replaced(&error) => return Ok(None),
            parent => parent?,
        };
        let Some(parent) = parent else { return Ok(None) };
        let Some(status) = parent.entry_stat(name)? else { return Ok(None) };
        Ok(Some(Self { parent: Arc::new(parent), name: name.to_owned(), path: path.to_owned(), status }))
    }

    /// Returns the path of the entry, relative to the walked directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the directory that contains the entry.
    pub(crate) fn parent(&self) -> &Directory {
        &self.parent
    }

    /// Returns the path of the entry for messages.
    #[must_use]
    pub fn whole_path(&self) -> PathBuf {
        self.parent.path().join(&self.name)
    }

    /// Returns the type of the entry.
    #[must_use]
    pub fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.status.st_mode)
    }

    /// Returns the status that the entry had when it was listed.
    #[must_use]
    pub fn status(&self) -> &Stat {
        &self.status
    }

    /// Returns the size in bytes that the file had when it was listed.
    #[must_use]
    pub fn size(&self) -> u64 {
        u64::try_from(self.status.st_size).unwrap_or(0)
    }

    /// Returns the identity of the entry.
    #[must_use]
    pub fn id(&self) -> FileId {
        FileId::of(&self.status)
    }

    /// Opens a regular file, and returns its current status. `None` if the file was removed or replaced by an entry of
    /// another type since it was listed.
    ///
    /// # Errors
    /// Returns the I/O error of the failed system call.
    pub fn open(&self) -> io::Result<Option<(File, Stat)>> {
        match self.parent.regular_file(&self.name) {
            Err(error) if is_replaced(&error) => Ok(None),
            opened => opened,
        }
    }

    /// Returns the target of a link. `None` if the link was removed or replaced by an entry of another type since it
    /// was listed.
    ///
    /// # Errors
    /// Returns the I/O error of the failed system call.
    pub fn link(&self) -> io::Result<Option<PathBuf>> {
        self.parent.link(Path::new(&self.name))
    }
}

/// Whether the error shows that an entry of another type replaced the expected one: a link (`ELOOP`), a non-directory
/// (`ENOTDIR`) or a socket (`ENXIO`).
fn is_replaced(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::LOOP | Errno::NOTDIR | Errno::NXIO))
}

fn failed(path: &Path, error: Errno) -> WalkError {
    WalkError::System { path: path.to_owned(), error: error.into() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::ignore_rules::RuleSources;

    fn write(top: &Path, path: &str) {
        let path = top.join(path);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        std::fs::write(&path, "inside").expect("written");
    }

    fn open(top: &Path) -> Directory {
        Directory::open(top).expect("opened")
    }

    fn ruled(top: &Path) -> Walk {
        let directory = open(top);
        let sources = RuleSources { top: &directory, below: Path::new(""), git_directory: None, user: None };
        let rules = IgnoreRules::of(&sources).expect("read");
        Walk::content(open(top)).with_rules(rules)
    }

    fn paths(walk: Walk) -> Vec<String> {
        let path = |entry: Result<Entry, WalkError>| entry.expect("walked").path().display().to_string();
        let listed: Vec<String> = walk.map(path).collect();
        for (at, path) in listed.iter().enumerate() {
            let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
            assert!(
                parent.is_empty() || listed[..at].iter().any(|before| before == parent),
                "{path}: {listed:?}"
            );
        }
        let sorted: BTreeSet<_> = listed.into_iter().collect();
        sorted.into_iter().collect()
    }

    #[test]
    fn lists_every_entry_and_follows_no_link() {
        let top = tempfile::tempdir().expect("a directory");
        write(top.path(), "a/b/file");
        write(top.path(), "a/.hidden");
        symlink("..", top.path().join("a/up")).expect("link");
        let listed = paths(Walk::content(open(top.path())));
        assert_eq!(listed, ["a", "a/.hidden", "a/b", "a/b/file", "a/up"]);
        assert_eq!(paths(Walk::content(open(top.path())).except("a/b")), ["a", "a/.hidden", "a/up"]);
        let is_link = |_: &Path, kind| kind == FileType::Symlink;
        let listed = paths(Walk::content(open(top.path())).leaving_out(Box::new(is_link)));
        assert_eq!(listed, ["a", "a/.hidden", "a/b", "a/b/file"]);
        for entry in Walk::content(open(top.path())).map(|entry| entry.expect("walked")) {
            let is_file = entry.kind() == FileType::RegularFile;
            assert_eq!(entry.open().expect("opened").is_some(), is_file, "{}", entry.path().display());
            assert_eq!(entry.link().expect("read").is_some(), entry.path() == Path::new("a/up"));
        }
    }

    #[test]
    fn lists_one_entry_with_its_content() {
        let top = tempfile::tempdir().expect("a directory");
        write(top.path(), ".git/objects/one");
        write(top.path(), ".git/HEAD");
        let of = |name: &str| Walk::entry(open(top.path()), OsStr::new(name));
        assert_eq!(paths(of(".git").except(".git/objects")), [".git", ".git/HEAD"]);
        assert_eq!(paths(of("none")), [""; 0]);
        std::fs::rename(top.path().join(".git"), top.path().join("elsewhere")).expect("moved");
        symlink("elsewhere", top.path().join(".git")).expect("link");
        assert_eq!(paths(of(".git")), [".git"]);
    }

    #[test]
    fn leaves_out_what_the_rules_ignore_but_no_part_of_a_repository() {
        let top = tempfile::tempdir().expect("a directory");
        for path in ["target/a/b", "src/x.log", "src/main", "sub/.git/refs/target/x.log", "other/target"] {
            write(top.path(), path);
        }
        std::fs::write(top.path().join(".gitignore"), "target\n*.log\n").expect("written");
        std::fs::write(top.path().join("other/.gitignore"), "!target\n").expect("written");
        let listed = paths(ruled(top.path()));
        let mut expected = vec![
            ".gitignore",
            "other",
            "other/.gitignore",
            "other/target",
            "src",
            "src/main",
            "sub",
            "sub/.git",
            "sub/.git/refs",
            "sub/.git/refs/target",
            "sub/.git/refs/target/x.log",
        ];
        assert_eq!(listed, expected);
        // Files that git tracks are included.
        let tracked =
            |path: &Path, _| ["target", "target/a", "target/a/b"].iter().any(|kept| path == Path::new(kept));
        write(top.path(), "target/untracked");
        expected.extend(["target", "target/a", "target/a/b"]);
        assert_eq!(paths(ruled(top.path()).keeping(Box::new(tracked))), expected);
    }

    #[test]
    fn ends_when_it_is_stopped() {
        let top = tempfile::tempdir().expect("a directory");
        write(top.path(), "a/b/file");
        let stop = Stop::default();
        let mut walk = Walk::content(open(top.path())).until(stop.clone());
        assert!(matches!(walk.next(), Some(Ok(_))));
        drop(stop.on_drop());
        assert!(matches!(walk.next(), Some(Err(WalkError::Stopped))));
        assert!(walk.next().is_none());
        assert!(Stop::after(Duration::ZERO).is_set());
        assert!(!Stop::after(Duration::from_secs(1000)).is_set());
    }

    #[test]
    fn goes_on_after_a_directory_that_is_too_deep() {
        let top = tempfile::tempdir().expect("a directory");
        let mut deep = top.path().join("deep");
        for _ in 0..MAX_DEPTH + 20 {
            deep.push("d");
        }
        std::fs::create_dir_all(&deep).expect("made");
        write(top.path(), "file");
        let (mut files, mut errors) = (0, Vec::new());
        for entry in Walk::content(open(top.path())) {
            match entry {
                Ok(entry) => files += usize::from(entry.kind() == FileType::RegularFile),
                Err(error) => errors.push(error.to_string()),
            }
        }
        assert_eq!((files, errors.len()), (1, 1), "{errors:?}");
        assert!(errors[0].ends_with("is more than 128 directories deep"), "{errors:?}");
    }

    /// Another thread repeatedly exchanges a directory and a link to a private directory.
    #[test]
    #[cfg(target_os = "linux")]
    fn nothing_outside_is_read_while_a_directory_and_a_link_are_exchanged() {
        use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

        use rustix::fs::{CWD, RenameFlags, renameat_with};

        let top = tempfile::tempdir().expect("a directory");
        for at in 0..20 {
            write(top.path(), &format!("inside/work/{at}/file"));
            write(top.path(), &format!("outside/{at}/file"));
            std::fs::write(top.path().join(format!("outside/{at}/file")), "private").expect("written");
        }
        let (work, link) = (top.path().join("inside/work"), top.path().join("inside/link"));
        symlink("../outside", &link).expect("link");
        let (stopped, exchanged) = (AtomicBool::new(false), AtomicU64::new(0));
        let mut files = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stopped.load(Ordering::Relaxed) {
                    renameat_with(CWD, &work, CWD, &link, RenameFlags::EXCHANGE).expect("exchanged");
                    exchanged.fetch_add(1, Ordering::Relaxed);
                }
            });
            let mut rounds = 0;
            while rounds < 300 || exchanged.load(Ordering::Relaxed) < 300 {
                rounds += 1;
                for entry in Walk::content(open(&top.path().join("inside"))).filter_map(Result::ok) {
                    let Some((mut file, _)) = entry.open().expect("opened") else { continue };
                    let mut text = String::new();
                    file.read_to_string(&mut text).expect("read");
                    if text != "inside" {
                        stopped.store(true, Ordering::Relaxed);
                    }
                    assert_eq!(text, "inside", "{}", entry.path().display());
                    files += 1;
                }
            }
            stopped.store(true, Ordering::Relaxed);
        });
        assert!(files > 300, "{files}");
    }
}
