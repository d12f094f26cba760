//! Chooses the files of a directory that become the initial content of a workspace.
//!
//! The agent of another bottle may change the directory during the walk (`--cwd=live`), and the complete content of the
//! directory may be untrusted. The walk therefore opens files through descriptors of their directories. It reads ignore
//! files as git does, within limits.

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
    /// The walk includes the objects.
    Included,
    /// The objects are transferred separately.
    Separate,
}

/// Selects the files of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileSelection<'a> {
    /// All files.
    All,
    /// The files that git does not ignore. If this variant has a path, it is the user's own ignore file, which applies
    /// too.
    NotIgnored(Option<&'a Path>),
}

impl<'a> FileSelection<'a> {
    /// Selects the files that git does not ignore. The user's ignore file in the plan applies too.
    pub fn not_ignored(plan: &'a Plan) -> Self {
        Self::NotIgnored(plan.user_ignore_file.as_deref())
    }
}

/// The directory of a git repository, relative to its working tree.
pub(super) const GIT_DIR: &str = ".git";

/// The directory of a git repository's objects, relative to its working tree.
pub(super) const OBJECTS: &str = ".git/objects";

/// The files of a directory that `--cwd` copies. The files of the directory's git repository come last. Ignore rules do
/// not affect these files.
pub struct WorkspaceFiles {
    working_tree: Walk,
    repository: Walk,
    /// Whether there is a `.gitignore` that git would read, in the directory itself or above it in the same repository.
    pub has_ignore_file: bool,
}

impl WorkspaceFiles {
    /// Chooses the files of a directory. `git_dir` is the directory's git directory.
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
        // This walk leaves out the git directory, because the path of the git directory in the copy is `.git`.
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

    /// The ignore files that were found so far and were not read, because they are not regular files.
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

/// The position of a directory in its git repository.
struct Place {
    /// The top of the working tree. For a directory outside of a repository, the directory itself.
    top: Directory,
    /// The path of the directory below the top.
    below: PathBuf,
    /// The repository, if it is proven that the repository belongs to the working tree.
    repository: Option<Located>,
}

impl Place {
    fn of(directory: &Path) -> Result<Self, WalkError> {
        let real = directory.canonicalize().map_err(|error| unreadable(directory, error))?;
        // If git would not use the repository, the repository's ignore rules do not apply.
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

    /// Returns the walk without the files that git ignores. Files that git tracks are never ignored.
    fn without_ignored(self, walk: Walk, user: Option<&Path>) -> Result<Walk, WalkError> {
        let Self { top, below, repository } = self;
        let git_directory = repository.as_ref().map(|found| &found.common);
        let rules = IgnoreRules::of(&RuleSources { top: &top, below: &below, git_directory, user })?;
        let walk = walk.with_rules(rules);
        // If the index cannot be read, all files are treated as untracked.
        let Some(index) = repository.and_then(|found| Index::read(&found.git).ok()) else { return Ok(walk) };
        Ok(walk.keeping(Box::new(move |path, kind| index.tracks(&below.join(path), kind))))
    }

    fn has_ignore_file(&self) -> bool {
        let has_file = |at: &Path| matches!(self.top.stat(&at.join(IGNORE_FILE)), Ok(Some(_)));
        self.below.ancestors().any(has_file)
    }
}

/// Walks the files of the git repository in `directory` that are copied unchanged. Finds no files if there is no git
/// repository.
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
