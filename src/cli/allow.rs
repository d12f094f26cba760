//! `bottle allow`: allows more requests of a running bottle.

use bottle_host::Host;

use super::route_args::AllowArgs;
use super::route_change::change;
use crate::console::error::CliError;
use crate::console::output::Output;

/// Allow a running bottle more requests, or change how they are scanned
///
/// The change is live when the command ends, and applies until the bottle ends. A host that has no route gets one
/// with default scanning and without a credential; an existing route is widened. The next request is decided by the
/// new routes.
#[derive(Debug, clap::Args)]
pub(crate) struct Allow {
    #[command(flatten)]
    args: AllowArgs,
}

impl Allow {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let yes = self.args.yes;
        let (target, edit) = self.args.parts();
        change(target, edit, yes, host, output)
    }
}
