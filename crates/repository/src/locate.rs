//! Finds the git directory of a working tree, and decides whether this git directory belongs to the working tree.
//!
//! `.git` can be a file or a link that names a git directory anywhere, and a git directory can name another git
//! directory in its file `commondir`. Anyone who can write the working tree can write these names, so the names prove
//! nothing. A git directory outside of the working tree is accepted only if it contains the path of the working tree,
//! because only someone who can write this git directory can put the path there:
//!
//! ```text
//!   TOP/.git ──"gitdir:"──► MAIN/.git/worktrees/NAME     its file `gitdir` names TOP/.git, and its `commondir` is
//!                                                        MAIN/.git                               (linked worktree)
//!   TOP/.git ──"gitdir:"──► SUPER/.git/modules/NAME      `core.worktree` in its `config` is TOP         (submodule)
//!   TOP/.git ──"gitdir:"──► TOP/NAME                     it is a part of the working tree
//!   TOP/.git ──"gitdir:"──► elsewhere                    the user has to confirm it          (--separate-git-dir)
//! ```
//! Directories are compared by device and inode, so different paths of the same directory are equal. The configuration
//! is read as data.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use crate::config::Config;
use crate::directory::{Directory, FileId, ReadError};

/// The name of a git directory in its working tree.
pub const GIT: &str = ".git";

/// The name of the directory of the objects in a git directory.
pub(crate) const OBJECTS: &str = "objects";

/// The maximum length in bytes of a file that contains one path or reference. Paths on Linux have up to 4,096 bytes.
const MAX_LINE: u64 = 8 << 10;

/// The maximum length of a configuration file in bytes.
pub const MAX_CONFIG: u64 = 1 << 20;

/// The maximum number of parents of a git directory that are compared with the top of the working tree.
const MAX_LEVELS: usize = 256;

/// A working tree and its git directory.
#[derive(Debug)]
pub struct Located {
    /// The top of the working tree. For a bare repository, the git directory.
    pub top: Directory,
    /// The git directory of this working tree, which contains its `HEAD` and `index`.
    pub git: Directory,
    /// The git directory that all worktrees of the repository share, which contains `objects`, `refs` and `config`. It
    /// is the same directory as `git`, except in a linked worktree.
    pub common: Directory,
    /// The location of the git directory.
    pub kind: Kind,
    /// The user id of the owner of `common`.
    pub owner: u32,
}

/// The location of the git directory of a working tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The git directory is the directory `.git` in the working tree.
    Own,
    /// The git directory is another directory in the working tree.
    Inside,
    /// The git directory belongs to a linked worktree of another repository.
    Worktree,
    /// The git directory is outside of the working tree, and names the working tree in `core.worktree`, as the git
    /// directories of submodules do.
    Submodule,
    /// The git directory is outside of the working tree, and does not name the working tree. The user has to confirm
    /// it.
    Separate,
    /// There is no working tree: the directory is a git directory itself.
    Bare,
}

/// Why a git directory cannot be used.
#[derive(Debug)]
pub struct LocateError {
    /// The `.git` that names the git directory, or the directory that was searched.
    pub path: PathBuf,
    /// Why the git directory cannot be used.
    pub problem: Problem,
}

/// Why a `.git`, or the git directory that it names, cannot be used.
#[derive(Debug)]
pub enum Problem {
    /// The `.git` is a named pipe, a socket or a device, or it is a file that does not contain `gitdir: PATH`.
    NotGitFile,
    /// The `.git` names this path, but no directory can be opened at it.
    Missing(PathBuf),
    /// The `.git` names this directory, which is not a git directory.
    NotGit(PathBuf),
    /// The `.git` names this git directory, but its `commondir` does not name the repository of the worktree.
    CommonDirectory(PathBuf),
    /// The `.git` names this git directory, which belongs to another working tree.
    OtherTree(PathBuf),
    /// The git directory belongs to another user.
    Owner {
        /// The path of the git directory.
        git: PathBuf,
        /// The user id of the owner.
        owner: u32,
    },
    /// A system call failed.
    System(io::Error),
}

impl Located {
    /// Whether a caller may use the git directory without asking the user. This is so if the git directory is a part of
    /// the working tree, or if it names the working tree.
    #[must_use]
    pub fn is_proven(&self) -> bool {
        self.kind != Kind::Separate
    }

    /// Opens the directory with the objects. `None` if it does not exist. A link is not followed, because its target
    /// could be the objects of any repository ([`crate::lenders`]).
    ///
    /// # Errors
    /// Returns the I/O error of the failed system call; `NOTDIR` or `LOOP` if the directory is a link.
    pub fn objects(&self) -> io::Result<Option<Directory>> {
        self.common.directory(Path::new(OBJECTS))
    }

