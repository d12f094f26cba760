//! Offers to copy the whole repository if `--cwd` is used in a directory inside of it.

use super::Start;
use super::cwd::CopyIn;
use crate::cli::error::CliError;
use crate::cli::launch::preflight::ask;
use crate::cli::output::{Output, one_line};
use crate::cli::session::Signals;
use crate::cli::summary::from_home;
use crate::cli::terminal::interactive;
use crate::host::Host;
use crate::library::text::shown;
use crate::library::work::Enclosing;
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
    let is_one_of_several = !start.directories.is_empty();
    let repository = match Enclosing::find(host) {
        Ok(Some(found)) => found,
        Ok(None) if start.repository && is_one_of_several => {
            let cwd = shown(&host.cwd);
            output.note(format!("{cwd} is in no repository, so only this directory is copied"));
            return Ok(None);
        }
        Ok(None) if start.repository => return Err(Enclosing::missing(host).into()),
        Err(error) if start.repository => return Err(error.into()),
        // The copy of the directory reports what is wrong with its repository.
        Ok(None) | Err(_) => return Ok(None),
    };
    if repository.is_whole() {
        return Ok(None);
    }
    let everything = mode != CopyIn::Tracked;
    let [done, does, offer] = match mode {
        CopyIn::Live => ["mounted", "mounts", "Mount"],
        _ => ["copied", "copies", "Copy"],
    };
    let is_ignored = !everything && repository.ignores_here()?;
    if start.repository && is_ignored {
        return Err(repository.ignored().into());
    }
    let top = one_line(&from_home(&repository.top.display().to_string(), &host.user_home));
    let wanted = if start.repository {
        true
    } else if is_ignored {
        false
    } else if is_one_of_several {
        let directory = shown(&repository.here);
        output.note(format!(
            "only {directory} is copied, without the repository {top}; `--repository` copies whole repositories"
        ));
        false
    } else if start.launch.yes || start.launch.dry_run || output.json || !interactive() {
        output.note(format!(
            "only this directory is {done}, without the repository {top}; `--repository` {does} it"
        ));
        false
    } else {
        let directory = shown(repository.inside());
        ask(format!("{offer} the whole repository {top}, and start in {directory}/?"), signals).await?
    };
    Ok(wanted.then(|| repository.chosen()))
}
