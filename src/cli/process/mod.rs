//! `bottle process` and `bottle ps`: processes in a bottle that go on without a client.
//!
//! - `control`: start, write, signal, kill · `log`: read the output · `wait`: wait for its end, or for a line ·
//!   `list`: `bottle ps` · `saved`: the processes of a bottle that ended

mod control;
mod list;
mod log;
mod saved;
mod wait;

use bottle_channel::Channel;
use bottle_contract::names::Slug;
use bottle_contract::session::guest::{Exit, Failure, GuestEvent, GuestRequest};
use bottle_contract::session::process::{ProcessName, ProcessState};

pub(crate) use self::list::List;
pub(crate) use self::log::Log;
use super::completions;
use super::connect::{guest_failure, keeper_lost, open_guest, unexpected_answer};
use super::error::CliError;
use super::exit;
use super::json_schema::ProcessEnd;
use super::output::Output;
use crate::host::Host;

/// The commands of `bottle process`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Process {
    Start(control::Start),
    List(List),
    Log(Log),
    Write(control::Write),
    Wait(wait::Wait),
    Signal(control::SendSignal),
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
            // It passes on the exit code of the process.
            Self::Wait(wait) => {
                host.and_then(|host| wait.run(&host, output)).map_err(CliError::beside_a_program)
            }
            Self::Signal(signal) => signal.run(&host?, output),
            Self::Kill(kill) => kill.run(&host?, output),
        }
    }
}

/// A process of a bottle.
#[derive(Debug, clap::Args)]
struct Target {
    /// The bottle, as `bottle list` shows it
    #[arg(add = completions::running())]
    slug: Slug,
    /// The process: its handle or name, as `bottle ps` shows it
    process: ProcessName,
}

/// Sends a request with one answer. A failure of the guest is an error.
pub(super) async fn ask(
    channel: &Channel,
    request: GuestRequest,
    slug: &Slug,
) -> Result<GuestEvent, CliError> {
    let mut stream = open_guest(channel, request).await?;
    match stream.receive().await.map_err(keeper_lost)? {
        GuestEvent::Failed(failure) => Err(failed(failure, slug)),
        event => Ok(event),
    }
}

/// The error for a failure of the guest.
fn failed(failure: Failure, slug: &Slug) -> CliError {
    guest_failure(failure)
        .exit(exit::FAILED)
        .about(slug)
        .hint(format!("`bottle ps {slug}` lists its processes"))
}

/// Checks that the guest carried out a request.
async fn carry_out(channel: &Channel, request: GuestRequest, slug: &Slug) -> Result<u8, CliError> {
    match ask(channel, request, slug).await? {
        GuestEvent::Done => Ok(exit::DONE),
        _ => Err(unexpected_answer()),
    }
}

/// The JSON form of a state.
pub(super) fn end_of(state: ProcessState) -> ProcessEnd {
    let (state, code, signal) = match state {
        ProcessState::Running => ("running", None, None),
        ProcessState::Exited(Exit::Code(code)) => ("exited", Some(code), None),
        ProcessState::Exited(Exit::Signal(signal)) => ("killed", None, Some(signal)),
    };
    ProcessEnd { state, code, signal }
}
