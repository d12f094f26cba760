//! `bottle dashboard`: bottles, budgets, usage and proposals on one screen, or as pages for a browser.
//!
//! ```text
//! gather ──► model ──┬─► screen (the terminal)
//!                    ├─► web (pages)
//!                    └─────► action
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
mod web;
mod words;

use bottle_host::Host;

use super::error::CliError;
use super::exit;
use super::output::Output;
use super::terminal::is_terminal;

/// Show bottles, their budgets and usage, and proposals on one screen
///
/// The screen stays up to date. `?` shows its keys. With `--web`, a browser on this machine shows the same.
#[derive(Debug, clap::Args)]
pub(crate) struct Dashboard {
    /// Serve the dashboard on 127.0.0.1, and print a link that opens it once
    #[arg(long)]
    web: bool,
    /// Use this port instead of any free one
    #[arg(long, requires = "web", default_value_t = 0, hide_default_value = true)]
    port: u16,
}

impl Dashboard {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        if self.web {
            return web::serve(host, output, self.port);
        }
        if output.json || !is_terminal() || !screen::show(host, output)? {
            return Err(CliError::usage("cannot show the dashboard: there is no terminal that can show it")
                .about("dashboard")
                .hint("`bottle list`, `bottle budget` and `bottle usage` print the same; `--web` uses a browser"));
        }
        Ok(exit::DONE)
    }
}
