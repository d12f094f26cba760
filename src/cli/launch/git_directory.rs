//! Decides whether a copy of a directory may have the files of its git directory, if that is outside of the directory, and
//! the objects that its repository borrows from another one.
//!
//! A project can name any directory as its git directory, and the objects of any repository. A git directory that does not
//! name the project back, and objects of another repository, are copied only if the user confirms them by their path.

use std::path::{Path, PathBuf};

use bottle_repository::locate::{self, Kind, LocateError};
use bottle_repository::{Lender, LenderError, Located, ObjectSources};

use super::preflight::ask;
use crate::cli::error::CliError;
use crate::cli::output::one_line;
use crate::cli::session::Signals;
use crate::host::Host;
use crate::plan::GitDirectory;

/// What helps if the files of a repository are in several places.
const CLONE: &str = "copy a clone of the repository, which `git clone` makes";

/// Which directories the user is asked about. The others have to be named.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asks {
    /// Git directories that do not name the project back.
    pub(crate) git_directories: bool,
    /// Objects of another repository.
    pub(crate) lenders: bool,
}

/// Checks the git directories of directories that are copied or mounted, and returns those that the user confirmed, with
/// the directories with objects that they borrow: with `--git-dir`, of which these are the values, or with an answer.
///
/// # Errors
/// [`CliError`] if a directory cannot be used, or is not confirmed.
pub(crate) async fn confirm<'a>(
    directories: impl IntoIterator<Item = &'a PathBuf>,
    host: &Host,
    named: &[PathBuf],
    asks: Asks,
    signals: &mut Signals,
) -> Result<Vec<GitDirectory>, CliError> {
    let named: Vec<PathBuf> = named.iter().map(|path| host.cwd.join(path)).collect();
    let mut confirmed: Vec<GitDirectory> = Vec::new();
    for top in directories {
        let Some(located) = locate::at(top).map_err(|error| unusable(&error))? else { continue };
        require_no_links(&located)?;
        let top = shown(top);
        if located.kind == Kind::Separate {
            let directory = GitDirectory::of(&located);
            let directory = directory.map_err(|error| CliError::path("read", located.git.path(), error))?;
            let is_named = named.iter().any(|path| directory.is_at(path));
            if !(is_named || asks.git_directories && ask(separate(&top, &directory), signals).await?) {
                let path = shown(&directory.path);
                let cause = format!("its git directory is {path}, which does not name {top}");
                let hint = format!("if it is the repository of this directory, add `--git-dir={path}`");
                return Err(not_confirmed(&top, &cause, hint));
            }
            confirmed.push(directory);
        }
        for lender in ObjectSources::of(&located).map_err(|error| no_objects(&top, &error))?.lenders {
            let directory = GitDirectory::of_lender(&lender);
            let is_named = confirmed.contains(&directory) || named.iter().any(|path| is_of(&directory, path));
            if !(is_named || asks.lenders && ask(borrowed(&top, &lender), signals).await?) {
                let path = shown(&lender.git);
                let cause = format!("it borrows objects from another repository, {path}");
                let hint =
                    format!("if the agent may read all commits of that repository, add `--git-dir={path}`");
                return Err(not_confirmed(&top, &cause, hint));
            }
            confirmed.push(directory);
        }
    }
    Ok(confirmed)
}

fn separate(top: &str, directory: &GitDirectory) -> String {
    let path = shown(&directory.path);
    format!("{top} names the git directory {path}, outside of it. Copy git's files from there?")
}

fn borrowed(top: &str, lender: &Lender) -> String {
    let path = shown(&lender.git);
    format!("{top} borrows objects from another repository, {path}. Give the agent all objects from there?")
}

/// Whether a directory with objects is that of this git directory, or of the repository at this path.
fn is_of(objects: &GitDirectory, path: &Path) -> bool {
    ["", "objects", ".git/objects"].iter().any(|below| objects.is_at(&path.join(below)))
}

fn not_confirmed(top: &str, cause: &str, hint: String) -> CliError {
    CliError::usage(format!("cannot copy {top}: {cause}")).about("--git-dir").hint(hint)
}

/// Fails if files of the git directory are links, which are not followed, as older versions of Android's `repo` make them.
fn require_no_links(located: &Located) -> Result<(), CliError> {
    let is_link = |name: &&str| located.common.link(Path::new(name)).is_ok_and(|target| target.is_some());
    let Some(name) = ["config", "packed-refs", "refs", "shallow"].into_iter().find(is_link) else {
        return Ok(());
    };
    let (top, git) = (shown(located.top.path()), shown(located.common.path()));
    Err(CliError::usage(format!("cannot copy {top}: {git}/{name} is a link")).about("--cwd").hint(CLONE))
}

fn no_objects(top: &str, error: &LenderError) -> CliError {
    let cause = one_line(&error.to_string());
    CliError::usage(format!("cannot copy {top}: cannot use its objects: {cause}")).about("--cwd").hint(CLONE)
}

/// The error for a git directory that cannot be used.
pub(crate) fn unusable(error: &LocateError) -> CliError {
    CliError::usage(one_line(&error.to_string())).about("--cwd").hint(one_line(&error.next_step()))
}

fn shown(path: &Path) -> String {
    one_line(&path.display().to_string())
}
