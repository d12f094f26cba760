//! `bottle env`: manages one bottle for each task. The bottle is made when it is first used, and stopped when it is
//! idle.

mod list;
mod remove;
mod run;

use bottle_host::Host;

use crate::console::error::CliError;
use crate::console::output::Output;

/// The commands of `bottle env`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Environment {
    Run(Box<run::Run>),
    Ls(list::Ls),
    Rm(remove::Rm),
}

impl Environment {
    pub(crate) fn run(self, host: Result<Host, CliError>, output: &Output) -> Result<u8, CliError> {
        match self {
            Self::Run(run) => run.run(host, output),
            Self::Ls(ls) => ls.run(&host?, output),
            Self::Rm(rm) => rm.run(&host?, output),
        }
    }
}
