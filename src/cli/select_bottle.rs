//! Selects the bottle of a command: the named one, else the user's choice among suitable ones.

use bottle_contract::names::Slug;

use super::connect::unlistable;
use super::error::{CliError, Kind, require_answer};
use super::json_schema::ActiveBottle;
use super::output::{Output, one_line};
use super::picker::{self, Choice};
use super::terminal;
use crate::host::Host;
use crate::instance::{Listed, State, Store};

/// The question of a command, and the bottles it applies to.
pub(crate) struct Question {
    /// Shown above the list.
    pub(crate) prompt: &'static str,
    /// Whether the command works on a bottle in this state.
    pub(crate) suits: fn(&State) -> bool,
    /// The error when no bottle is suitable.
    pub(crate) none: &'static str,
    /// The hint of that error.
    pub(crate) hint: &'static str,
}

impl Question {
    /// Returns the named bottle, else the chosen one.
    ///
    /// # Errors
    /// When no bottle is suitable, there is no terminal, or the user cancels.
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

/// Whether a bottle can be connected to, now or after adoption.
pub(crate) fn is_running(state: &State) -> bool {
    match state {
        State::Alive(_) => true,
        State::Dead(record) => record.is_adoptable(),
        State::Preserved(_) | State::Damaged(_) | State::Newer(_) => false,
    }
}
