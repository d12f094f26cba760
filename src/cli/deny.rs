//! `bottle deny`: denies requests of a running bottle.

use bottle_host::Host;
use bottle_policy::route::edit::Action;

use super::route_args::Target;
use super::route_change::change;
use crate::console::error::CliError;
use crate::console::output::Output;

/// Deny a running bottle requests that its routes allow
///
/// Without a path or method, removes the route to the host. Otherwise narrows the route, which then denies these
/// requests; a route that allows nothing any more is removed.
/// The change is live when the command ends, and applies until the bottle ends. Requests in flight and open
/// WebSockets are not cut.
#[derive(Debug, clap::Args)]
pub(crate) struct Deny {
    #[command(flatten)]
    target: Target,
}

impl Deny {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let edit = self.target.edit(Action::Deny);
        change(self.target, edit, false, host, output)
    }
}
