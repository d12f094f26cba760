//! Determines the files that the copy of a working tree gets as its `.git`.
//!
//! If the git directory is outside of the working tree, the copy gets only the files of git (gitrepository-layout(5)),
//! and those of Git LFS and git-annex, without which the files of the working tree are incomplete. It does not get
//! other files in that git directory, such as the keys of git-crypt. If the git directory is in the working tree, the
//! copy gets all of its files.
//!
//! In both cases, files and settings of this machine are left out: locks, sockets, hooks, settings that name programs
//! ([`crate::copied_config`]), and the records of linked worktrees outside of the copy. The copy contains no path of
//! this machine. References in reftables are converted to files, which every version of git can read.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use bottle_pack_check::ObjectFormat;
use rustix::fs::FileType;

use crate::attributes::{ATTRIBUTES_FILE, MAX_ATTRIBUTES};
use crate::config::Config;
use crate::copied_config::{CopiedConfig, Of};
use crate::directory::{Directory, ReadError};
use crate::index::{Checked, CopiedIndex, IndexFiles};
use crate::locate::{self, GIT, Kind, Located, MAX_CONFIG};
use crate::refs::{self, RefError};
use crate::reftable::{self, Stack, Value};
use crate::walk::{Entry, Stop, Walk, WalkError};

/// The names of the directories in a git directory that are copied.
const DIRECTORIES: [&str; 15] = [
    OBJECTS,
    "annex",
    "branches",
    "common",
    "info",
    "lfs",
    "logs",
    "modules",
    "rebase-apply",
    "rebase-merge",
    "refs",
    "remotes",
    "rr-cache",
    "sequencer",
    "svn",
];

/// The files of a git directory that are copied. References and messages whose names are in capitals are copied too.
const FILES: [&str; 5] = ["HEAD", "description", INDEX, "packed-refs", "shallow"];

/// The configuration files. The copy gets them without the settings that it cannot use.
const CONFIGS: [&str; 2] = ["config", "config.worktree"];

/// The directory that contains the git directories of submodules.
const MODULES: &str = "modules";

/// The directory that contains the records of linked worktrees.
const WORKTREES: &str = "worktrees";

/// The name of the directory with the hooks.
const HOOKS: &str = "hooks";

/// The entries at the top of a git directory that belong to this machine. Lock files belong to this machine too.
const OF_MACHINE: [&str; 5] = ["config", "config.worktree", "fsmonitor--daemon", HOOKS, WORKTREES];

/// The paths of references in a git directory.
const OF_REFERENCES: [&str; 3] = ["HEAD", "refs", reftable::DIRECTORY];

/// The maximum number of submodules, of linked worktrees, and of hooks that are read.
const MAX_NAMES: usize = 1000;

/// The list of other directories from which git reads objects. The list contains paths of this machine.
const ALTERNATES: &str = "objects/info/alternates";

/// The name of the file with the index of a working tree.
const INDEX: &str = "index";

/// The attribute file of a repository that is not part of its commits.
const INFO_ATTRIBUTES: &str = "info/attributes";

/// The beginning of an attribute that names a filter.
const FILTER: &[u8] = b"filter=";

/// The name of the directory with the objects.
const OBJECTS: &str = "objects";

/// The parts of a repository's git directory that belong only to its main working tree, and not to linked worktrees
/// (git-worktree(1), "REFS" and "DETAILS").
const OF_MAIN_TREE: [&str; 11] = [
    "config.worktree",
    "index",
    "info/sparse-checkout",
    "logs/HEAD",
    "logs/refs/bisect",
    "logs/refs/worktree",
    "rebase-apply",
    "rebase-merge",
    "refs/bisect",
    "refs/rewritten",
    "refs/worktree",
];

/// The contents of the copy of a git directory, except for the files that are copied unchanged.
#[derive(Debug)]
pub struct GitCopy {
    /// The paths of the git directory itself, and of the git directories of submodules in it.
    roots: Vec<PathBuf>,
    /// Whether the git directory stores its references in reftables.
    has_tables: bool,
    format: ObjectFormat,
    /// Whether the copy gets a changed index.
    has_index: bool,
    /// Whether attribute files of the working tree name filters.
    has_filters: bool,
    made: Vec<GitFile>,
    worktrees: Vec<Worktree>,
    left_out: Vec<String>,
}

/// A linked worktree whose directory is in the working tree.
#[derive(Debug)]
pub struct Worktree {
    /// The path of the worktree, relative to the working tree.
    pub path: PathBuf,
    /// The name of the worktree's record.
    name: OsString,
    record: Directory,
}

