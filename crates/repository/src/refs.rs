//! Reads and writes the references of a git directory as data.
//!
//! The files are described in gitrepository-layout(5): `HEAD`, a file beneath `refs` for each reference, and
//! `packed-refs`. In the format `reftable`, all references are in tables instead ([`crate::reftable`]). This module
//! writes a reference by git's own protocol: it creates the reference's lock file, compares the old value, and renames
//! the lock file to the reference. A git process that runs at the same time therefore sees either the old or the new
//! value.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use rustix::io::Errno;

use crate::directory::{Directory, ReadError};
use crate::id::ObjectId;
pub use crate::ref_error::RefError;
use crate::reflog::{CleanEntry, LogEntry};
use crate::reftable::table::Change;
use crate::reftable::{self, Locked, Stack};

/// The directory of the branches, with a slash at the end.
pub const BRANCHES: &str = "refs/heads/";

/// The maximum length of the file of one reference in bytes.
const MAX_REFERENCE: u64 = 4096;

/// The maximum length of `packed-refs` in bytes: about three million references.
const MAX_PACKED: u64 = 256 << 20;

/// The maximum length of a line of `packed-refs` in bytes.
const MAX_LINE: u64 = 4096;

/// The maximum length of a chain of symbolic references, as in git.
const MAX_DEPTH: usize = 5;

/// The maximum number of references, and of directories that are read to find them.
const MAX_REFERENCES: usize = 1_000_000;
const MAX_DIRECTORIES: usize = 200_000;

/// The maximum number of directories in the path of a reference. Each of these directories is opened for each reference
/// below it.
const MAX_LEVELS: usize = 128;

/// The maximum number of entries of one directory.
const MAX_ENTRIES: usize = 200_000;

/// The maximum number of worktrees that are read.
const MAX_WORKTREES: usize = 10_000;

/// The references of a working tree. Most references beneath `refs` are shared by all working trees of a repository.
#[derive(Debug, Clone, Copy)]
pub struct Refs<'a> {
    /// The git directory of the working tree, which contains its `HEAD`.
    pub git: &'a Directory,
    /// The git directory that all working trees of the repository share.
    pub common: &'a Directory,
    /// How the repository stores its references.
    pub storage: Storage,
}

/// How a repository stores its references (`extensions.refStorage`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Storage {
    /// In files for single references, and in `packed-refs`.
    #[default]
    Files,
    /// In reftables.
    Reftable,
}

/// The value of `HEAD`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Head {
    /// `HEAD` points to the reference with this name, which may not exist yet.
    Reference(String),
    /// `HEAD` is detached at this commit.
    Detached(ObjectId),
}

/// The content of the file of a reference.
enum Value {
    Id(ObjectId),
    Reference(String),
}

