//! Makes a record of given files while these files are copied.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::contents::{Bounds, Contents, Known, create};
use super::rules::GivenRules;
use super::{FILES, GivenFile, MISSING, NESTED, Origin, PARTIAL, VERSION};
use crate::attributes::{ATTRIBUTES_FILE, Attributes, MAX_ATTRIBUTES};
use crate::directory::Directory;
use crate::id::ObjectId;
use crate::index::{Checked, DIRECTORY, mode};
use crate::locate::{self, GIT};
use crate::repository::Repository;
use crate::walk::Entry;

/// Bounds that suffice for all files that are compared. In a repository, most contents can be derived from blobs, so
/// few contents are copied.
const COMPARED: Bounds = Bounds { each: 64 << 20, all: 256 << 20 };

/// Bounds for a copied directory without a repository, in which the content of every file is recorded. Large files are
/// rarely merged, and the user's file has the content until the user changes it.
const OF_DIRECTORY: Bounds = Bounds { each: 1 << 20, all: 256 << 20 };

/// How the recorded files are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// The files are copied, and the agent changes the copy.
    Copied,
    /// The agent changes the files themselves.
    Changed,
}

/// A filter whose output can be derived from the blob, because the blob is a pointer with a hash.
const LFS: &[u8] = b"lfs";

/// Makes a record while the files are copied.
pub struct GivenFiles {
    directory: PathBuf,
    origin: Origin,
    index: Checked,
    attributes: Attributes,
    /// The directories whose attribute files were read.
    read: HashSet<PathBuf>,
    /// The path of the copied directory below the top of the working tree. It ends with a slash unless it is empty.
    prefix: Vec<u8>,
    with_untracked: bool,
    /// Whether any attribute file names a filter.
    has_filters: bool,
    files: BTreeMap<Vec<u8>, GivenFile>,
    nested: BTreeSet<PathBuf>,
    missing: BTreeSet<Vec<u8>>,
    is_partial: bool,
    /// The ignore rules. `None` if they are unknown.
    rules: Option<GivenRules>,
    /// The paths of the tracked files, relative to the copied directory.
    tracked: HashSet<Vec<u8>>,
    contents: Contents,
}

impl GivenFiles {
    /// Begins the record of a directory that is not in a repository. `record` is a new directory.
    ///
    /// # Errors
    /// Fails if the record cannot be written.
    pub fn begin_without_repository(record: &Path, used: Use) -> io::Result<Self> {
        let bounds = if used == Use::Copied { OF_DIRECTORY } else { COMPARED };
        Self::new(record, Origin::Directory, bounds)
    }

    /// Begins the record of a directory of this repository. `record` is a new directory. If `with_untracked` is false,
    /// the content of files that are not in the index is not recorded. `user_rules` is the user's own ignore file.
    ///
    /// # Errors
    /// Fails if the record cannot be written.
    pub fn begin(
        repository: &Repository,
        below: &Path,
        with_untracked: bool,
        user_rules: Option<&Path>,
        record: &Path,
    ) -> io::Result<Self> {
        let origin = Origin::Repository { head: repository.head().ok().flatten() };
        let mut given = Self::new(record, origin, COMPARED)?;
        // Without an index, the content of every file is recorded.
        given.index = repository.checked().unwrap_or_default();
        given.with_untracked = with_untracked;
        below.as_os_str().as_bytes().clone_into(&mut given.prefix);
        if !given.prefix.is_empty() {
            given.prefix.push(b'/');
        }
        given.rules = GivenRules::around(repository.located(), below, user_rules);
        let top = &repository.located().top;
        let mut above: Vec<&Path> = below.ancestors().skip(1).collect();
        above.reverse();
        above.into_iter().for_each(|directory| given.read_attributes(top, directory, directory));
        Ok(given)
    }