    /// Whether the git directory is outside of the working tree.
    #[must_use]
    pub fn is_outside(&self) -> bool {
        matches!(self.kind, Kind::Worktree | Kind::Submodule | Kind::Separate)
    }
}

/// Finds the repository that contains the directory `from`, as git does: it searches this directory and its parents on
/// the same file system. If a repository is found in a parent and does not belong to the user, its `.git` is an error.
///
/// # Errors
/// Returns [`LocateError`] if a `.git` on the path of the search names a git directory that cannot be used.
pub fn locate(from: &Path) -> Result<Option<Located>, LocateError> {
    let failed = |error| LocateError { path: from.to_owned(), problem: Problem::System(error) };
    let here = from.canonicalize().map_err(failed)?;
    let mut directory = Directory::open_without_link(&here).map_err(failed)?;
    let (device, base) = (directory.id().map_err(failed)?.device, directory.owner().map_err(failed)?);
    let mut is_parent = false;
    loop {
        let above = directory.parent();
        if let Some(found) = find(directory)? {
            if is_parent && !is_trusted(found.owner, base) {
                let problem = Problem::Owner { git: found.common.path().to_owned(), owner: found.owner };
                return Err(LocateError { path: found.top.path().join(GIT), problem });
            }
            return Ok(Some(found));
        }
        directory = match above {
            Ok(Some(above)) if above.id().is_ok_and(|id| id.device == device) => above,
            Err(error) if error.kind() != io::ErrorKind::PermissionDenied => return Err(failed(error)),
            _ => return Ok(None),
        };
        is_parent = true;
    }
}

/// Finds the git directory of the working tree whose top is `top`. `None` if there is no `.git`, or if `.git` is a
/// directory that git would not use.
///
/// # Errors
/// Returns [`LocateError`] if `.git` names a git directory that cannot be used.
pub fn at(top: &Path) -> Result<Option<Located>, LocateError> {
    let opened = Directory::open(top);
    let opened =
        opened.map_err(|error| LocateError { path: top.to_owned(), problem: Problem::System(error) });
    of_tree(&opened?)
}

/// Finds the repository of the working tree `directory`, or the bare repository at `directory`.
fn find(directory: Directory) -> Result<Option<Located>, LocateError> {
    if let Some(found) = of_tree(&directory)? {
        return Ok(Some(found));
    }
    let path = directory.path().to_owned();
    let failed = |error| LocateError { path: path.clone(), problem: Problem::System(error) };
    if !is_git_directory(&directory, &directory) {
        return Ok(None);
    }
    let owner = directory.owner().map_err(failed)?;
    let (git, common) = (directory.try_clone().map_err(failed)?, directory.try_clone().map_err(failed)?);
    Ok(Some(Located { top: directory, git, common, kind: Kind::Bare, owner }))
}

/// Finds the repository of the working tree whose top is this directory, like [`at`].
pub(crate) fn of_tree(top: &Directory) -> Result<Option<Located>, LocateError> {
    let found = Tree { top }.git_directory();
    found.map_err(|problem| LocateError { path: top.path().join(GIT), problem })
}

/// A directory that may contain a `.git`.
struct Tree<'a> {
    top: &'a Directory,
}

