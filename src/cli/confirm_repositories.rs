//! Asks whether a repository of the user may be used, if it is not known to be the one that was copied.

use std::path::Path;

use bottle_lib::work::{Root, Unconfirmed};

use crate::console::error::{CliError, require_answer};
use crate::console::output::Output;
use crate::console::terminal::{TerminalUser, interactive};

/// Asks about each root whose repository has to be confirmed. `chosen` answers: it names the repository of the only root.
/// Without it and without a copy, the repository of the directory `instead` is proposed, if there is one.
///
/// # Errors
/// When the user does not confirm a repository, or there is no terminal to ask.
pub(super) fn confirm_repositories(
    roots: &mut [Root],
    chosen: Option<&Path>,
    instead: Option<&Path>,
    output: &Output,
) -> Result<(), CliError> {
    if let Some(chosen) = chosen {
        return Ok(Root::choose_repository(roots, chosen)?);
    }
    for root in roots {
        let Some(unconfirmed) = root.unconfirmed(instead) else { continue };
        if !interactive() || output.json {
            return Err(unconfirmed.not_asked().into());
        }
        let asked = TerminalUser::find().and_then(|mut user| user.confirm(&unconfirmed.question()));
        if !require_answer(asked, "nothing was changed")? {
            return Err(Unconfirmed::denied().into());
        }
        root.confirm_repository(&unconfirmed);
    }
    Ok(())
}