    fn new(record: &Path, origin: Origin, bounds: Bounds) -> io::Result<Self> {
        match fs::remove_dir_all(record) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        Ok(Self {
            directory: record.to_owned(),
            origin,
            index: Checked::default(),
            attributes: Attributes::default(),
            read: HashSet::new(),
            prefix: Vec::new(),
            with_untracked: true,
            has_filters: false,
            files: BTreeMap::new(),
            nested: BTreeSet::new(),
            missing: BTreeSet::new(),
            is_partial: false,
            rules: None,
            tracked: HashSet::new(),
            contents: Contents::begin(record, bounds)?,
        })
    }

    /// Records the files of a whole working tree that git does not compare, for a bottle that works in the working tree
    /// itself. These are the files whose changes the user hides from git (`assume-unchanged`, `skip-worktree`), and the
    /// unchanged files that a filter produced.
    ///
    /// # Errors
    /// Fails if the record cannot be written, or a file cannot be read.
    pub fn record_not_compared(repository: &Repository, record: &Path) -> io::Result<()> {
        let mut given = Self::begin(repository, Path::new(""), true, None, record)?;
        given.is_partial = true;
        given.rules = None;
        let top = &repository.located().top;
        let index = std::mem::take(&mut given.index);
        let path = |name: &[u8]| PathBuf::from(OsStr::from_bytes(name));
        let known = index.files().iter().filter(|file| file.mode != DIRECTORY).map(|file| path(&file.name));
        let mut attributes: Vec<PathBuf> = known.filter(|path| path.ends_with(ATTRIBUTES_FILE)).collect();
        attributes.sort_by_key(|path| path.iter().count());
        for path in &attributes {
            let directory = path.parent().unwrap_or(Path::new(""));
            given.read_attributes(top, directory, directory);
        }
        for file in index.files().iter().filter(|file| file.mode != DIRECTORY) {
            let (name, blob) = (&file.name, ObjectId::parse(&file.id));
            if !file.is_hidden && !given.has_program(name) {
                continue;
            }
            let Some(entry) = Entry::at(top, &path(name))? else {
                given.missing.extend(file.is_hidden.then(|| name.clone()));
                continue;
            };
            let is_unchanged = || index.unchanged(name, entry.status()).is_some();
            if mode(entry.status()).is_some() && (file.is_hidden || is_unchanged()) {
                let Known { place, hash } = given.content(&entry)?;
                let mode = format!("{:06o}", file.mode);
                given.files.insert(name.clone(), GivenFile { mode, blob, hash, content: place });
            }
        }
        given.end()
    }

    /// Adds an entry of the walk that copies the files. A directory must be added before its content.
    ///
    /// # Errors
    /// Fails if the record cannot be written, or the file cannot be read.
    pub fn add(&mut self, entry: &Entry) -> io::Result<()> {
        let path = entry.path();
        let is_nested = path.ends_with(GIT) && path.iter().count() > 1;
        // Outside of a repository, the files of nested repositories are compared like other files.
        if is_nested && self.origin != Origin::Directory && is_repository(entry.parent()) {
            self.nested.extend(path.parent().map(Path::to_owned));
        }
        if path.iter().any(|name| name.eq_ignore_ascii_case(GIT)) {
            return Ok(());
        }
        let Some(mode) = mode(entry.status()) else { return Ok(()) };
        if self.origin != Origin::Directory {
            self.read_files_beside(entry);
        }
        let name = path.as_os_str().as_bytes();
        let whole = [&self.prefix, name].concat();
        let blob = self.index.unchanged(&whole, entry.status()).and_then(ObjectId::parse);
        let is_known = blob.is_some() && !self.has_program(&whole);
        let is_tracked = self.index.has(&whole);
        if is_tracked {
            self.tracked.insert(name.to_owned());
        }
        let is_read = !is_known && (self.with_untracked || is_tracked);
        let Known { place, hash } = if is_read { self.content(entry)? } else { Known::default() };
        let mode = format!("{mode:06o}");
        self.files.insert(name.to_owned(), GivenFile { mode, blob, hash, content: place });
        Ok(())
    }

