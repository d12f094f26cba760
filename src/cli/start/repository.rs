//! Offers to copy the whole repository if `--cwd` is used in a directory inside of it.

use bottle_host::Host;
use bottle_lib::launch::start::CopyIn;
use bottle_lib::text::{from_home, shown};
use bottle_lib::work::Enclosing;
use bottle_plan::InRepository;

use crate::cli::launch::preflight::ask;
use crate::console::error::CliError;
use crate::console::output::{Output, one_line};
use crate::console::signals::Signals;

/// What the user wants to copy of a repository.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wish {
    /// Whether the user wants the whole repository (`--repository`).
    pub(super) is_wanted: bool,
    /// Whether the directory is one of several directories.
    pub(super) is_one_of_several: bool,
    /// Whether the user can be asked.
    pub(super) asks: bool,
}

/// Returns the whole repository to copy, if the working directory is only a part of it and the user wants the whole
/// repository. The user expresses this with `--repository`, or with the answer to a question. There is no question if
/// the directory is one of several directories.
///
/// # Errors
/// With `--repository`, returns an error if there is no repository, or if a copy of the repository would not contain
/// the working directory.
pub(super) async fn choose(
    wish: Wish,
    host: &Host,
    mode: CopyIn,
    signals: &mut Signals,
    output: &Output,
) -> Result<Option<InRepository>, CliError> {
    let Wish { is_wanted, is_one_of_several, asks } = wish;
    let repository = match Enclosing::find(host) {
        Ok(Some(found)) => found,
        Ok(None) if is_wanted && is_one_of_several => {
            let cwd = shown(&host.cwd);
            output.note(format!("{cwd} is in no repository, so only this directory is copied"));
            return Ok(None);
        }
        Ok(None) if is_wanted => return Err(Enclosing::missing(host).into()),
        Err(error) if is_wanted => return Err(error.into()),
        // If the repository is unusable, the copy of the directory reports the error later.
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
    if is_wanted && is_ignored {
        return Err(repository.ignored().into());
    }
    let top = one_line(&from_home(&repository.top.display().to_string(), &host.user_home));
    let wanted = if is_wanted {
        true
    } else if is_ignored {
        false
    } else if is_one_of_several {
        let directory = shown(&repository.here);
        output.note(format!(
            "only {directory} is copied, without the repository {top}; `--repository` copies whole repositories"
        ));
        false
    } else if !asks {
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
