//! Selects the bottle that a command works on: the one named on the command line, otherwise one that the user
//! chooses from a list.

use bottle_contract::names::Slug;

use super::connect::unlistable;
use super::error::{CliError, Kind, require_answer};
use super::json_schema::ActiveBottle;
use super::output::{Output, one_line};
use super::picker::{self, Choice};
use super::terminal;
use crate::host::Host;
use crate::instance::{Listed, State, Store};

/// A command's question for a bottle, and the bottles that can be chosen.
pub(crate) struct Question {
    /// The text above the list.
    pub(crate) prompt: &'static str,
    /// Whether the command can work on a bottle in this state.
    pub(crate) suits: fn(&State) -> bool,
    /// The error message when there is no suitable bottle.
    pub(crate) none: &'static str,
    /// The hint of this error.
    pub(crate) hint: &'static str,
}

impl Question {
    /// Returns the named bottle, otherwise the bottle that the user chooses.
    ///
    /// # Errors
    /// Returns an error if no bottle is suitable, there is no terminal, or the user cancels.
    pub(crate) fn select(&self, named: Option<Slug>, host: &Host, output: &Output) -> Result<Slug, CliError> {
        named.map_or_else(|| self.ask(host, output), Ok)
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

/// Whether a client can connect to the bottle, either now or after a new keeper has adopted it.
pub(crate) fn is_running(state: &State) -> bool {
    match state {
        State::Alive(_) => true,
        State::Dead(record) => record.is_adoptable(),
        State::Preserved(_) | State::Damaged(_) | State::Newer(_) => false,
    }
}