impl Refs<'_> {
    /// Reads `HEAD`.
    ///
    /// # Errors
    /// Returns [`RefError::Read`] or [`RefError::Malformed`]. A missing `HEAD` is malformed.
    pub fn head(&self) -> Result<Head, RefError> {
        match self.value(self.git, "HEAD")? {
            Some(Value::Id(id)) => Ok(Head::Detached(id)),
            Some(Value::Reference(name)) => Ok(Head::Reference(name)),
            None => Err(RefError::Malformed(self.git.path().join("HEAD"))),
        }
    }

    /// Returns the object of the reference with this full name, such as `HEAD` or `refs/heads/main`. `None` if the
    /// reference does not exist.
    ///
    /// # Errors
    /// Returns [`RefError::Read`], [`RefError::Malformed`] or [`RefError::TooMany`].
    pub fn find(&self, name: &str) -> Result<Option<ObjectId>, RefError> {
        let mut name = name.to_owned();
        for _ in 0..=MAX_DEPTH {
            if !is_valid(&name) {
                return Ok(None);
            }
            name = match self.value(self.directory_of(&name), &name)? {
                Some(Value::Id(id)) => return Ok(Some(id)),
                Some(Value::Reference(next)) => next,
                None if self.storage == Storage::Reftable => return Ok(None),
                None => return self.packed(&name),
            };
        }
        Err(RefError::TooMany(self.common.path().join(name)))
    }

    /// Returns the objects of all references of the repository, and of this working tree's `HEAD`, in no order.
    ///
    /// # Errors
    /// Returns [`RefError::Read`], [`RefError::Malformed`] or [`RefError::TooMany`].
    pub fn all(&self) -> Result<HashSet<ObjectId>, RefError> {
        let mut found = HashSet::new();
        if self.storage == Storage::Reftable {
            let id = |value| match value {
                reftable::Value::Id(id) => Some(id),
                reftable::Value::Reference(_) => None,
            };
            found.extend(Stack::read(self.common)?.references.into_values().filter_map(id));
            found.extend(self.find("HEAD")?);
            return Ok(found);
        }
        self.each_packed(|id, _| {
            found.insert(id);
            found.len() <= MAX_REFERENCES
        })?;
        let mut directories = vec![PathBuf::from("refs")];
        let mut read = 0;
        while let Some(path) = directories.pop() {
            read += 1;
            let too_many = || RefError::TooMany(self.common.path().join("refs"));
            let is_deep = path.components().count() > MAX_LEVELS;
            if read > MAX_DIRECTORIES || found.len() > MAX_REFERENCES || is_deep {
                return Err(too_many());
            }
            let unread =
                |error| RefError::from(ReadError::System { path: self.common.path().join(&path), error });
            let Some(directory) = self.common.directory(&path).map_err(unread)? else { continue };
            let (names, more) = directory.names(MAX_ENTRIES).map_err(unread)?;
            if more {
                return Err(too_many());
            }
            for name in names {
                match kind(&directory, &name).map_err(unread)? {
                    Some(FileType::Directory) => directories.push(path.join(name)),
                    Some(FileType::RegularFile) if !name.as_bytes().ends_with(b".lock") => {
                        // A file that is not a reference is ignored. Git warns about such a file, and continues too.
                        if let Ok(Some(Value::Id(id))) = value_at(&directory, &name) {
                            found.insert(id);
                        }
                    }
                    _ => {}
                }
            }
        }
        found.extend(self.find("HEAD")?);
        Ok(found)
    }

    /// Finds the working tree in which a branch is checked out or being rebased. Returns the git directory of this
    /// working tree.
    ///
    /// # Errors
    /// Returns [`RefError::Read`] or [`RefError::TooMany`].
    pub fn checked_out(&self, name: &str) -> Result<Option<PathBuf>, RefError> {
        if self.is_checked_out(self.common, name) {
            return Ok(Some(self.common.path().to_owned()));
        }
        let path = || self.common.path().join("worktrees");
        let unread = |error| RefError::from(ReadError::System { path: path(), error });
        let Some(worktrees) = self.common.directory(Path::new("worktrees")).map_err(unread)? else {
            return Ok(None);
        };
        let (names, more) = worktrees.names(MAX_WORKTREES).map_err(unread)?;
        if more {
            return Err(RefError::TooMany(path()));
        }
        for worktree in names {
            let Ok(Some(worktree)) = worktrees.directory(Path::new(&worktree)) else { continue };
            if self.is_checked_out(&worktree, name) {
                return Ok(Some(worktree.path().to_owned()));
            }
        }
        Ok(None)
    }

    /// Points a branch at an object. `name` is the full name of the branch, and `before` is its expected current value.
    /// `log` is appended to the branch's reflog. If there is no reflog, it is created only if `begins_log` is set.
    ///
    /// # Errors
    /// Returns a [`RefError`] of any kind. The branch then has its old value.
    pub fn write(
        &self,
        name: &str,
        before: Option<&ObjectId>,
        after: &ObjectId,
        log: LogEntry<'_>,
        begins_log: bool,
    ) -> Result<(), RefError> {
        let short = name.strip_prefix(BRANCHES).filter(|_| is_valid(name));
        let short = short.ok_or_else(|| RefError::Malformed(PathBuf::from(name)))?;
        if let Some(place) = self.checked_out(name)? {
            return Err(RefError::CheckedOut(place));
        }
        if self.storage == Storage::Reftable {
            return self.write_table(name, before, after, begins_log.then_some(log));
        }
        self.require_no_conflict(name)?;
        let path = self.common.path().join(name);
        let failed = |error| RefError::Write { path: path.clone(), error };
        let relative = Path::new(name);
        let (parent, file) =
            (relative.parent().unwrap_or(relative), relative.file_name().unwrap_or_default());
        let directory = self.common.directory_or_new(parent).map_err(failed)?;
        let mut lock_name = file.to_owned();
        lock_name.push(".lock");
        let mut lock = directory.create(&lock_name, 0o666).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => RefError::Locked(path.with_file_name(&lock_name)),
            _ => failed(error),
        })?;
        // No other process changes the reference while the lock file exists.
        let current = match value(self.common, name)? {
            Some(Value::Id(id)) => Some(id),
            Some(Value::Reference(_)) => return Err(RefError::Symbolic),
            None => self.packed(name)?,
        };
        if current.as_ref() != before {
            return Err(RefError::Changed);
        }
        lock.write(format!("{after}\n").as_bytes()).map_err(failed)?;
        make_room(&directory, file).map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::NOTEMPTY) => RefError::Conflict(format!("{name}/…")),
            _ => failed(error),
        })?;
        self.log(short, before, after, log, begins_log).map_err(failed)?;
        lock.rename(file).map_err(failed)
    }

    /// Points a branch at an object in a new table. Unlike [`Self::write`], does not check whether the branch has a
    /// reflog, because reflogs are in compressed blocks of the tables.
    fn write_table(
        &self,
        name: &str,
        before: Option<&ObjectId>,
        after: &ObjectId,
        log: Option<LogEntry<'_>>,
    ) -> Result<(), RefError> {
        let path = || self.common.path().join(reftable::DIRECTORY);
        let tables = self.common.directory(Path::new(reftable::DIRECTORY));
        let tables = tables.map_err(|error| RefError::Write { path: path(), error })?;
        let tables = tables.ok_or_else(|| RefError::Malformed(path()))?;
        let locked = Locked::new(&tables)?;
        if let Some(other) = locked.stack.conflict(name) {
            return Err(RefError::Conflict(other));
        }
        let current = match locked.stack.get(name) {
            Some(reftable::Value::Id(id)) => Some(id),
            Some(reftable::Value::Reference(_)) => return Err(RefError::Symbolic),
            None => None,
        };
        if current != before {
            return Err(RefError::Changed);
        }
        let log = log.map(LogEntry::clean);
        locked.append(&Change { name, before, after, log: log.as_ref() })
    }

    /// Appends an entry to the reflog of a branch.
    fn log(
        &self,
        branch: &str,
        before: Option<&ObjectId>,
        after: &ObjectId,
        log: LogEntry<'_>,
        begins: bool,
    ) -> io::Result<()> {
        let path = Path::new("logs").join(BRANCHES).join(branch);
        if !begins && self.common.stat(&path)?.is_none() {
            return Ok(());
        }
        let (parent, name) = (path.parent().unwrap_or(&path), path.file_name().unwrap_or_default());
        let parent = self.common.directory_or_new(parent)?;
        make_room(&parent, name)?;
        let mut file = parent.append(name)?;
        let none = "0".repeat(after.as_str().len());
        let before = before.map_or(none.as_str(), ObjectId::as_str);
        let CleanEntry { name: author, email, seconds, message } = log.clean();
        let line = format!("{before} {after} {author} <{email}> {seconds} +0000\t{message}");
        file.write_all(line.as_bytes())
    }

    /// Fails if the name of another reference is a directory in the path of this reference, or the other way round.
    fn require_no_conflict(&self, name: &str) -> Result<(), RefError> {
        let parents = Path::new(name).ancestors().skip(1).take_while(|path| *path != Path::new("refs"));
        for parent in parents.filter_map(Path::to_str) {
            if parent.len() >= BRANCHES.len() && value(self.common, parent)?.is_some() {
                return Err(RefError::Conflict(parent.to_owned()));
            }
        }
        let mut conflict = None;
        self.each_packed(|_, other| {
            let is_above = name.strip_prefix(other).is_some_and(|rest| rest.starts_with('/'));
            let is_below = other.strip_prefix(name).is_some_and(|rest| rest.starts_with('/'));
            if is_above || is_below {
                conflict = Some(other.to_owned());
            }
            conflict.is_none()
        })?;
        match conflict {
            // A conflict in `packed-refs` is real, because deleted references are removed from this file.
            Some(other) => Err(RefError::Conflict(other)),
            None => Ok(()),
        }
    }

    /// Returns the value of a reference in `packed-refs`.
    fn packed(&self, name: &str) -> Result<Option<ObjectId>, RefError> {
        let mut found = None;
        self.each_packed(|id, other| {
            if other == name {
                found = Some(id);
            }
            found.is_none()
        })?;
        Ok(found)
    }

    /// Calls `each` with the references in `packed-refs`, as long as `each` returns true.
    fn each_packed(&self, mut each: impl FnMut(ObjectId, &str) -> bool) -> Result<(), RefError> {
        let path = || self.common.path().join("packed-refs");
        let Some(file) = self.common.file(Path::new("packed-refs"))? else { return Ok(()) };
        let length = file.metadata().map_or(0, |found| found.len());
        if length > MAX_PACKED {
            return Err(ReadError::TooLong { path: path(), most: MAX_PACKED }.into());
        }
        let mut reader = BufReader::new(file.take(MAX_PACKED));
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = (&mut reader).take(MAX_LINE).read_until(b'\n', &mut line);
            if read.map_err(|error| ReadError::System { path: path(), error })? == 0 {
                return Ok(());
            }
            let malformed = || RefError::Malformed(path());
            let text = line.strip_suffix(b"\n").ok_or_else(malformed)?;
            // The line is a comment, or the object of the tag in the previous line.
            if text.is_empty() || matches!(text[0], b'#' | b'^') {
                continue;
            }
            let space = text.iter().position(|byte| *byte == b' ').ok_or_else(malformed)?;
            let id = ObjectId::from_bytes(&text[..space]).ok_or_else(malformed)?;
            // No caller searches for a name that is not UTF-8, but the object of such a reference is needed.
            let name = String::from_utf8_lossy(&text[space + 1..]);
            if !each(id, name.trim_end_matches('\r')) {
                return Ok(());
            }
        }
    }

    /// Whether a branch is checked out or being rebased in the working tree of this git directory.
    fn is_checked_out(&self, git: &Directory, name: &str) -> bool {
        if matches!(self.value(git, "HEAD"), Ok(Some(Value::Reference(head))) if head == name) {
            return true;
        }
        ["rebase-merge/head-name", "rebase-apply/head-name"].iter().any(|file| {
            let read = git.read(Path::new(file), MAX_REFERENCE).ok().flatten();
            read.is_some_and(|read| read.trim_ascii() == name.as_bytes())
        })
    }

    /// Returns the value of a reference in this git directory, without searching `packed-refs`.
    fn value(&self, directory: &Directory, name: &str) -> Result<Option<Value>, RefError> {
        if self.storage == Storage::Files {
            return value(directory, name);
        }
        let found = Stack::read(directory)?.references.remove(name.as_bytes());
        let malformed = || RefError::Malformed(directory.path().join(reftable::DIRECTORY));
        Ok(match found {
            None => None,
            Some(reftable::Value::Id(id)) => Some(Value::Id(id)),
            Some(reftable::Value::Reference(name)) => {
                Some(Value::Reference(String::from_utf8(name).map_err(|_| malformed())?))
            }
        })
    }

    /// Returns the git directory that contains the file of a reference. `HEAD` and a few other references belong to one
    /// working tree.
    fn directory_of(&self, name: &str) -> &Directory {
        if is_of_worktree(name.as_bytes()) { self.git } else { self.common }
    }
}

