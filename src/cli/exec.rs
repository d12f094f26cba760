//! `bottle exec`: runs another program in a bottle, next to the agent.

use bottle_host::Host;
use bottle_lib::exec::Place;
use bottle_policy::names::Slug;

use super::candidates;
use super::command::Command;
use crate::console::error::CliError;
use crate::console::output::Output;

/// Run a command in a bottle, next to its agent
///
/// In a bottle that ended and whose files are kept, the command runs alone, and without a network.
///
/// Exits with the command's exit code; 124 if its time limit passed, 125 if bottle failed, 126 if the command cannot
/// run, 127 if it was not found. With `--json`, prints the exit code, the duration and the output as one document.
#[derive(Debug, clap::Args)]
pub(crate) struct Exec {
    /// The bottle, as `bottle list` shows it
    #[arg(add = candidates::with_files())]
    slug: Slug,
    #[command(flatten)]
    command: Command,
}

impl Exec {
    pub(crate) fn run(self, host: Result<Host, CliError>, output: &Output) -> Result<u8, CliError> {
        let run = |host| self.command.run(&self.slug, Place::RunningOrPreserved, &host, output);
        host.and_then(run).map_err(CliError::beside_a_program)
    }
}
