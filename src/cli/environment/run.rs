//! `bottle env run`.

use std::path::PathBuf;
use std::time::Duration;

use bottle_contract::names::{Name, Slug};
use bottle_host::environment_settings::Choices;
use bottle_host::{Host, Settings};
use bottle_instance::environments::Environments;
use bottle_instance::{State, Store};
use bottle_keeper::client::{self, ClientError};
use jiff::Timestamp;

use super::{launch, open, reaper, slug_of, unusable};
use crate::cli::candidates;
use crate::cli::command::Command;
use crate::console::error::CliError;
use crate::console::output::Output;
use crate::console::runtime::block_on;

/// How often a connection is tried again after it failed.
const RETRIES: u32 = 5;

/// The pause before the first retry. Each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(200);

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
        let slug = slug_of(&self.task)?;
        let settings = Settings::load(host)?.environments;
        let choices = self.choices(host)?.or(&settings.of_task(&self.task));
        let environments = open(host)?;
        let failed = |error| unusable(&error);
        let _use = environments.use_it(&slug).map_err(failed)?;
        let exists = matches!(Store::of(host).state(&slug), Some(State::Alive(_) | State::Preserved(_)));
        if exists && self.has_choices() {
            output.warn(format!(
                "{slug} exists already; `--agent`, `--bottle`, `--backend` and `--cwd` have no effect"
            ));
        }
        launch::ensure(host, &environments, &slug, &choices, output)?;
        if self.own {
            require_own(host, &slug)?;
        }
        let record_use =
            || environments.record_use(&self.task, &slug, Timestamp::now(), host.parent()).map_err(failed);
        record_use()?;
        if settings.idle.is_some() {
            reaper::spawn(host, &environments)?;
        }
        reach(host, &environments, &slug, &choices, output)?;
        let ran = self.command.run(&slug, host, output);
        // The result of the command matters more.
        record_use().unwrap_or_else(|error| output.warn(error.failure.message));
        ran
    }

    fn has_choices(&self) -> bool {
        self.agent.is_some() || !self.bottles.is_empty() || self.backend.is_some() || self.cwd.is_some()
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

/// Checks that the client for which this command runs started the bottle.
fn require_own(host: &Host, slug: &Slug) -> Result<(), CliError> {
    match Store::of(host).state(slug) {
        Some(State::Alive(record)) if record.parent == host.parent() => Ok(()),
        _ => Err(CliError::state(format!("cannot use {slug}: another client started it"))
            .about("--own")
            .hint("choose another task id")),
    }
}

/// Connects to the bottle, so that a command can run in it. Only a failure of the connection is tried again, before the
/// command runs. A bottle that ended meanwhile is started again.
fn reach(
    host: &Host,
    environments: &Environments,
    slug: &Slug,
    choices: &Choices,
    output: &Output,
) -> Result<(), CliError> {
    let mut pause = PAUSE;
    for retry in 0..=RETRIES {
        let connected = block_on(async { Ok(client::connect(host, slug).await) })?;
        match connected {
            Ok(_) => return Ok(()),
            Err(ClientError::NotRunning { .. }) if retry < RETRIES => {
                // Its keeper may need a moment to exit.
                std::thread::sleep(pause);
                launch::ensure(host, environments, slug, choices, output)?;
            }
            Err(error) if retry < RETRIES && is_transport(&error) => {
                output.note(format!("cannot connect to {slug}: {error}; tries again in {pause:?}"));
                std::thread::sleep(pause);
                pause *= 2;
            }
            // The command reports it.
            Err(_) => return Ok(()),
        }
    }
    Ok(())
}

/// Whether the same connection may succeed later.
fn is_transport(error: &ClientError) -> bool {
    matches!(
        error,
        ClientError::Unreached { .. }
            | ClientError::Handshake(_)
            | ClientError::Lost(_)
            | ClientError::Locked(_)
    )
}