/// Whether the reference with this full name belongs to one working tree (git-worktree(1), "REFS").
pub(crate) fn is_of_worktree(name: &[u8]) -> bool {
    let own = ["refs/bisect/", "refs/worktree/", "refs/rewritten/"];
    !name.starts_with(b"refs/") || own.iter().any(|start| name.starts_with(start.as_bytes()))
}

/// Returns the full name of a branch. `None` if git does not allow a branch of this name.
#[must_use]
pub fn branch_reference(branch: &str) -> Option<String> {
    let name = format!("{BRANCHES}{branch}");
    (is_valid(&name) && !branch.starts_with('-')).then_some(name)
}

/// Whether git allows a reference of this name (git-check-ref-format(1)).
pub(crate) fn is_valid(name: &str) -> bool {
    let part = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock");
    let is_refused = |c: char| c.is_ascii_control() || " ~^:?*[\\".contains(c);
    !name.contains(is_refused)
        && !name.contains("..")
        && !name.contains("@{")
        && !name.ends_with('.')
        && name.split('/').all(part)
        && (name.starts_with("refs/") || name == "HEAD")
}

/// Reads the file of a reference. `None` if there is no such file. The path may also be a directory, or one of its
/// parents may be a file.
fn value(directory: &Directory, name: &str) -> Result<Option<Value>, RefError> {
    let path = Path::new(name);
    let mut above: Vec<&Path> = path.ancestors().filter(|path| !path.as_os_str().is_empty()).collect();
    above.reverse();
    for place in above {
        let unread = |error| ReadError::System { path: directory.path().join(place), error };
        let Some(found) = directory.stat(place).map_err(unread)? else { return Ok(None) };
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory if place == path => return Ok(None),
            FileType::Directory => {}
            FileType::RegularFile if place == path => {}
            FileType::RegularFile => return Ok(None),
            _ => return Err(ReadError::NotRegular(directory.path().join(place)).into()),
        }
    }
    value_in(directory, path)
}

