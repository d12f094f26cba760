//! The directories of several `--cwd` flags. Each directory is copied into the workspace.

use bottle_host::Host;
use bottle_lib::launch::directories::{named, require_different};
use bottle_lib::launch::start::{CopyIn, NewWorkspace};
use bottle_plan::CopiedDirectory;

use super::cwd::Cwd;
use super::repository::{self, Wish};
use crate::console::error::CliError;
use crate::console::output::Output;
use crate::console::signals::Signals;

/// Returns the directories of several `--cwd` flags. `entered` contains the host of each flag, in the same order.
/// Returns no directories if `--cwd` was given at most once.
///
/// # Errors
/// Returns a [`CliError`] of kind usage if the directories cannot be in one workspace.
pub(super) fn of_flags(cwds: &[Cwd], entered: &[Host]) -> Result<Vec<CopiedDirectory>, CliError> {
    if cwds.len() < 2 {
        return Ok(Vec::new());
    }
    if cwds.iter().any(|cwd| cwd.mode() == CopyIn::Live) {
        return Err(CliError::usage(
            "cannot mount a directory beside others: it would be the whole workspace",
        )
        .about("--cwd=live")
        .hint("`--cwd=./live` copies a directory called live; or start a bottle for each directory"));
    }
    let each = cwds.iter().zip(entered);
    let directories =
        each.map(|(cwd, host)| named(&host.cwd, cwd.mode() == CopyIn::All)).collect::<Result<Vec<_>, _>>()?;
    require_different(&directories)?;
    Ok(directories)
}

/// With `--repository`, replaces each directory with the repository that contains it.
///
/// # Errors
/// Returns the errors of [`of_flags`] and [`repository::choose`].
pub(super) async fn choose_repositories(
    workspace: &mut NewWorkspace,
    wish: Wish,
    host: &Host,
    signals: &mut Signals,
    output: &Output,
) -> Result<(), CliError> {
    let mut directories = workspace.directories.clone();
    for (index, at) in directories.iter_mut().enumerate() {
        let host = &Host { cwd: at.path.clone(), ..host.clone() };
        let mode = if at.all { CopyIn::All } else { CopyIn::Tracked };
        let Some(chosen) = repository::choose(wish, host, mode, signals, output).await? else { continue };
        *at = named(&chosen.top, at.all)?;
        if index == 0 {
            workspace.repository = Some(chosen);
        }
    }
    require_different(&directories)?;
    workspace.directories = directories;
    Ok(())
}
