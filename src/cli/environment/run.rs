//! `bottle env run`: runs a command in the bottle of a task.

use std::path::PathBuf;

use bottle_host::Host;
use bottle_host::environment_settings::Choices;
use bottle_lib::environments::{Environments, Use};
use bottle_lib::exec::Place;
use bottle_policy::names::Name;

use crate::cli::candidates;
use crate::cli::command::Command;
use crate::cli::launch::launch_failed;
use crate::console::error::CliError;
use crate::console::output::Output;
use crate::console::runtime::block_on;
use crate::console::signals::Signals;

/// Run a command in the bottle of a task, which is started if it does not run
///
/// Each task id has one bottle, also if several commands are the first to use it. The bottle is stopped when it had no
/// work for as long as `environments.idle` in settings.yml says, and the next command resumes it.
///
/// The flags that choose the agent, the bottles, the backend and the directory apply when the bottle is made. Without
/// them, `environments` in settings.yml decides.
#[derive(Debug, clap::Args)]
pub(crate) struct Run {
    /// The id of the task
    #[arg(add = candidates::tasks())]
    task: String,
    /// The agent of the bottle
    #[arg(long, value_name = "NAME", add = candidates::agents())]
    agent: Option<Name>,
    /// A bottle manifest; several are merged in this order
    #[arg(long = "bottle", value_name = "NAME", add = candidates::bottles())]
    bottles: Vec<Name>,
    /// The isolation backend
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// Copy the files of this directory into the workspace
    #[arg(long, value_name = "PATH")]
    cwd: Option<PathBuf>,
    /// Fail if the bottle of the task was started by another client than the one in `BOTTLE_PARENT`
    #[arg(long)]
    own: bool,
    #[command(flatten)]
    command: Command,
}

impl Run {
    pub(super) fn run(self, host: Result<Host, CliError>, output: &Output) -> Result<u8, CliError> {
        host.and_then(|host| self.run_with_host(&host, output)).map_err(CliError::beside_a_program)
    }

    fn run_with_host(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let wanted = Use { task: self.task.clone(), choices: self.choices(host)?, is_own: self.own };
        let environments = Environments::of(host)?;
        let notify = |notice| output.notice(notice);
        let entering = async {
            let entered = environments.enter(wanted, &notify).await;
            entered.map_err(|failure| launch_failed(failure, false))
        };
        let used = block_on(async { Signals::catch()?.cancel(entering).await })?;
        self.command.run(used.slug(), Place::Running, host, output)
    }

    fn choices(&self, host: &Host) -> Result<Choices, CliError> {
        let cwd = self.cwd.as_ref().map(|cwd| {
            host.cwd
                .join(cwd)
                .canonicalize()
                .map_err(|error| CliError::path("use", cwd, error).about("--cwd"))
        });
        Ok(Choices {
            agent: self.agent.clone(),
            bottles: (!self.bottles.is_empty()).then(|| self.bottles.clone()),
            backend: self.backend.clone(),
            cwd: cwd.transpose()?,
        })
    }
}
