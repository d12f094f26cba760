//! Selects the bottle that a command works on: the bottle that the command line names, otherwise a bottle that the user
//! chooses from a list.

use bottle_host::Host;
use bottle_instance::{Listed, State, Store};
use bottle_lib::report::ActiveBottle;
use bottle_policy::names::Slug;
use serde::Serialize;

use super::connect::unlistable;
use crate::console::error::{CliError, Kind, require_answer};
use crate::console::output::{Output, one_line};
use crate::console::terminal;
use crate::screens::picker::{self, Choice};

/// The question with which a command asks for a bottle, and the bottles that can be chosen.
pub(crate) struct Question {
    /// The text above the list.
    pub(crate) prompt: &'static str,
    /// Whether the command can work on a bottle in this state.
    pub(crate) suits: fn(&State) -> bool,
    /// The error message when there is no suitable bottle.
    pub(crate) none: &'static str,
    /// The hint of the error in `none`.
    pub(crate) hint: &'static str,
}

impl Question {
    /// Returns the named bottle. If no bottle is named, returns the bottle that the user chooses.
    ///
    /// # Errors
    /// Returns an error if no bottle is suitable, there is no terminal, or the user cancels.
    pub(crate) fn select(&self, named: Option<Slug>, host: &Host, output: &Output) -> Result<Slug, CliError> {
        named.map_or_else(|| self.ask(host, output), Ok)
    }

    /// Returns the named bottles, each once. If no bottle is named, returns the bottle that the user chooses.
    ///
    /// # Errors
    /// Returns the same errors as [`Question::select`].
    pub(crate) fn select_all(
        &self,
        named: Vec<Slug>,
        host: &Host,
        output: &Output,
    ) -> Result<Vec<Slug>, CliError> {
        let mut slugs: Vec<Slug> = Vec::new();
        for slug in named {
            if !slugs.contains(&slug) {
                slugs.push(slug);
            }
        }
        if slugs.is_empty() {
            slugs.push(self.ask(host, output)?);
        }
        Ok(slugs)
    }

    fn ask(&self, host: &Host, output: &Output) -> Result<Slug, CliError> {
        let listed = Store::of(host).list().map_err(unlistable)?;
        let suits: Vec<Listed> = listed.into_iter().filter(|listed| (self.suits)(&listed.state)).collect();
        if suits.is_empty() {
            return Err(CliError::new(Kind::NoSuchBottle, self.none).hint(self.hint));
        }
        if !terminal::interactive() || output.json {
            let names: Vec<&str> = suits.iter().map(|listed| listed.slug.as_str()).collect();
            return Err(CliError::usage("no bottle was given")
                .about("SLUG")
                .hint(format!("name one of {}", names.join(", "))));
        }
        let described = |listed: Listed| (listed.slug.clone(), described(listed.into()));
        let items = suits.into_iter().map(described).collect();
        require_answer(picker::pick_one(self.prompt, items, output.err_styles()), "nothing was done")
    }
}

/// Formats the names of bottles: `a`, `a and b`, or `a, b and c`.
pub(crate) fn names(slugs: &[Slug]) -> String {
    match slugs {
        [] => String::new(),
        [only] => only.to_string(),
        [first @ .., last] => {
            let first: Vec<&str> = first.iter().map(Slug::as_str).collect();
            format!("{} and {last}", first.join(", "))
        }
    }
}

/// Ends a command on several bottles. Prints all errors except the last one, and returns the last one to the caller.
/// The error of one bottle therefore does not hide the errors of other bottles.
///
/// # Errors
/// Returns the last of `errors`, with the exit code of the first one.
pub(crate) fn finish_all(errors: Vec<CliError>, output: &Output) -> Result<(), CliError> {
    let Some(code) = errors.first().map(|error| error.exit) else { return Ok(()) };
    let mut errors = errors;
    let Some(last) = errors.pop() else { return Ok(()) };
    errors.iter().for_each(|error| output.error(error));
    Err(last.exit(code))
}

/// Prints the results of a command on several bottles as JSON: one document for one named bottle, otherwise a list.
pub(crate) fn print_results<T: Serialize>(
    results: &[T],
    is_one: bool,
    output: &Output,
) -> Result<(), CliError> {
    match results {
        [only] if is_one => output.print_json(only),
        [] if is_one => Ok(()),
        several => output.print_json(&several),
    }
}

fn described(bottle: ActiveBottle) -> Choice {
    let agent = bottle.agent.as_deref().unwrap_or("?");
    let label = bottle.label.as_deref().map(one_line);
    let since = bottle.started_at.map(|at| format!("started {}", at.strftime("%Y-%m-%d %H:%M UTC")));
    Choice {
        name: bottle.slug,
        about: label.map_or_else(|| agent.to_owned(), |label| format!("{label} ({agent})")),
        mark: bottle.status.to_owned(),
        detail: since.into_iter().collect(),
        ..Choice::default()
    }
}
