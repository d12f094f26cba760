//! Asks the user whether a copy of a directory may have files of git from outside of it.

use std::path::{Path, PathBuf};

use bottle_host::Host;
use bottle_lib::launch::git_directories::{Outside, OutsideKind};
use bottle_plan::GitDirectory;

use super::preflight::ask;
use crate::console::error::CliError;
use crate::console::signals::Signals;

/// What the user is asked about. The rest has to be named.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asks {
    /// Git directories that do not name the project back.
    pub(crate) git_directories: bool,
    /// Objects of another repository.
    pub(crate) lenders: bool,
}

/// Returns the git directories and the directories with borrowed objects that the user confirmed: with `--git-dir`, of
/// which `named` are the values, or with an answer.
///
/// # Errors
/// [`CliError`] if a directory cannot be used, or is not confirmed.
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
