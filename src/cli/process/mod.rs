//! `bottle process` and `bottle ps`: processes in a bottle that continue without a client.
//!
//! - `control`: start, write, signal, resize, kill · `wait`: wait for the ends of processes, or for a line of output ·
//!   `list`: `bottle ps` · `state`: words for the state of a process ·
//!   `cli::process_output`: read the output

mod control;
mod list;
mod state;
mod wait;

use bottle_host::Host;

pub(crate) use self::list::List;
use super::process_output::Log;
use crate::console::error::CliError;
use crate::console::output::Output;

/// The commands of `bottle process`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Process {
    Start(control::Start),
    List(List),
    Log(Log),
    Write(control::Write),
    Wait(wait::Wait),
    Signal(control::SendSignal),
    Resize(control::Resize),
    Kill(control::Kill),
}

impl Process {
    pub(crate) fn run(self, host: Result<Host, CliError>, output: &Output) -> Result<u8, CliError> {
        match self {
            Self::Start(start) => start.run(&host?, output),
            Self::List(list) => list.run(&host?, output),
            Self::Log(log) => log.run(&host?, output),
            Self::Write(write) => write.run(&host?, output),
            Self::Wait(wait) if wait.is_for_a_line() => wait.run(&host?, output),
            // This command returns the exit code of the process, so errors of `bottle` get an exit code of their own.
            Self::Wait(wait) => {
                host.and_then(|host| wait.run(&host, output)).map_err(CliError::beside_a_program)
            }
            Self::Signal(signal) => signal.run(&host?, output),
            Self::Resize(resize) => resize.run(&host?, output),
            Self::Kill(kill) => kill.run(&host?, output),
        }
    }
}
