//! Asks whether a command may use a repository of the user. There is no question if the command knows that the bottle
//! got its copy from this repository.

use std::path::Path;

use bottle_lib::work::{Root, Unconfirmed};

use crate::console::error::{CliError, require_answer};
use crate::console::output::Output;
use crate::console::terminal::{TerminalUser, interactive};

/// Asks about each root with a repository that the user has to confirm. `chosen` is the repository that the user named
/// on the command line. If `chosen` is set, there is no question. If nothing was copied into the bottle, the question
/// proposes the repository of the directory `instead`, if there is one.
///
/// # Errors
/// Returns an error if the user does not confirm a repository, or if there is no terminal for the question.
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
