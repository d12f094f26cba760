//! Asks the user whether the copy of a directory may include files of git from outside of that directory.

use std::path::{Path, PathBuf};

use bottle_host::Host;
use bottle_lib::launch::git_directories::{Outside, OutsideKind};
use bottle_plan::GitDirectory;

use super::preflight::ask;
use crate::console::error::CliError;
use crate::console::signals::Signals;

/// The kinds of git directories about which the user is asked. The user must name all other git directories with
/// `--git-dir`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asks {
    /// Git directories that do not refer back to the copied directory.
    pub(crate) git_directories: bool,
    /// Directories from which another repository borrows objects.
    pub(crate) lenders: bool,
}

/// Returns the confirmed git directories and the confirmed directories with borrowed objects. The user confirms a
/// directory with `--git-dir` (`named` contains the values) or with the answer to a question.
///
/// # Errors
/// Returns a [`CliError`] if a directory cannot be used, or is not confirmed.
pub(crate) async fn confirm<'a>(
    directories: impl IntoIterator<Item = &'a Path>,
    host: &Host,
    named: &[PathBuf],
    asks: Asks,
    signals: &mut Signals,
) -> Result<Vec<GitDirectory>, CliError> {
    let confirmed = Outside::confirm(directories, host, named, async |outside: &Outside| {
        let is_asked = match outside.kind {
            OutsideKind::GitDirectory => asks.git_directories,
            OutsideKind::Lender => asks.lenders,
        };
        Ok(is_asked && ask(outside.question(), signals).await?)
    });
    confirmed.await
}