/// The files of a git directory that are copied. Each path occurs once: if a worktree and its repository have a file at
/// the same path, only the file of the worktree is copied.
pub struct GitFiles {
    /// The directories that remain to be read. The last one is read first.
    left: Vec<Source>,
    made: Vec<GitFile>,
    done: HashSet<PathBuf>,
}

/// A file, directory or link of a copied git directory, with its path in that directory.
#[derive(Debug, Clone)]
pub enum GitFile {
    /// An entry that is copied unchanged.
    Entry(PathBuf, Entry),
    /// A file with this content.
    Made(PathBuf, Vec<u8>),
    /// The content of the index, and the modification time in seconds that its file gets.
    Index(Vec<u8>, u64),
    /// A directory.
    Directory(PathBuf),
}

/// Why a file of a git directory is not copied.
#[derive(Debug, thiserror::Error)]
pub enum GitFileError {
    /// The walk failed.
    #[error(transparent)]
    Walk(#[from] WalkError),
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The references cannot be read.
    #[error(transparent)]
    References(#[from] RefError),
    /// A system call failed.
    #[error(transparent)]
    System(#[from] io::Error),
}

struct Source {
    walk: Walk,
    /// The path of the directory's files in the copy.
    place: PathBuf,
}

/// The part of a repository to which the files of a git directory belong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// The files of the working tree that is copied.
    Tree,
    /// The files of the repository to which this linked worktree belongs.
    Common,
}

impl GitCopy {
    /// Determines the contents of the copy of a working tree's git directory.
    ///
    /// # Errors
    /// Returns [`GitFileError`] if a file that determines these contents cannot be read.
    pub fn of(located: &Located) -> Result<Self, GitFileError> {
        let Located { git, common, .. } = located;
        let mut copy = Self {
            roots: roots(common)?,
            has_tables: false,
            format: ObjectFormat::default(),
            has_index: false,
            has_filters: false,
            made: Vec::new(),
            worktrees: worktrees(located)?,
            left_out: Vec::new(),
        };
        let config = common.read(Path::new("config"), MAX_CONFIG)?.unwrap_or_default();
        let config = Config::parse(&config).unwrap_or_default();
        let is_set = |section, name, value: &[u8]| {
            config.last(section, name).is_some_and(|set| set.eq_ignore_ascii_case(value))
        };
        copy.has_tables = is_set("extensions", "refstorage", b"reftable");
        if is_set("extensions", "objectformat", b"sha256") {
            copy.format = ObjectFormat::Sha256;
        }
        let is_bare = matches!(located.kind, Kind::Own | Kind::Inside) && is_set("core", "bare", b"true");
        let of = if is_bare { Of::Bare } else { Of::Tree };
        copy.add_index(located)?;
        for root in copy.roots.clone() {
            let is_top = root.as_os_str().is_empty();
            let of = if is_top { of } else { Of::Submodule };
            let Some(directory) = common.directory(&root)? else { continue };
            copy.configure(&directory, CONFIGS[0], &root, of)?;
            // A linked worktree has its own `config.worktree`, in its git directory.
            copy.configure(if is_top { git } else { &directory }, CONFIGS[1], &root, of)?;
            copy.note_hooks(&directory, &root)?;
            // The copy gets the objects that the repository itself borrows, but not the objects that a submodule
            // borrows.
            if !is_top && directory.stat(Path::new(ALTERNATES)).is_ok_and(|found| found.is_some()) {
                copy.note([root.join(ALTERNATES).display().to_string()]);
            }
        }
        if copy.has_tables {
            copy.made.extend(references(Path::new(""), Some(common), git)?);
        }
        Ok(copy)
    }

    /// Returns the object format. This is the only format that the git of the copy has to support, because references
    /// in reftables become files.
    #[must_use]
    pub fn format(&self) -> ObjectFormat {
        self.format
    }

    /// Returns the names of the settings and hooks that the copy lacks.
    #[must_use]
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// Returns the linked worktrees in the working tree. The copy gets the records of the worktrees that it contains.
    #[must_use]
    pub fn worktrees(&self) -> &[Worktree] {
        &self.worktrees
    }

    /// Whether the copy leaves out the entry at `path`, which is relative to a git directory in the working tree.
    #[must_use]
    pub fn leaves_out(&self, path: &Path, kind: FileType) -> bool {
        let root =
            self.roots.iter().filter(|root| path.starts_with(root)).max_by_key(|root| root.iter().count());
        let Some(inside) = root.and_then(|root| path.strip_prefix(root).ok()) else { return false };
        let Some(top) = inside.iter().next() else { return false };
        let is_one_of = |names: &[&str]| names.iter().any(|name| top == *name);
        let is_lock = kind == FileType::RegularFile
            && path.extension().is_some_and(|name| name == "lock")
            && (inside.iter().count() == 1 || is_one_of(&["logs", "refs", reftable::DIRECTORY]));
        let is_borrowing = inside == Path::new(ALTERNATES);
        let has_index = self.has_index && path == Path::new(INDEX);
        let has_references = self.has_tables && inside == path && is_one_of(&OF_REFERENCES);
        is_lock || is_borrowing || has_index || has_references || is_one_of(&OF_MACHINE)
    }

    /// Returns the files of the copy, with the records of the worktrees `kept`. `place` is the path of the copy of the
    /// working tree. If the git directory is the directory `.git` in the working tree, files that are copied unchanged
    /// are not included. If `with_objects` is false, files in `objects` are not included either.
    ///
    /// # Errors
    /// Returns [`GitFileError`] if a directory cannot be opened, or a file of a worktree cannot be read.
    pub fn files(
        self: &std::sync::Arc<Self>,
        located: &Located,
        with_objects: bool,
        kept: &HashSet<PathBuf>,
        place: &str,
    ) -> Result<GitFiles, GitFileError> {
        let source = |part, directory: &Directory| {
            let copy = std::sync::Arc::clone(self);
            let walk = Walk::content(directory.try_clone()?);
            let walk = walk.leaving_out(Box::new(move |path, kind| {
                !is_copied(path, kind, part) || copy.leaves_out(path, kind)
            }));
            let walk = if with_objects { walk } else { walk.except(OBJECTS) };
            Ok::<_, io::Error>(Source { walk, place: PathBuf::new() })
        };
        let mut files = GitFiles { left: Vec::new(), made: self.made.clone(), done: HashSet::new() };
        if located.kind != Kind::Own {
            if located.git.id()? != located.common.id()? {
                files.left.push(source(Part::Common, &located.common)?);
            }
            files.left.push(source(Part::Tree, &located.git)?);
        }
        for worktree in self.worktrees.iter().filter(|worktree| kept.contains(&worktree.path)) {
            files.left.push(worktree.files(self.has_tables)?);
            files.made.extend(worktree.made(self.has_tables, place)?);
        }
        Ok(files)
    }

    fn configure(&mut self, from: &Directory, name: &str, root: &Path, of: Of) -> Result<(), GitFileError> {
        let has_filters = self.has_filters && of != Of::Submodule;
        let Some(copied) = configuration(from, name, of, has_filters)? else { return Ok(()) };
        self.made.push(GitFile::Made(root.join(name), copied.text));
        self.note(copied.left_out);
        Ok(())
    }

    /// Adds a changed index to the copy if attributes name filters, because the copy does not have these filters.
    fn add_index(&mut self, located: &Located) -> Result<(), GitFileError> {
        // An index that cannot be read is copied unchanged.
        let Ok(Some((index, written))) = IndexFiles::read(&located.git, None) else { return Ok(()) };
        let Ok(checked) = Checked::of(&index, &written) else { return Ok(()) };
        self.has_filters = has_filters(located, &checked);
        if !self.has_filters {
            return Ok(());
        }
        let status = |name: &[u8]| located.top.stat(Path::new(OsStr::from_bytes(name))).ok().flatten();
        if let Some(copied) = CopiedIndex::of(&index, &checked, &written, status) {
            self.has_index = true;
            self.made.push(GitFile::Index(copied.bytes, copied.modified));
        }
        Ok(())
    }

    fn note_hooks(&mut self, git: &Directory, root: &Path) -> Result<(), GitFileError> {
        let Some(hooks) = git.directory(Path::new(HOOKS)).ok().flatten() else { return Ok(()) };
        // Programs of the agent that install hooks expect that the directory exists.
        self.made.push(GitFile::Directory(root.join(HOOKS)));
        let (mut names, _) = hooks.names(MAX_NAMES)?;
        names.retain(|name| !name.as_bytes().ends_with(b".sample"));
        names.sort();
        self.note(names.iter().map(|name| root.join(HOOKS).join(name).display().to_string()));
        Ok(())
    }

    fn note(&mut self, names: impl IntoIterator<Item = String>) {
        for name in names {
            if !self.left_out.contains(&name) {
                self.left_out.push(name);
            }
        }
    }
}

impl Worktree {
    /// Returns the content of the file `.git` in the copy of this worktree.
    #[must_use]
    pub fn git_file(&self) -> Vec<u8> {
        let mut path: PathBuf = self.path.iter().map(|_| "..").collect();
        path.extend([OsStr::new(GIT), OsStr::new(WORKTREES), &self.name]);
        [b"gitdir: ", path.as_os_str().as_bytes(), b"\n"].concat()
    }

    fn place(&self) -> PathBuf {
        Path::new(WORKTREES).join(&self.name)
    }

    fn files(&self, has_tables: bool) -> io::Result<Source> {
        let walk = Walk::content(self.record.try_clone()?).leaving_out(Box::new(move |path, kind| {
            let has_references = has_tables && OF_REFERENCES.iter().any(|name| path.starts_with(name));
            !is_copied(path, kind, Part::Tree) || has_references
        }));
        Ok(Source { walk, place: self.place() })
    }

    /// Returns the files of the worktree's record that contain paths. The paths are those of this copy.
    fn made(&self, has_tables: bool, place: &str) -> Result<Vec<GitFile>, GitFileError> {
        let record = self.place();
        let git_file = Path::new(place).join(&self.path).join(GIT);
        let line = [git_file.as_os_str().as_bytes(), b"\n"].concat();
        let mut made = vec![
            GitFile::Made(record.join("commondir"), b"../..\n".to_vec()),
            GitFile::Made(record.join("gitdir"), line),
        ];
        if let Some(copied) = configuration(&self.record, CONFIGS[1], Of::Tree, false)? {
            made.push(GitFile::Made(record.join(CONFIGS[1]), copied.text));
        }
        if has_tables {
            made.extend(references(&record, None, &self.record)?);
        }
        Ok(made)
    }
}

impl GitFiles {
    /// Makes the iterator end with [`WalkError::Stopped`] when `stop` is set.
    #[must_use]
    pub fn until(mut self, stop: &Stop) -> Self {
        let until = |source: Source| Source { walk: source.walk.until(stop.clone()), ..source };
        self.left = self.left.into_iter().map(until).collect();
        self
    }
}

impl Iterator for GitFiles {
    type Item = Result<GitFile, GitFileError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let Some(source) = self.left.last_mut() else { return self.made.pop().map(Ok) };
            let entry = match source.walk.next() {
                Some(Ok(entry)) => entry,
                Some(Err(error)) => return Some(Err(error.into())),
                None => {
                    let _ = self.left.pop();
                    continue;
                }
            };
            let path = source.place.join(entry.path());
            if self.done.insert(path.clone()) {
                return Some(Ok(GitFile::Entry(path, entry)));
            }
        }
    }
}

