//! `bottle dashboard`: shows bottles, budgets, usage and proposals on one screen, or as web pages.

use bottle_host::Host;

use super::route_args::parse_typed;
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::Output;
use crate::console::terminal::is_terminal;
use crate::screens::dashboard;

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
            return crate::web::serve(host, output, self.port);
        }
        if output.json || !is_terminal() || !dashboard::show(host, output, parse_typed)? {
            return Err(CliError::usage("cannot show the dashboard: there is no terminal that can show it")
                .about("dashboard")
                .hint("`bottle list`, `bottle budget` and `bottle usage` print the same; `--web` uses a browser"));
        }
        Ok(exit::DONE)
    }
}
