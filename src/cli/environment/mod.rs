//! `bottle env`: one bottle for each task, which is made when it is first used, and stopped when it is idle.
//!
//! - `run`: makes the bottle once under any concurrency, and runs a command in it · `launch`: starts or resumes it
//! - `list`, `remove` · `reaper`: the process that stops idle bottles

mod launch;
mod list;
mod reaper;
mod remove;
mod run;

use std::io;

use bottle_contract::names::Slug;
use bottle_host::Host;
use bottle_instance::environments::{self, Environments};

pub(crate) use self::reaper::{ROLE, run as reap};
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

/// Opens the directory of environments.
fn open(host: &Host) -> Result<Environments, CliError> {
    Environments::of(host).map_err(|error| unusable(&error))
}

/// The slug of a task's bottle.
fn slug_of(task: &str) -> Result<Slug, CliError> {
    environments::slug_of(task).map_err(|why| {
        CliError::usage(format!("cannot use the task id {task:?}: {why}"))
            .about("TASK")
            .hint("name the task with letters and digits, such as `django-1234`")
    })
}

/// The error if a file of an environment cannot be used.
fn unusable(error: &io::Error) -> CliError {
    let hint = bottle_host::disk::hint(error);
    CliError::state(format!("cannot use the directory of environments: {error}"))
        .about("BOTTLE_HOME")
        .hint(hint)
}