/// Finds the paths of a git directory and of the git directories of submodules in it, relative to the git directory.
fn roots(git: &Directory) -> io::Result<Vec<PathBuf>> {
    let mut roots = vec![PathBuf::new()];
    let mut left = vec![PathBuf::from(MODULES)];
    let mut budget = MAX_NAMES;
    while let Some(path) = left.pop() {
        // A link or a file is not the git directory of a submodule.
        let Ok(Some(directory)) = git.directory(&path) else { continue };
        let next = if locate::is_git_directory(&directory, &directory) {
            roots.push(path.clone());
            vec![path.join(MODULES)]
        } else {
            let (mut names, _) = directory.names(budget)?;
            names.sort();
            names.iter().map(|name| path.join(name)).collect()
        };
        budget = budget.saturating_sub(next.len());
        left.extend(next);
    }
    Ok(roots)
}

/// Finds the linked worktrees of the repository whose directories are in the working tree, except the working tree
/// itself.
fn worktrees(located: &Located) -> io::Result<Vec<Worktree>> {
    let Some(records) = located.common.directory(Path::new(WORKTREES)).ok().flatten() else {
        return Ok(Vec::new());
    };
    let top = located.top.path().canonicalize()?;
    let (mut names, _) = records.names(MAX_NAMES)?;
    names.sort();
    let worktree = |name: OsString| {
        let record = records.directory(Path::new(&name)).ok()??;
        let tree = locate::tree_of_record(&record)?;
        let path = tree.path().canonicalize().ok()?.strip_prefix(&top).ok()?.to_owned();
        let is_line = !path.as_os_str().as_bytes().contains(&b'\n') && !name.as_bytes().contains(&b'\n');
        (is_line && !path.as_os_str().is_empty()).then_some(Worktree { path, name, record })
    };
    Ok(names.into_iter().filter_map(worktree).collect())
}