    /// Writes the list of files, which completes the record.
    ///
    /// # Errors
    /// Fails if the list cannot be written.
    pub fn end(mut self) -> io::Result<()> {
        self.contents.end()?;
        // Git ignores the files of a nested repository, unless it tracks files in that directory.
        self.nested.retain(|nested| {
            let nested = [&self.prefix, nested.as_os_str().as_bytes()].concat();
            !self.index.has_below(&nested)
        });
        let is_in_nested = |path: &[u8]| {
            let path = Path::new(OsStr::from_bytes(path));
            !self.nested.is_empty() && path.ancestors().any(|above| self.nested.contains(above))
        };
        self.files.retain(|path, _| !is_in_nested(path));
        let partial = if self.is_partial { PARTIAL } else { "" };
        let mut list = format!("{VERSION} {}{partial}\n", self.origin).into_bytes();
        let nested = self.nested.iter().map(|path| (NESTED, path.as_os_str().as_bytes()));
        for (mode, path) in nested.chain(self.missing.iter().map(|path| (MISSING, &path[..]))) {
            write!(list, "{mode} - - -\t")?;
            list.extend_from_slice(path);
            list.push(0);
        }
        for (path, file) in &self.files {
            write!(list, "{file}\t")?;
            list.extend_from_slice(path);
            list.push(0);
        }
        if let Some(rules) = self.rules {
            rules.with_tracked(self.tracked).write(&self.directory)?;
        }
        let unfinished = self.directory.join("new");
        create(&unfinished)?.write_all(&list)?;
        fs::rename(unfinished, self.directory.join(FILES))
    }

    /// Whether a program converts the blob to the file, so that the file's bytes cannot be derived from the blob.
    fn has_program(&self, path: &[u8]) -> bool {
        if !self.has_filters {
            return false;
        }
        let attributes = self.attributes.of(path);
        attributes.value("filter").is_some_and(|name| name != LFS)
    }

    fn read_files_beside(&mut self, entry: &Entry) {
        let parent = entry.path().parent().unwrap_or(Path::new(""));
        if !self.read.contains(parent) {
            self.read.insert(parent.to_owned());
            let below = Path::new(OsStr::from_bytes(&self.prefix)).join(parent);
            self.read_attributes(entry.parent(), Path::new(""), &below);
            self.rules = self.rules.take().and_then(|rules| rules.with_file_of(entry.parent(), below));
        }
    }

    fn read_attributes(&mut self, from: &Directory, at: &Path, directory: &Path) {
        let text = from.read(&at.join(ATTRIBUTES_FILE), MAX_ATTRIBUTES as u64);
        if let Ok(Some(text)) = text {
            // If attributes cannot be added, the only effect is that a content may be copied without need.
            let _ = self.attributes.add(directory.as_os_str().as_bytes(), &text);
            // The attributes of each file are evaluated only if some attribute file names a filter.
            self.has_filters = self.attributes.has_value("filter");
        }
    }

    /// Records the content of a file, or the target of a link.
    fn content(&mut self, entry: &Entry) -> io::Result<Known> {
        if entry.kind() == FileType::Symlink {
            let target = entry.link()?;
            let add = |target: PathBuf| self.contents.add_text(target.as_os_str().as_bytes());
            return target.map_or_else(|| Ok(Known::default()), add);
        }
        let opened = match entry.open() {
            // If a file cannot be read, the copy itself reports the error.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(Known::default()),
            opened => opened?,
        };
        let Some((mut file, _)) = opened else { return Ok(Known::default()) };
        self.contents.add(&mut file, entry.size())
    }
}

/// Whether a directory is the top of a working tree that git would use.
fn is_repository(directory: &Directory) -> bool {
    locate::of_tree(directory).is_ok_and(|found| found.is_some())
}
