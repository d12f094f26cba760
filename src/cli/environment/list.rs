//! `bottle env ls`.

use bottle_host::Host;
use bottle_instance::environments::{Environment, Environments};
use bottle_instance::{State, Store};
use bottle_lib::report::ListedEnvironment;

use super::{open, unusable};
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::{Output, one_line};

/// Show the tasks that have a bottle
#[derive(Debug, clap::Args)]
pub(crate) struct Ls {}

impl Ls {
    pub(super) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let environments = open(host)?;
        let store = Store::of(host);
        let all = environments.list().map_err(|error| unusable(&error))?;
        let listed: Result<Vec<_>, _> =
            all.into_iter().map(|environment| listed(&environments, &store, environment)).collect();
        output.print_list(&listed?, &["TASK", "BOTTLE", "STATE", "LAST USED"], 0, |environment| {
            let state = if environment.in_use { "in use" } else { environment.state };
            vec![
                one_line(&environment.task),
                environment.slug.clone(),
                state.to_owned(),
                environment.last_used.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            ]
        })?;
        Ok(exit::DONE)
    }
}

fn listed(
    environments: &Environments,
    store: &Store,
    environment: Environment,
) -> Result<ListedEnvironment, CliError> {
    let Environment { task, slug, created_at, last_used, parent: _ } = environment;
    let in_use = environments.keep_unused(&slug).map_err(|error| unusable(&error))?.is_none();
    let state = match store.state(&slug) {
        Some(State::Alive(_)) => "running",
        Some(State::Preserved(_)) => "preserved",
        _ => "gone",
    };
    Ok(ListedEnvironment { task, slug: slug.to_string(), state, in_use, created_at, last_used })
}
