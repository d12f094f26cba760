//! Finds the git directories and borrowed objects outside of the directories that a bottle gets.
//!
//! A project can name any directory as its git directory, and can borrow the objects of any repository. The user must
//! confirm two kinds of directories by their path before they are copied: a git directory that does not refer back to
//! the project, and the objects of another repository.

use std::path::{Path, PathBuf};

use bottle_host::Host;
use bottle_plan::GitDirectory;
use bottle_repository::locate::{self, Kind, LocateError};
use bottle_repository::{LenderError, Located, ObjectSources};

use crate::failure::Failure;
use crate::text::{one_line, shown};

/// The hint for a repository whose files are in several places.
const CLONE: &str = "copy a clone of the repository, which `git clone` makes";

/// A git directory outside of a directory that is copied or mounted. The git directory is used only if the user
/// confirms it.
#[derive(Debug)]
pub struct Outside {
    /// The git directory.
    directory: GitDirectory,
    /// How the git directory is related to the repository.
    pub kind: OutsideKind,
    /// Whether the user has already named the git directory.
    is_named: bool,
    /// The directory that is copied or mounted.
    top: String,
    /// The path by which the user can name the git directory.
    path: String,
}

/// How an outside git directory is related to the directory that is copied or mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutsideKind {
    /// The git directory that the directory names, but that does not refer back to the directory.
    GitDirectory,
    /// The objects of another repository, which the directory's repository borrows.
    Lender,
}

impl Outside {
    /// Finds the git directories outside of these directories, in the order in which the user is asked about them.
    /// `named` contains the paths that the user has named.
    ///
    /// # Errors
    /// When the repository of a directory cannot be used.
    fn find<'a>(
        directories: impl IntoIterator<Item = &'a Path>,
        host: &Host,
        named: &[PathBuf],
    ) -> Result<Vec<Self>, Failure> {
        let named: Vec<PathBuf> = named.iter().map(|path| host.cwd.join(path)).collect();
        let mut found = Vec::new();
        for top in directories {
            let Some(located) = locate::at(top).map_err(|error| unusable(&error))? else { continue };
            require_no_links(&located)?;
            let top = shown(top);
            if located.kind == Kind::Separate {
                let directory = GitDirectory::of(&located);
                let directory =
                    directory.map_err(|error| Failure::path("read", located.git.path(), error))?;
                found.push(Self {
                    kind: OutsideKind::GitDirectory,
                    is_named: named.iter().any(|path| directory.is_at(path)),
                    top: top.clone(),
                    path: shown(&directory.path),
                    directory,
                });
            }
            let sources = ObjectSources::of(&located).map_err(|error| no_objects(&top, &error))?;
            found.extend(sources.lenders.iter().map(|lender| {
                let directory = GitDirectory::of_lender(lender);
                Self {
                    kind: OutsideKind::Lender,
                    is_named: named.iter().any(|path| is_of(&directory, path)),
                    top: top.clone(),
                    path: shown(&lender.git),
                    directory,
                }
            }));
        }
        Ok(found)
    }

    /// Returns the git directories outside of these directories. The user has to confirm each of them, either by a path
    /// in `named` or when `asks` asks.
    ///
    /// # Errors
    /// When a git directory is not confirmed, when the repository of a directory cannot be used, or when `asks` returns
    /// an error.
    pub async fn confirm<'a, E: From<Failure>>(
        directories: impl IntoIterator<Item = &'a Path>,
        host: &Host,
        named: &[PathBuf],
        mut asks: impl AsyncFnMut(&Self) -> Result<bool, E>,
    ) -> Result<Vec<GitDirectory>, E> {
        let mut confirmed: Vec<GitDirectory> = Vec::new();
        for outside in Self::find(directories, host, named)? {
            let is_known = outside.is_named
                || outside.kind == OutsideKind::Lender && confirmed.contains(&outside.directory);
            if !(is_known || asks(&outside).await?) {
                return Err(outside.not_confirmed().into());
            }
            confirmed.push(outside.directory);
        }
        Ok(confirmed)
    }

    /// The question to the user whether to use the git directory.
    pub fn question(&self) -> String {
        let Self { top, path, .. } = self;
        match self.kind {
            OutsideKind::GitDirectory => {
                format!("{top} names the git directory {path}, outside of it. Copy git's files from there?")
            }
            OutsideKind::Lender => format!(
                "{top} borrows objects from another repository, {path}. Give the agent all objects from there?"
            ),
        }
    }

    /// The failure if the user does not confirm the git directory.
    fn not_confirmed(&self) -> Failure {
        let Self { top, path, .. } = self;
        let (cause, when) = match self.kind {
            OutsideKind::GitDirectory => (
                format!("its git directory is {path}, which does not name {top}"),
                "if it is the repository of this directory",
            ),
            OutsideKind::Lender => (
                format!("it borrows objects from another repository, {path}"),
                "if the agent may read all commits of that repository",
            ),
        };
        Failure::usage(format!("cannot copy {top}: {cause}"))
            .about("--git-dir")
            .hint(format!("{when}, add `--git-dir={path}`"))
    }
}

/// Whether `path` names this directory of objects, or a git directory or repository that contains it.
fn is_of(objects: &GitDirectory, path: &Path) -> bool {
    ["", "objects", ".git/objects"].iter().any(|below| objects.is_at(&path.join(below)))
}

/// Fails if files of the git directory are links, because links are not followed. Older versions of Android's `repo`
/// create such links.
fn require_no_links(located: &Located) -> Result<(), Failure> {
    let is_link = |name: &&str| located.common.link(Path::new(name)).is_ok_and(|target| target.is_some());
    let Some(name) = ["config", "packed-refs", "refs", "shallow"].into_iter().find(is_link) else {
        return Ok(());
    };
    let (top, git) = (shown(located.top.path()), shown(located.common.path()));
    Err(Failure::usage(format!("cannot copy {top}: {git}/{name} is a link")).about("--cwd").hint(CLONE))
}

fn no_objects(top: &str, error: &LenderError) -> Failure {
    let cause = one_line(&error.to_string());
    Failure::usage(format!("cannot copy {top}: cannot use its objects: {cause}")).about("--cwd").hint(CLONE)
}

/// The error for a git directory that cannot be used.
fn unusable(error: &LocateError) -> Failure {
    Failure::usage(one_line(&error.to_string())).about("--cwd").hint(one_line(&error.next_step()))
}