fn value_at(directory: &Directory, name: &OsStr) -> Result<Option<Value>, RefError> {
    value_in(directory, Path::new(name))
}

fn value_in(directory: &Directory, path: &Path) -> Result<Option<Value>, RefError> {
    let Some(bytes) = directory.read(path, MAX_REFERENCE)? else { return Ok(None) };
    let malformed = || RefError::Malformed(directory.path().join(path));
    let text = std::str::from_utf8(&bytes).map_err(|_| malformed())?.trim_end();
    if let Some(target) = text.strip_prefix("ref:") {
        return Ok(Some(Value::Reference(target.trim().to_owned())));
    }
    ObjectId::parse(text).map(|id| Some(Value::Id(id))).ok_or_else(malformed)
}

/// Removes a tree of empty directories at the path of a new file. Such trees remain when references are deleted.
fn make_room(directory: &Directory, file: &OsStr) -> io::Result<()> {
    let is_directory = directory.directory(Path::new(file)).is_ok_and(|found| found.is_some());
    if is_directory { directory.remove_empty(Path::new(file), MAX_LEVELS) } else { Ok(()) }
}

fn kind(directory: &Directory, name: &OsString) -> io::Result<Option<FileType>> {
    match directory.stat(Path::new(name)) {
        Ok(found) => Ok(found.map(|found| FileType::from_raw_mode(found.st_mode))),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::*;

    struct Scene {
        top: tempfile::TempDir,
    }

    impl Scene {
        fn new() -> Self {
            let scene = Self { top: tempfile::tempdir().expect("a directory") };
            scene.git(&["init", "-q", "-b", "main", "."]);
            scene.git(&["commit", "-q", "--allow-empty", "-m", "one"]);
            scene
        }

        fn git(&self, arguments: &[&str]) -> String {
            let mut git = Command::new("git");
            git.current_dir(self.top.path()).env("GIT_CONFIG_GLOBAL", "/dev/null");
            git.args(["-c", "user.name=a", "-c", "user.email=a@example.com"]).args(arguments);
            let output = git.output().expect("git");
            assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).expect("UTF-8").trim().to_owned()
        }

        fn common(&self) -> Directory {
            Directory::open(&self.top.path().join(".git")).expect("opened")
        }

        fn write(&self, name: &str, before: Option<&ObjectId>, after: &ObjectId) -> Result<(), RefError> {
            let common = self.common();
            let log = LogEntry { name: "bottle", email: "a@example.com", seconds: 7, message: "pull" };
            Refs { git: &common, common: &common, storage: Storage::Files }
                .write(name, before, after, log, true)
        }
    }

    #[test]
    fn reads_what_git_writes() {
        let scene = Scene::new();
        scene.git(&["tag", "-a", "-m", "x", "v1"]);
        scene.git(&["branch", "loose/deep"]);
        scene.git(&["pack-refs", "--all"]);
        scene.git(&["commit", "-q", "--allow-empty", "-m", "two"]);
        scene.git(&["symbolic-ref", "refs/heads/alias", "refs/heads/main"]);
        scene.git(&["worktree", "add", "-q", "../tree-of-it", "loose/deep"]);
        let common = scene.common();
        let refs = Refs { git: &common, common: &common, storage: Storage::Files };
        assert_eq!(refs.head().expect("read"), Head::Reference("refs/heads/main".to_owned()));
        for name in ["HEAD", "refs/heads/main", "refs/heads/loose/deep", "refs/heads/alias", "refs/tags/v1"] {
            let expected = scene.git(&["rev-parse", name]);
            let found = refs.find(name).expect("read");
            assert_eq!(found.as_ref().map(ObjectId::as_str), Some(&*expected), "{name}");
        }
        for name in
            ["refs/heads/none", "refs/heads/loose", "refs/heads/main/x", "config", "../HEAD", "refs/../HEAD"]
        {
            assert_eq!(refs.find(name).expect("read"), None, "{name}");
        }
        assert_eq!(refs.all().expect("read").len(), 3, "two commits and a tag");
        assert!(refs.checked_out("refs/heads/loose/deep").expect("read").is_some());
        assert!(refs.checked_out("refs/heads/main").expect("read").is_some());
        assert!(refs.checked_out("refs/heads/alias").expect("read").is_none());
        scene.git(&["worktree", "remove", "../tree-of-it"]);
    }

    #[test]
    fn refuses_links_pipes_loops_and_long_files() {
        let scene = Scene::new();
        let common = scene.common();
        let refs = Refs { git: &common, common: &common, storage: Storage::Files };
        let heads = scene.top.path().join(".git/refs/heads");
        symlink("/dev/zero", heads.join("zero")).expect("link");
        symlink(&heads, heads.join("inside")).expect("link");
        rustix::fs::mknodat(rustix::fs::CWD, heads.join("pipe"), FileType::Fifo, rustix::fs::Mode::RWXU, 0)
            .expect("a named pipe");
        fs::write(heads.join("loop"), "ref: refs/heads/loop\n").expect("written");
        fs::write(heads.join("long"), vec![b'a'; 5000]).expect("written");
        fs::write(heads.join("odd"), "nothing\n").expect("written");
        for name in ["zero", "inside/main", "pipe", "loop", "long", "odd"] {
            assert!(refs.find(&format!("refs/heads/{name}")).is_err(), "{name}");
        }
        assert_eq!(refs.all().expect("the others are read").len(), 1);
        fs::remove_file(scene.top.path().join(".git/HEAD")).expect("removed");
        symlink("/dev/zero", scene.top.path().join(".git/HEAD")).expect("link");
        assert!(refs.head().is_err());
        fs::write(scene.top.path().join(".git/packed-refs"), vec![b'x'; 10_000]).expect("written");
        assert!(matches!(refs.find("refs/heads/none"), Err(RefError::Malformed(_))));
    }

    /// Without the bound, the time would grow with the square of the number of levels, because each level is opened for
    /// each directory below it.
    #[test]
    fn deep_directories_have_a_bound() {
        let scene = Scene::new();
        let heads = scene.top.path().join(".git/refs/heads");
        let deep: PathBuf = std::iter::repeat_n("d", MAX_LEVELS + 2).collect();
        fs::create_dir_all(heads.join(&deep)).expect("made");
        let common = scene.common();
        let refs = Refs { git: &common, common: &common, storage: Storage::Files };
        assert!(matches!(refs.all(), Err(RefError::TooMany(_))));
        let id = refs.find("HEAD").expect("read").expect("a commit");
        assert!(matches!(scene.write("refs/heads/d", None, &id), Err(RefError::Conflict(_))));
    }

    /// When git deletes branches, it leaves the empty directories of their reflogs.
    #[test]
    fn an_empty_directory_makes_room_for_a_reflog() {
        let scene = Scene::new();
        let one = ObjectId::parse(&scene.git(&["rev-parse", "HEAD"])).expect("an id");
        fs::create_dir_all(scene.top.path().join(".git/logs/refs/heads/bottle/one/x")).expect("made");
        scene.write("refs/heads/bottle/one", None, &one).expect("written");
        assert_eq!(scene.git(&["rev-parse", "bottle/one@{0}"]), one.as_str());
    }

    #[test]
    fn writes_a_branch_that_git_reads() {
        let scene = Scene::new();
        let one = ObjectId::parse(&scene.git(&["rev-parse", "HEAD"])).expect("an id");
        scene.git(&["commit", "-q", "--allow-empty", "-m", "two"]);
        let two = ObjectId::parse(&scene.git(&["rev-parse", "HEAD"])).expect("an id");
        // When git creates a branch, it removes empty directories at its path.
        fs::create_dir_all(scene.top.path().join(".git/refs/heads/bottle/one/empty")).expect("made");
        scene.write("refs/heads/bottle/one", None, &one).expect("written");
        assert_eq!(scene.git(&["rev-parse", "bottle/one"]), one.as_str());
        scene.git(&["pack-refs", "--all"]);
        scene.write("refs/heads/bottle/one", Some(&one), &two).expect("written over a packed one");
        assert_eq!(scene.git(&["rev-parse", "bottle/one", "bottle/one@{1}"]), format!("{two}\n{one}"));
        scene.git(&["fsck", "--strict"]);
        assert!(matches!(scene.write("refs/heads/bottle/one", Some(&one), &one), Err(RefError::Changed)));
        assert!(matches!(scene.write("refs/heads/bottle/one", None, &one), Err(RefError::Changed)));
        assert!(matches!(scene.write("refs/heads/main", Some(&two), &one), Err(RefError::CheckedOut(_))));
        assert!(matches!(scene.write("refs/heads/bottle", None, &one), Err(RefError::Conflict(_))));
        assert!(
            !scene.top.path().join(".git/logs/refs/heads/bottle").is_file(),
            "no reflog of a refused write"
        );
        assert!(matches!(scene.write("refs/heads/bottle/one/x", None, &one), Err(RefError::Conflict(_))));
        scene.git(&["pack-refs", "--all"]);
        assert!(matches!(scene.write("refs/heads/bottle", None, &one), Err(RefError::Conflict(_))));
        assert!(matches!(scene.write("refs/heads/bottle/one/x", None, &one), Err(RefError::Conflict(_))));
        scene.git(&["symbolic-ref", "refs/heads/bottle/alias", "refs/heads/main"]);
        assert!(matches!(scene.write("refs/heads/bottle/alias", None, &one), Err(RefError::Symbolic)));
        fs::write(scene.top.path().join(".git/refs/heads/bottle/locked.lock"), "").expect("written");
        assert!(matches!(scene.write("refs/heads/bottle/locked", None, &one), Err(RefError::Locked(_))));
        let left = scene.git(&["for-each-ref", "--format=%(refname)"]);
        assert_eq!(left, "refs/heads/bottle/alias\nrefs/heads/bottle/one\nrefs/heads/main");
        let locks: Vec<_> = fs::read_dir(scene.top.path().join(".git/refs/heads/bottle"))
            .expect("read")
            .map(|entry| entry.expect("an entry").file_name())
            .filter(|name| name.as_bytes().ends_with(b".lock"))
            .collect();
        assert_eq!(locks, ["locked.lock"], "only the other git's lock is left");
    }

    #[test]
    fn writes_through_no_link() {
        let scene = Scene::new();
        let one = ObjectId::parse(&scene.git(&["rev-parse", "HEAD"])).expect("an id");
        let outside = tempfile::tempdir().expect("a directory");
        symlink(outside.path(), scene.top.path().join(".git/refs/heads/bottle")).expect("link");
        assert!(scene.write("refs/heads/bottle/one", None, &one).is_err());
        fs::remove_file(scene.top.path().join(".git/refs/heads/bottle")).expect("removed");
        symlink(outside.path(), scene.top.path().join(".git/logs/refs/heads/bottle")).expect("link");
        assert!(scene.write("refs/heads/bottle/one", None, &one).is_err());
        assert_eq!(fs::read_dir(outside.path()).expect("read").count(), 0);
        assert_eq!(scene.git(&["for-each-ref", "--format=%(refname)"]), "refs/heads/main");
    }

    #[test]
    fn a_log_is_one_line_in_a_file_with_one_name() {
        let scene = Scene::new();
        let one = ObjectId::parse(&scene.git(&["rev-parse", "HEAD"])).expect("an id");
        let git = Directory::open(&scene.top.path().join(".git")).expect("opened");
        let refs = Refs { git: &git, common: &git, storage: Storage::Files };
        let odd = LogEntry { name: "a\nb <x> ", email: "<a@b>\n", seconds: 7, message: "one\ntwo\n" };
        refs.write("refs/heads/odd", None, &one, odd, true).expect("written");
        let shown = scene.git(&["reflog", "show", "--format=%gn|%ge|%gs", "odd"]);
        assert_eq!(shown, "ab x|a@b|one two");

        let (log, victim) =
            (scene.top.path().join(".git/logs/refs/heads/linked"), scene.top.path().join("victim"));
        fs::write(&victim, "mine\n").expect("written");
        fs::hard_link(&victim, &log).expect("linked");
        assert!(scene.write("refs/heads/linked", None, &one).is_err());
        assert_eq!(fs::read_to_string(&victim).expect("read"), "mine\n");
        assert_eq!(refs.find("refs/heads/linked").expect("read"), None, "the branch was not written either");
    }

    #[test]
    fn allows_the_names_that_git_allows() {
        for branch in [
            "main",
            "a/b",
            "ветка",
            "e\u{301}té",
            "🦀",
            "a.b",
            "a@b",
            "x.lock",
            "a/.b",
            "a..b",
            "a b",
            "-x",
            "a\u{7f}",
            "a/",
            "/a",
            "a//b",
            "a~",
            "a^",
            "a:b",
            "a?",
            "a*",
            "a[",
            "a\\b",
            "a@{b",
            "a.",
            "",
            "@",
            "a.lock/b",
        ] {
            let mut git = Command::new("git");
            let git = git.args(["check-ref-format", "--branch", branch]).output().expect("git");
            // The check runs git outside of a repository, where git does not expand `@{-1}`.
            assert_eq!(branch_reference(branch).is_some(), git.status.success(), "{branch:?}");
        }
    }
}