/// Generates a configuration file of the copy, and the list of the settings that the file leaves out. `None` if there
/// is no such file. A malformed file is copied unchanged, so that git refuses it in the copy too.
fn configuration(
    from: &Directory,
    name: &str,
    of: Of,
    has_filters: bool,
) -> Result<Option<CopiedConfig>, GitFileError> {
    let Some(text) = from.read(Path::new(name), MAX_CONFIG)? else { return Ok(None) };
    Ok(Some(match Config::parse(&text) {
        Some(config) => CopiedConfig::of(&config, of, has_filters),
        None => CopiedConfig { text, left_out: Vec::new() },
    }))
}

/// Whether one of these files names a filter: an attribute file in the index, the attribute file at the top, or
/// `info/attributes`.
fn has_filters(located: &Located, index: &Checked) -> bool {
    let names_filter = |from: &Directory, path: &Path| {
        let text = from.read(path, MAX_ATTRIBUTES as u64).ok().flatten().unwrap_or_default();
        text.windows(FILTER.len()).any(|word| word == FILTER)
    };
    let is_attributes = |path: &&Path| path.file_name().is_some_and(|name| name == ATTRIBUTES_FILE);
    let known =
        index.files().iter().map(|file| Path::new(OsStr::from_bytes(&file.name))).filter(is_attributes);
    names_filter(&located.common, Path::new(INFO_ATTRIBUTES))
        || names_filter(&located.top, Path::new(ATTRIBUTES_FILE))
        || known.take(MAX_NAMES).any(|path| names_filter(&located.top, path))
}

