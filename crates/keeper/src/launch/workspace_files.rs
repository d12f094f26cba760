//! Chooses the files of a directory that become the initial content of a workspace.
//!
//! The agent of another bottle may change the directory meanwhile (`--cwd=live`), and its whole content may be
//! untrusted. The walk therefore uses descriptors. It reads ignore files as git does, within limits.

use std::io;
use std::path::{Path, PathBuf};

use bottle_plan::Plan;
use bottle_repository::ignore_rules::IGNORE_FILE;
use bottle_repository::locate::{Kind, locate};
use bottle_repository::{Directory, Entry, IgnoreRules, Index, Located, RuleSources, Stop, Walk, WalkError};

use super::git_dir::GitDir;

/// Whether a walk includes the objects of the directory's git repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Objects {
    /// It includes them.
    Included,
    /// They are transferred separately.
    Separate,
}

/// Selects the files of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileSelection<'a> {
    /// All files.
    All,
    /// Those that git does not ignore. The user's own ignore file applies too.
    NotIgnored(Option<&'a Path>),
}

impl<'a> FileSelection<'a> {
    /// The files that git does not ignore, by the rules of the plan's user ignore file too.
    pub fn not_ignored(plan: &'a Plan) -> Self {
        Self::NotIgnored(plan.user_ignore_file.as_deref())
    }
}

/// The directory of a git repository, relative to its working tree.
pub(super) const GIT_DIR: &str = ".git";

/// The directory of a git repository's objects, relative to its working tree.
pub(super) const OBJECTS: &str = ".git/objects";

/// The files of a directory that `--cwd` copies. The files of its git repository come last; no ignore rule affects
/// them.
pub struct WorkspaceFiles {
    working_tree: Walk,
    repository: Walk,
    /// Whether git would read a `.gitignore` in the directory, or above it in its repository.
    pub has_ignore_file: bool,
}

impl WorkspaceFiles {
    /// Chooses files of a directory, whose git directory is `git_dir`.
    ///
    /// # Errors
    /// When the directory or the ignore rules for it cannot be read.
    pub fn of(
        directory: &Path,
        selection: FileSelection<'_>,
        objects: Objects,
        git_dir: Option<&GitDir>,
        stop: &Stop,
    ) -> Result<Self, WalkError> {
        let repository = repository_files(directory, objects, git_dir, stop)?;
        let walk = Walk::content(open(directory)?).except(GIT_DIR).until(stop.clone());
        // The copy has this directory as `.git`.
        let walk = match git_dir.and_then(GitDir::inside) {
            Some(inside) => walk.except(inside),
            None => walk,
        };
        let FileSelection::NotIgnored(user) = selection else {
            return Ok(Self { working_tree: walk, repository, has_ignore_file: true });
        };
        let place = Place::of(directory)?;
        let has_ignore_file = place.has_ignore_file();
        Ok(Self { working_tree: place.without_ignored(walk, user)?, repository, has_ignore_file })
    }

    /// The ignore files found so far whose rules do not apply, because they are links or not regular files.
    pub fn ignore_files_not_read(&self) -> &[PathBuf] {
        self.working_tree.ignore_files_not_read()
    }
}

impl Iterator for WorkspaceFiles {
    type Item = Result<Entry, WalkError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.working_tree.next().or_else(|| self.repository.next())
    }
}

/// The position of a directory in its repository.
struct Place {
    /// The top of the working tree; outside of a repository, the directory.
    top: Directory,
    /// The path of the directory below the top.
    below: PathBuf,
    /// The repository, if it belongs to the working tree.
    repository: Option<Located>,
}

impl Place {
    fn of(directory: &Path) -> Result<Self, WalkError> {
        let real = directory.canonicalize().map_err(|error| unreadable(directory, error))?;
        // The rules of a repository that git would not use do not apply.
        let found = locate(&real).ok().flatten().filter(|found| found.kind != Kind::Bare);
        if let Some(found) = found
            && let Ok(below) = real.strip_prefix(found.top.path())
        {
            let (top, below) = (found.top.try_clone(), below.to_owned());
            let top = top.map_err(|error| unreadable(directory, error))?;
            return Ok(Self { top, below, repository: found.is_proven().then_some(found) });
        }
        Ok(Self { top: open(&real)?, below: PathBuf::new(), repository: None })
    }

    /// The walk of the directory's content without the files that git ignores. The files that it tracks are never
    /// ignored.
    fn without_ignored(self, walk: Walk, user: Option<&Path>) -> Result<Walk, WalkError> {
        let Self { top, below, repository } = self;
        let git_directory = repository.as_ref().map(|found| &found.common);
        let rules = IgnoreRules::of(&RuleSources { top: &top, below: &below, git_directory, user })?;
        let walk = walk.with_rules(rules);
        // If the index cannot be read, no file counts as tracked.
        let Some(index) = repository.and_then(|found| Index::read(&found.git).ok()) else { return Ok(walk) };
        Ok(walk.keeping(Box::new(move |path, kind| index.tracks(&below.join(path), kind))))
    }

    fn has_ignore_file(&self) -> bool {
        let has_file = |at: &Path| matches!(self.top.stat(&at.join(IGNORE_FILE)), Ok(Some(_)));
        self.below.ancestors().any(has_file)
    }
}

/// Walks the files of the git repository in `directory`, if there is one, that a copy gets unchanged.
pub(super) fn repository_files(
    directory: &Path,
    objects: Objects,
    git_dir: Option<&GitDir>,
    stop: &Stop,
) -> Result<Walk, WalkError> {
    let walk = Walk::entry(open(directory)?, GIT_DIR.as_ref()).until(stop.clone());
    let walk = match git_dir.map(GitDir::copy) {
        Some(copy) => walk.leaving_out(Box::new(move |path, kind| {
            path.strip_prefix(GIT_DIR).is_ok_and(|path| copy.leaves_out(path, kind))
        })),
        None => walk,
    };
    Ok(if objects == Objects::Separate { walk.except(OBJECTS) } else { walk })
}

pub(super) fn open(directory: &Path) -> Result<Directory, WalkError> {
    Directory::open(directory).map_err(|error| unreadable(directory, error))
}

fn unreadable(path: &Path, error: io::Error) -> WalkError {
    WalkError::System { path: path.to_owned(), error }
}
