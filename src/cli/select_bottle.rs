//! Selects the bottle of a command: the named one, else the user's choice among suitable ones.

use bottle_contract::names::Slug;

use super::connect::unlistable;
use super::error::{CliError, Kind, require_answer};
use super::json_schema::ActiveBottle;
use super::output::{Output, one_line};
use super::picker::{self, Choice, List};
use super::terminal;
use crate::host::Host;
use crate::instance::{State, Store};

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
        let Some(slug) = named else { return self.ask(host, output) };
        Ok(slug)
    }

    fn ask(&self, host: &Host, output: &Output) -> Result<Slug, CliError> {
        let listed = Store::of(host).list().map_err(unlistable)?;
        let suits: Vec<ActiveBottle> =
            listed.into_iter().filter(|listed| (self.suits)(&listed.state)).map(ActiveBottle::from).collect();
        let names: Vec<String> = suits.iter().map(|bottle| bottle.slug.clone()).collect();
        if suits.is_empty() {
            return Err(CliError::new(Kind::NoSuchBottle, self.none).hint(self.hint));
        }
        if !terminal::interactive() || output.json {
            return Err(CliError::usage("no bottle was given")
                .about("SLUG")
                .hint(format!("name one of {}", names.join(", "))));
        }
        let choices = suits.iter().map(described).collect();
        let asked = picker::pick(self.prompt, List::one(choices), output.err_styles()).map(|chosen| {
            // A listed folder name is a slug.
            chosen.and_then(|chosen| names.get(*chosen.first()?)?.parse().ok())
        });
        require_answer(asked, "nothing was done")
    }
}

fn described(bottle: &ActiveBottle) -> Choice {
    let agent = bottle.agent.as_deref().unwrap_or("?");
    let label = bottle.label.as_deref().map(one_line);
    let since = bottle.started_at.map(|at| format!("started {}", at.strftime("%Y-%m-%d %H:%M UTC")));
    Choice {
        name: bottle.slug.clone(),
        about: label.map_or_else(|| agent.to_owned(), |label| format!("{label} ({agent})")),
        mark: bottle.status.to_owned(),
        detail: since.into_iter().collect(),
        broken: false,
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