/// Converts the references in the reftables of a working tree's git directory to files. If `common` is set, also
/// converts the references of the repository.
fn references(
    place: &Path,
    common: Option<&Directory>,
    git: &Directory,
) -> Result<Vec<GitFile>, GitFileError> {
    let shared = common.map(Stack::read).transpose()?.map(|stack| stack.references).unwrap_or_default();
    let own = Stack::read(git)?.references;
    let shared = shared.into_iter().filter(|(name, _)| !refs::is_of_worktree(name));
    let all = shared.chain(own.into_iter().filter(|(name, _)| refs::is_of_worktree(name)));
    let mut packed = b"# pack-refs with: sorted \n".to_vec();
    let mut made = Vec::new();
    for (name, value) in all {
        let is_valid =
            |name: &[u8]| std::str::from_utf8(name).is_ok_and(refs::is_valid) || is_in_capitals(name);
        let path = || place.join(OsStr::from_bytes(&name));
        match value {
            _ if !is_valid(&name) => {}
            Value::Reference(to) if is_valid(&to) => {
                made.push(GitFile::Made(path(), [b"ref: ", to.as_slice(), b"\n"].concat()));
            }
            Value::Reference(_) => {}
            Value::Id(id) if refs::is_of_worktree(&name) => {
                made.push(GitFile::Made(path(), format!("{id}\n").into_bytes()));
            }
            Value::Id(id) => packed.extend([id.as_str().as_bytes(), b" ", &name, b"\n"].concat()),
        }
    }
    made.push(GitFile::Directory(place.join("refs")));
    if common.is_some() {
        made.push(GitFile::Made(place.join("packed-refs"), packed));
    }
    Ok(made)
}

/// Whether git, Git LFS or git-annex needs this file, directory or link in a copy.
fn is_copied(path: &Path, kind: FileType, part: Part) -> bool {
    if !matches!(kind, FileType::RegularFile | FileType::Directory | FileType::Symlink) {
        return false;
    }
    let Some(top) = path.iter().next().map(OsStrExt::as_bytes) else { return false };
    let is_one_of = |known: &[&str]| known.iter().any(|name| name.as_bytes() == top);
    let is_top_level = path.components().count() == 1;
    let is_gits = match (is_top_level, kind) {
        (true, FileType::Directory) => is_one_of(&DIRECTORIES),
        (true, FileType::RegularFile) => is_one_of(&FILES) || is_in_capitals(top) || is_shared_index(top),
        // In older repositories, `HEAD` is a link.
        (true, _) => top == b"HEAD",
        (false, _) => is_one_of(&DIRECTORIES) && !(top == b"modules" && has_keys(path)),
    };
    let is_lock = top != OBJECTS.as_bytes() && path.extension().is_some_and(|name| name == "lock");
    let is_of_main_tree = || {
        is_top_level && is_in_capitals(top)
            || OF_MAIN_TREE.iter().any(|of| path.starts_with(of))
            || is_shared_index(top)
    };
    is_gits && !is_lock && (part == Part::Tree || !is_of_main_tree())
}

/// Whether this path in the git directory of a submodule belongs to git-crypt's keys.
fn has_keys(path: &Path) -> bool {
    let names: Vec<_> = path.iter().collect();
    names.windows(2).any(|pair| pair == ["git-crypt", "keys"])
}

/// Whether a name is in capitals, such as `ORIG_HEAD` and `MERGE_MSG`. Git uses such names for references and messages
/// next to `HEAD`.
fn is_in_capitals(name: &[u8]) -> bool {
    name.iter().all(|byte| byte.is_ascii_uppercase() || *byte == b'_')
}

