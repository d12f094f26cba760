//! Decides whether a copy of a directory may have the files of its git directory, if that is outside of the directory.
//!
//! A project can name any directory as its git directory. One that does not name the project back is copied only if the
//! user confirms it by its path.

use std::path::{Path, PathBuf};

use bottle_repository::locate::{self, Kind, LocateError};
use bottle_repository::{Directory, FileId, Located};

use super::preflight::ask;
use crate::cli::error::CliError;
use crate::cli::output::one_line;
use crate::cli::session::Signals;
use crate::host::Host;
use crate::plan::GitDirectory;

/// Checks the git directories of directories that are copied, and returns those that the user confirmed: with
/// `--git-dir`, of which these are the values, or if `asks` is set, with an answer.
///
/// # Errors
/// [`CliError`] if a git directory cannot be used, or is not confirmed.
pub(crate) async fn confirm<'a>(
    directories: impl IntoIterator<Item = &'a PathBuf>,
    host: &Host,
    named: &[PathBuf],
    asks: bool,
    signals: &mut Signals,
) -> Result<Vec<GitDirectory>, CliError> {
    let mut confirmed = Vec::new();
    for top in directories {
        let located = locate::at(top).map_err(|error| unusable(&error))?;
        let Some(located) = located.filter(|located| located.kind == Kind::Separate) else { continue };
        let directory = identity(&located)?;
        let is_it = |path: &PathBuf| id_of(&host.cwd.join(path)) == Some(directory.id());
        let (top, path) = (shown(top), shown(&directory.path));
        if !named.iter().any(is_it) {
            let question =
                format!("{top} names the git directory {path}, outside of it. Copy git's files from there?");
            if !asks || !ask(question, signals).await? {
                return Err(CliError::usage(format!(
                    "cannot copy {top}: its git directory is {path}, which does not name {top}"
                ))
                .about("--git-dir")
                .hint(format!("if it is the repository of this directory, add `--git-dir={path}`")));
            }
        }
        confirmed.push(directory);
    }
    Ok(confirmed)
}

fn identity(located: &Located) -> Result<GitDirectory, CliError> {
    let path = located.git.path();
    let FileId { device, inode } = located.git.id().map_err(|error| CliError::path("read", path, error))?;
    let real = path.canonicalize().ok().filter(|real| id_of(real) == Some(FileId { device, inode }));
    Ok(GitDirectory { path: real.unwrap_or_else(|| path.to_owned()), device, inode })
}

fn id_of(path: &Path) -> Option<FileId> {
    Directory::open(path).and_then(|directory| directory.id()).ok()
}

/// The error for a git directory that cannot be used.
pub(crate) fn unusable(error: &LocateError) -> CliError {
    CliError::usage(one_line(&error.to_string())).about("--cwd").hint(one_line(&error.next_step()))
}

fn shown(path: &Path) -> String {
    one_line(&path.display().to_string())
}
