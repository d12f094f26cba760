//! `bottle dashboard`: bottles, budgets, usage and proposals on one screen.
//!
//! ```text
//! gather ──► model ──► screen (the terminal)
//!                         └──► action
//! ```
//! - `gather`: reads the records, the ledger, the queue and the logs
//! - `model`: what is shown, as plain data, and what follows from it; `words`: numbers and times in words
//! - `action`: what the user can do

mod action;
mod gather;
mod model;
#[cfg(test)]
mod sample;
mod screen;
mod words;

use super::error::CliError;
use super::exit;
use super::output::Output;
use super::terminal::is_terminal;
use crate::host::Host;

/// Show bottles, their budgets and usage, and proposals on one screen
///
/// The screen stays up to date. `?` shows its keys.
#[derive(Debug, clap::Args)]
pub(crate) struct Dashboard {}

impl Dashboard {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let Self {} = self;
        if output.json || !is_terminal() || !screen::show(host, output)? {
            return Err(CliError::usage("cannot show the dashboard: there is no terminal that can show it")
                .about("dashboard")
                .hint("`bottle list`, `bottle budget` and `bottle usage` print the same"));
        }
        Ok(exit::DONE)
    }
}