/// Whether this is the name of a shared index, to which a split index refers.
fn is_shared_index(name: &[u8]) -> bool {
    let id = name.strip_prefix(b"sharedindex.").unwrap_or_default();
    matches!(id.len(), 40 | 64) && id.iter().all(u8::is_ascii_hexdigit)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::process::Command;
    use std::sync::Arc;

    use rustix::fs::{CWD, Mode};

    use super::*;
    use crate::locate::at;

    const ID: &str = "0123456789abcdef0123456789abcdef01234567";

    fn write(top: &Path, path: &str, text: &str) {
        let path = top.join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        fs::write(path, text).expect("written");
    }

    fn shown(file: Result<GitFile, GitFileError>) -> Option<String> {
        match file.expect("walked") {
            GitFile::Entry(_, entry) if entry.kind() == FileType::Directory => None,
            GitFile::Entry(path, _) => Some(path.display().to_string()),
            GitFile::Made(path, text) => {
                Some(format!("{}={}", path.display(), String::from_utf8_lossy(&text)))
            }
            GitFile::Index(..) => Some("index=".to_owned()),
            GitFile::Directory(path) => Some(format!("{}/", path.display())),
        }
    }

    /// Returns the files of a copy with these worktrees.
    fn with_worktrees(top: &Path, with_objects: bool, kept: &[&str]) -> Vec<String> {
        let located = at(top).expect("read").expect("found");
        let copy = Arc::new(GitCopy::of(&located).expect("read"));
        let kept = kept.iter().map(PathBuf::from).collect();
        let files = copy.files(&located, with_objects, &kept, "/workspace").expect("opened");
        let mut files: Vec<_> = files.filter_map(shown).collect();
        files.sort();
        files
    }

    fn copied(top: &Path, with_objects: bool) -> Vec<String> {
        with_worktrees(top, with_objects, &[])
    }

    #[test]
    fn copies_files_of_git_and_nothing_else() {
        let root = tempfile::tempdir().expect("a directory");
        let top = root.path().join("top");
        let write = |path: &str| write(root.path(), path, "x");
        write("top/.git");
        fs::write(top.join(".git"), "gitdir: ../data\n").expect("written");
        let shared = format!("sharedindex.{ID}");
        let wanted = [
            "BISECT_LOG",
            "HEAD",
            "MERGE_MSG",
            "annex/objects/a",
            "description",
            "index",
            "info/exclude",
            "lfs/objects/a",
            "logs/HEAD",
            "modules/a/b/HEAD",
            "objects/pack/a.lock",
            "packed-refs",
            "rebase-merge/git-rebase-todo",
            "refs/heads/git-crypt/worktrees",
            "refs/heads/main",
            "rr-cache/a/preimage",
            "sequencer/todo",
            shared.as_str(),
            "shallow",
        ];
        let unwanted = [
            ".ssh/id_ed25519",
            "Documents/letter",
            "config.lock",
            "fsmonitor--daemon/cookies/a",
            "git-crypt/keys/default",
            "hooks/pre-commit",
            "index.lock",
            "info/x.lock",
            "key.pem",
            "modules/a/b/git-crypt/keys/default",
            "sharedindex.x",
            "worktrees/other/HEAD",
        ];
        wanted.iter().chain(&unwanted).for_each(|path| write(&format!("data/{path}")));
        fs::write(root.path().join("data/HEAD"), "ref: refs/heads/main\n").expect("written");
        let config = "[core]\n\tbare = true\n\tworktree = ../top\n[user]\n\tname = a\n";
        fs::write(root.path().join("data/config"), config).expect("written");
        // The test makes a file where git expects a directory, a directory where git expects a file, a named pipe, and
        // a link.
        write("data/remotes");
        write("data/FETCH_HEAD/x");
        rustix::fs::mknodat(CWD, root.path().join("data/refs/pipe"), FileType::Fifo, Mode::RWXU, 0)
            .expect("a pipe");
        symlink("/etc", root.path().join("data/svn")).expect("link");
        let mut expected: Vec<String> = wanted.iter().map(ToString::to_string).collect();
        expected.push("config=[user]\n\tname = \"a\"\n".to_owned());
        expected.push("hooks/".to_owned());
        expected.sort();
        assert_eq!(copied(&top, true), expected);
        expected.retain(|path| !path.starts_with("objects"));
        assert_eq!(copied(&top, false), expected);
    }

    #[test]
    fn a_linked_worktree_has_its_own_files_and_those_of_its_repository() {
        let root = tempfile::tempdir().expect("a directory");
        let write = |path: &str, text: &str| write(root.path(), path, text);
        for (path, text) in [
            ("HEAD", "ref: refs/heads/main\n"),
            ("FETCH_HEAD", ""),
            ("config", "[core]\n\tbare = true\n"),
            ("config.worktree", ""),
            ("index", ""),
            ("info/exclude", ""),
            ("info/sparse-checkout", ""),
            ("logs/HEAD", ""),
            ("logs/refs/heads/main", ""),
            ("modules/lib/HEAD", ""),
            ("objects/pack/a.pack", ""),
            ("rebase-merge/onto", ""),
            ("refs/heads/main", ""),
            ("refs/worktree/x", ""),
            ("worktrees/one/HEAD", "ref: refs/heads/one\n"),
            ("worktrees/one/commondir", "../..\n"),
            ("worktrees/one/gitdir", "../../../one/.git\n"),
            ("worktrees/one/index", ""),
            ("worktrees/one/locked", ""),
            ("worktrees/one/logs/HEAD", ""),
            ("worktrees/one/refs/bisect/bad", ""),
            ("worktrees/two/HEAD", ""),
        ] {
            write(&format!("main.git/{path}"), text);
        }
        write("one/.git", "gitdir: ../main.git/worktrees/one\n");
        let expected = [
            "HEAD",
            "config=",
            "index",
            "info/exclude",
            "logs/HEAD",
            "logs/refs/heads/main",
            "modules/lib/HEAD",
            "refs/bisect/bad",
            "refs/heads/main",
        ];
        assert_eq!(copied(&root.path().join("one"), false), expected);
    }

    #[test]
    fn a_git_directory_in_the_working_tree_loses_what_is_of_this_machine() {
        let root = tempfile::tempdir().expect("a directory");
        let write = |path: &str, text: &str| write(root.path(), path, text);
        for path in ["objects/x", "refs/x", "modules/a/b/objects/x", "modules/a/b/refs/x"] {
            write(&format!(".git/{path}"), "");
        }
        for git in ["", "modules/a/b/"] {
            write(&format!(".git/{git}HEAD"), "ref: refs/heads/main\n");
            write(&format!(".git/{git}config"), "[core]\n\tworktree = ../x\n[commit]\n\tgpgsign\n");
            write(&format!(".git/{git}hooks/pre-commit"), "");
            write(&format!(".git/{git}hooks/pre-push.sample"), "");
        }
        assert_eq!(
            copied(root.path(), true),
            ["config=", "hooks/", "modules/a/b/config=[core]\n\tworktree = \"../x\"\n", "modules/a/b/hooks/"]
        );
        let copy = GitCopy::of(&at(root.path()).expect("read").expect("found")).expect("read");
        let left_out = ["commit.gpgsign", "hooks/pre-commit", "modules/a/b/hooks/pre-commit"];
        assert_eq!(copy.left_out(), left_out);
        for (path, is_left_out) in [
            ("config", true),
            ("hooks", true),
            ("worktrees", true),
            ("index.lock", true),
            ("refs/heads/x.lock", true),
            ("modules/a/b/config", true),
            ("modules/a/b/hooks", true),
            ("modules/a/b/index.lock", true),
            ("refs/heads/config", false),
            ("refs/heads/hooks", false),
            ("modules/a/config", false),
            ("modules/a/b/refs/heads/config", false),
            ("objects/pack/x.lock", false),
            ("lfs/x/y.lock", false),
            ("git-crypt/keys/default", false),
            ("HEAD", false),
            ("refs", false),
        ] {
            assert_eq!(copy.leaves_out(Path::new(path), FileType::RegularFile), is_left_out, "{path}");
        }
    }

    #[test]
    fn a_bare_repository_beside_its_worktrees_stays_one() {
        let root = tempfile::tempdir().expect("a directory");
        let write = |path: &str, text: &str| write(root.path(), path, text);
        for (path, text) in [
            (".git", "gitdir: ./.bare\n"),
            (".bare/HEAD", "ref: refs/heads/main\n"),
            (".bare/config", "[core]\n\tbare = true\n"),
            (".bare/objects/x", ""),
            (".bare/refs/heads/main", ""),
            (".bare/worktrees/one/HEAD", ""),
            (".bare/worktrees/one/commondir", ""),
            (".bare/worktrees/one/locked", ""),
            (".bare/worktrees/one/index", ""),
            (".bare/worktrees/other/HEAD", ""),
            ("a/one/x", ""),
        ] {
            write(path, text);
        }
        write(".bare/worktrees/one/gitdir", &format!("{}\n", root.path().join("a/one/.git").display()));
        let elsewhere = tempfile::tempdir().expect("a directory");
        write(".bare/worktrees/other/gitdir", &format!("{}\n", elsewhere.path().join(".git").display()));
        let alone = ["HEAD", "config=[core]\n\tbare = \"true\"\n", "refs/heads/main"];
        assert_eq!(copied(root.path(), false), alone);
        let with_one = [
            "HEAD",
            "config=[core]\n\tbare = \"true\"\n",
            "refs/heads/main",
            "worktrees/one/HEAD",
            "worktrees/one/commondir=../..\n",
            "worktrees/one/gitdir=/workspace/a/one/.git\n",
            "worktrees/one/index",
        ];
        assert_eq!(with_worktrees(root.path(), false, &["a/one", "a/two"]), with_one);
        let copy = GitCopy::of(&at(root.path()).expect("read").expect("found")).expect("read");
        let [one] = copy.worktrees() else { panic!("{:?}", copy.worktrees()) };
        assert_eq!(one.git_file(), b"gitdir: ../../.git/worktrees/one\n");
    }

    /// The copy of a repository with reftables has the same references in files.
    #[test]
    fn references_in_tables_become_files() {
        let root = tempfile::tempdir().expect("a directory");
        let git = |place: &str, arguments: &[&str]| {
            let mut git = Command::new("git");
            git.current_dir(root.path().join(place)).env("GIT_CONFIG_GLOBAL", "/dev/null");
            git.args(["-c", "user.name=a", "-c", "user.email=a@example.com"]).args(arguments);
            let output = git.output().expect("git");
            let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
            if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
        };
        if git(".", &["init", "-q", "-b", "main", "--ref-format=reftable", "main"]).is_err() {
            return;
        }
        let made = |place: &str, arguments: &[&str]| git(place, arguments).expect("git");
        made("main", &["commit", "-q", "--allow-empty", "-m", "one"]);
        made("main", &["tag", "-a", "-m", "x", "v1"]);
        made("main", &["update-ref", "refs/remotes/origin/main", "HEAD"]);
        made("main", &["symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/main"]);
        made("main", &["worktree", "add", "-q", "-b", "tree", "../tree"]);
        made("main", &["worktree", "add", "-q", "-b", "inside", "inside"]);
        made("tree", &["commit", "-q", "--allow-empty", "-m", "two"]);
        made("tree", &["update-ref", "refs/worktree/own", "HEAD"]);
        for place in ["main", "tree"] {
            let top = root.path().join(place);
            let located = at(&top).expect("read").expect("found");
            let copy = Arc::new(GitCopy::of(&located).expect("read"));
            let target = root.path().join(format!("copy-of-{place}"));
            let objects = root.path().join("main/.git/objects").display().to_string();
            write(&target, ".git/objects/info/alternates", &format!("{objects}\n"));
            let kept = [PathBuf::from("inside")].into();
            let files = copy.files(&located, false, &kept, &target.display().to_string()).expect("opened");
            for file in files {
                let (path, text) = match file.expect("walked") {
                    GitFile::Directory(path) => {
                        fs::create_dir_all(target.join(".git").join(path)).expect("made");
                        continue;
                    }
                    GitFile::Made(path, text) => (path, text),
                    GitFile::Index(index, _) => (INDEX.into(), index),
                    GitFile::Entry(path, entry) => match entry.open().expect("opened") {
                        Some((file, _)) if entry.kind() == FileType::RegularFile => {
                            let read = std::io::Read::bytes(file).collect::<Result<Vec<_>, _>>();
                            (path, read.expect("read"))
                        }
                        _ => continue,
                    },
                };
                let path = target.join(".git").join(path);
                fs::create_dir_all(path.parent().expect("a parent")).expect("made");
                fs::write(path, text).expect("written");
            }
            let copy_name = format!("copy-of-{place}");
            let listed = ["for-each-ref", "--format=%(refname) %(objectname) %(symref)"];
            assert_eq!(made(&copy_name, &listed), made(place, &listed), "{place}");
            let head = ["symbolic-ref", "HEAD"];
            assert_eq!(made(&copy_name, &head), made(place, &head), "{place}");
            assert_eq!(made(&copy_name, &["fsck"]), "", "{place}");
            if place == "main" {
                fs::create_dir(target.join("inside")).expect("made");
                fs::write(target.join("inside/.git"), copy.worktrees()[0].git_file()).expect("written");
                assert_eq!(made("copy-of-main/inside", &head), "refs/heads/inside\n");
                assert!(made(&copy_name, &["worktree", "list"]).lines().count() == 2, "of three");
            }
        }
    }
}
