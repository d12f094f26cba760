//! Offers to copy the whole repository if `--cwd` is used in a directory inside of it.

use std::path::{Path, PathBuf};

use super::Start;
use super::cwd::CopyIn;
use super::preflight::ask;
use crate::cli::error::CliError;
use crate::cli::git::Repository;
use crate::cli::output::{Output, one_line};
use crate::cli::session::Signals;
use crate::cli::summary::from_home;
use crate::cli::terminal::interactive;
use crate::host::Host;
use crate::plan::InRepository;

/// Returns the repository to copy instead of the working directory, if it is only a part of that repository: with
/// `--repository`, or after a question. For one of several directories, there is no question.
///
/// # Errors
/// With `--repository`, if there is no repository, or its copy would not contain the working directory.
pub(super) async fn choose(
    start: &Start,
    host: &Host,
    mode: CopyIn,
    signals: &mut Signals,
    output: &Output,
) -> Result<Option<InRepository>, CliError> {
    let is_one_of_several = !start.folders.is_empty();
    let (repository, top, here) = match containing(host) {
        Ok(Some(found)) => found,
        Ok(None) if start.repository && is_one_of_several => {
            output.note(format!(
                "{} is in no repository, so only this directory is copied",
                shown_path(&host.cwd)
            ));
            return Ok(None);
        }
        Ok(None) if start.repository => return Err(no_repository(host)),
        Err(error) if start.repository => return Err(error),
        // The copy of the directory reports what is wrong with its repository.
        Ok(None) | Err(_) => return Ok(None),
    };
    if top == here {
        return Ok(None);
    }
    let everything = mode != CopyIn::Tracked;
    let [done, does, offer] = match mode {
        CopyIn::Live => ["mounted", "mounts", "Mount"],
        _ => ["copied", "copies", "Copy"],
    };
    let is_ignored = !everything && repository.ignores_own_folder()?;
    if start.repository && is_ignored {
        return Err(CliError::usage(format!("cannot start in {}: .gitignore excludes it", here.display()))
            .about("--repository")
            .hint(
                "`--cwd=all` copies ignored files too; without `--repository`, only this directory is copied",
            ));
    }
    let inside = here.strip_prefix(&top).unwrap_or(&here).to_owned();
    let shown = one_line(&from_home(&top.display().to_string(), &host.user_home));
    let wanted = if start.repository {
        true
    } else if is_ignored {
        false
    } else if is_one_of_several {
        let folder = shown_path(&here);
        output.note(format!(
            "only {folder} is copied, without the repository {shown}; `--repository` copies whole repositories"
        ));
        false
    } else if start.launch.yes || start.launch.dry_run || output.json || !interactive() {
        output.note(format!(
            "only this directory is {done}, without the repository {shown}; `--repository` {does} it"
        ));
        false
    } else {
        let folder = one_line(&inside.display().to_string());
        ask(format!("{offer} the whole repository {shown}, and start in {folder}/?"), signals).await?
    };
    Ok(wanted.then_some(InRepository { top, inside }))
}

/// The repository that contains the working directory, its top, and the working directory in it.
fn containing(host: &Host) -> Result<Option<(Repository, PathBuf, PathBuf)>, CliError> {
    let Some(repository) = Repository::containing(&host.cwd)? else { return Ok(None) };
    let top = repository.top()?;
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let (real_top, here) = (real(&top), real(&host.cwd));
    if !here.starts_with(&real_top) {
        return Ok(None);
    }
    // If no link is in the way, the paths stay as the user wrote them.
    let is_written = host.cwd.starts_with(&top);
    let (top, here) = if is_written { (top, host.cwd.clone()) } else { (real_top, here) };
    Ok(Some((repository, top, here)))
}

fn shown_path(path: &Path) -> String {
    one_line(&path.display().to_string())
}

fn no_repository(host: &Host) -> CliError {
    CliError::usage(format!("cannot copy the repository: {} is in none", host.cwd.display()))
        .about("--repository")
        .hint("`--cwd` alone copies the directory")
}