impl Tree<'_> {
    fn git_directory(&self) -> Result<Option<Located>, Problem> {
        let Some(status) = self.top.stat(Path::new(GIT))? else { return Ok(None) };
        match FileType::from_raw_mode(status.st_mode) {
            FileType::Directory => self.own(),
            FileType::RegularFile => {
                let text = self.top.read(Path::new(GIT), MAX_LINE)?.ok_or(Problem::NotGitFile)?;
                let path = text.strip_prefix(b"gitdir: ").and_then(path_of_line);
                self.named(&path.ok_or(Problem::NotGitFile)?).map(Some)
            }
            FileType::Symlink => {
                let path = self.top.link(Path::new(GIT))?.ok_or(Problem::NotGitFile)?;
                self.named(&path).map(Some)
            }
            _ => Err(Problem::NotGitFile),
        }
    }

    /// Finds the repository of a `.git` that is a directory.
    fn own(&self) -> Result<Option<Located>, Problem> {
        let Some(git) = self.top.directory(Path::new(GIT))? else { return Ok(None) };
        if git.stat(Path::new("commondir"))?.is_some() {
            return Err(Problem::CommonDirectory(git.path().to_owned()));
        }
        if !is_git_directory(&git, &git) {
            return Ok(None);
        }
        self.located(git, None, Kind::Own).map(Some)
    }

    /// Opens the git directory that a file or link `.git` names.
    fn named(&self, path: &Path) -> Result<Located, Problem> {
        let shown = self.top.path().join(path);
        let git = self.top.resolve(path).map_err(|_| Problem::Missing(shown.clone()))?;
        let common = common_directory(&git)?;
        if !is_git_directory(&git, common.as_ref().unwrap_or(&git)) {
            return Err(Problem::NotGit(shown));
        }
        let kind = if common.is_some() {
            if !names(&git, "gitdir", self.top)? {
                return Err(Problem::OtherTree(shown));
            }
            Kind::Worktree
        } else if self.contains(&git) {
            Kind::Inside
        } else {
            match worktree(&git)? {
                Some(path) if leads_to(&git, &path, self.top) => Kind::Submodule,
                Some(_) => return Err(Problem::OtherTree(shown)),
                None => Kind::Separate,
            }
        };
        let located = self.located(git, common, kind)?;
        if located.is_outside() {
            located.require_owner(self.top.owner()?)?;
        }
        Ok(located)
    }

    fn located(&self, git: Directory, common: Option<Directory>, kind: Kind) -> Result<Located, Problem> {
        let common = common.map_or_else(|| git.try_clone(), Ok)?;
        let owner = common.owner()?;
        Ok(Located { top: self.top.try_clone()?, git, common, kind, owner })
    }

    /// Whether a directory is the top of the working tree, or is below the top.
    fn contains(&self, directory: &Directory) -> bool {
        let Ok(top) = self.top.id() else { return false };
        let mut next = directory.try_clone().map(Some);
        for _ in 0..MAX_LEVELS {
            let Ok(Some(directory)) = next else { return false };
            if directory.id().is_ok_and(|id| id == top) {
                return true;
            }
            next = directory.parent();
        }
        false
    }
}

impl Located {
    fn require_owner(&self, base: u32) -> Result<(), Problem> {
        for directory in [&self.git, &self.common] {
            let owner = directory.owner()?;
            if !is_trusted(owner, base) {
                return Err(Problem::Owner { git: directory.path().to_owned(), owner });
            }
        }
        Ok(())
    }
}

/// Whether the user trusts a repository that belongs to `owner`, as in git's `safe.directory`: the repository belongs
/// to the user. If the user is root, it may instead belong to `base`, the owner of the directory in which root works,
/// because this owner could have put the repository's files there.
pub(crate) fn is_trusted(owner: u32, base: u32) -> bool {
    let user = rustix::process::geteuid().as_raw();
    owner == user || user == 0 && owner == base
}

/// Opens the directory that the file `commondir` in the git directory of a linked worktree names. `None` if there is no
/// such file.
fn common_directory(git: &Directory) -> Result<Option<Directory>, Problem> {
    let forged = || Problem::CommonDirectory(git.path().to_owned());
    let text = match git.read(Path::new("commondir"), MAX_LINE) {
        Ok(None) => return Ok(None),
        text => text.map_err(|_| forged())?.ok_or_else(forged)?,
    };
    let common = path_of_line(&text).and_then(|path| git.resolve(&path).ok()).ok_or_else(forged)?;
    let holds = || -> io::Result<bool> {
        let Some(worktrees) = common.directory(Path::new("worktrees"))? else { return Ok(false) };
        let Some(above) = git.parent()? else { return Ok(false) };
        Ok(worktrees.id()? == above.id()?)
    };
    if holds().unwrap_or(false) { Ok(Some(common)) } else { Err(forged()) }
}

/// Whether the file `name` in the git directory of a worktree names the `.git` in the directory `top`.
fn names(git: &Directory, name: &str, top: &Directory) -> Result<bool, Problem> {
    let text = git.read(Path::new(name), MAX_LINE)?.unwrap_or_default();
    let Some(path) = path_of_line(&text) else { return Ok(false) };
    let is_git = path.file_name().is_some_and(|name| name == GIT);
    Ok(is_git && path.parent().is_some_and(|parent| leads_to(git, parent, top)))
}

/// Opens the working tree that the record of a linked worktree names. `None` if there is no such directory.
pub(crate) fn tree_of_record(record: &Directory) -> Option<Directory> {
    let text = record.read(Path::new("gitdir"), MAX_LINE).ok()??;
    let path = path_of_line(&text)?;
    let parent = path.parent().filter(|_| path.file_name().is_some_and(|name| name == GIT))?;
    record.resolve(parent).ok()
}

/// Whether a path in a git directory is a path of the directory `to`.
fn leads_to(git: &Directory, path: &Path, to: &Directory) -> bool {
    let id = |directory: &Directory| directory.id().ok();
    let found: Option<FileId> = git.resolve(path).ok().and_then(|found| id(&found));
    found.is_some() && found == id(to)
}

/// Returns the value of `core.worktree`. If the git directory has a `config.worktree`, the value in this file overrides
/// the value in `config`.
fn worktree(git: &Directory) -> Result<Option<PathBuf>, Problem> {
    let mut found = None;
    for file in ["config", "config.worktree"] {
        let Some(text) = git.read(Path::new(file), MAX_CONFIG)? else { continue };
        let config = Config::parse(&text).unwrap_or_default();
        if let Some(value) = config.last("core", "worktree") {
            found = Some(OsString::from_vec(value.to_vec()).into());
        }
    }
    Ok(found)
}

/// Whether git would use this directory as a git directory: it has a `HEAD`, and `common` has objects and references.
pub(crate) fn is_git_directory(git: &Directory, common: &Directory) -> bool {
    // A link is accepted too, as in git. The code that reads the entry does not follow the link.
    let has = |name: &str| {
        let kind =
            common.stat(Path::new(name)).ok().flatten().map(|found| FileType::from_raw_mode(found.st_mode));
        matches!(kind, Some(FileType::Directory | FileType::Symlink))
    };
    has(OBJECTS) && has("refs") && is_head(git)
}

/// Whether `HEAD` contains the name of a reference or the id of a commit, or is a link to a reference.
fn is_head(git: &Directory) -> bool {
    let head = Path::new("HEAD");
    if let Ok(Some(target)) = git.link(head) {
        return target.starts_with("refs");
    }
    let Ok(Some(text)) = git.read(head, MAX_LINE) else { return false };
    if let Some(name) = text.strip_prefix(b"ref:") {
        return name.trim_ascii_start().starts_with(b"refs/");
    }
    let id = text.trim_ascii_end();
    matches!(id.len(), 40 | 64) && id.iter().all(u8::is_ascii_hexdigit)
}

/// Returns the path in a file of one line. `None` if the file is empty or has more than one line.
fn path_of_line(text: &[u8]) -> Option<PathBuf> {
    let end = text.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r'))?;
    let line = &text[..=end];
    let is_path = !line.iter().any(|byte| matches!(byte, 0 | b'\n' | b'\r'));
    is_path.then(|| OsString::from_vec(line.to_vec()).into())
}

impl LocateError {
    /// Returns what the user can do about the error.
    #[must_use]
    pub fn next_step(&self) -> String {
        let top = self.path.parent().unwrap_or(&self.path).display();
        match &self.problem {
            Problem::OtherTree(_) => {
                format!("if you moved {top}, run `git worktree repair {top}` in the main repository")
            }
            Problem::Missing(_) | Problem::NotGit(_) => format!(
                "if its repository was moved, run `git worktree repair {top}` in it; without `.git`, the directory \
                 has no repository"
            ),
            Problem::NotGitFile => "remove it, or clone the repository again".to_owned(),
            Problem::CommonDirectory(git) => {
                format!("git does not write such a file; remove {}", git.join("commondir").display())
            }
            Problem::Owner { .. } => "clone the repository as your own user".to_owned(),
            Problem::System(_) => "check its permissions".to_owned(),
        }
    }
}

impl fmt::Display for LocateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.problem {
            Problem::NotGitFile => write!(f, "{path} is no git directory, and no file that names one"),
            Problem::Missing(named) => write!(f, "{path} names {}, which is no directory", named.display()),
            Problem::NotGit(named) => {
                write!(f, "{path} names {}, which is no git directory", named.display())
            }
            Problem::CommonDirectory(git) => write!(
                f,
                "the file commondir in {} does not name the repository that this directory belongs to",
                git.display()
            ),
            Problem::OtherTree(named) => {
                write!(f, "{path} names {}, which belongs to another working tree", named.display())
            }
            Problem::Owner { git, owner } => {
                write!(f, "{} belongs to the user with id {owner}", git.display())
            }
            Problem::System(error) => write!(f, "cannot read {path}: {error}"),
        }
    }
}

impl std::error::Error for LocateError {}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl From<ReadError> for Problem {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::System { error, .. } => Self::System(error),
            other => Self::System(io::Error::new(io::ErrorKind::InvalidData, other)),
        }
    }
}

#[cfg(test)]
mod tests;
