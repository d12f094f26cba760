//! `bottle shell`: opens a shell in a bottle. The shell stays open when a client disconnects.

use std::time::Duration;

use bottle_channel::Channel;
use bottle_host::{Host, Settings};
use bottle_lib::exec::Deadline;
use bottle_lib::processes::ask;
use bottle_policy::names::Slug;
use bottle_protocol::session::guest::{Attach, Failure, FailureKind, GuestEvent, GuestRequest, Process};
use bottle_protocol::session::process::{ProcessInfo, ProcessName, ProcessState, StartProcess};

use super::candidates;
use super::client::on_terminal;
use super::connect::{connect, guest_failure, keeper_lost, open_guest, report_delay, unexpected_answer};
use super::program_args::ProgramArgs;
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::{Output, output_failed};
use crate::console::runtime::block_on;
use crate::console::signals::Signals;
use crate::console::terminal;
use crate::screens::session::{self, Outcome, Session};

/// The shells to try, with the arguments for a session on a terminal.
const SHELLS: [&[&str]; 2] = [&["bash", "-i"], &["sh", "-i"]];

/// Open a shell in a bottle, or return to it
///
/// The shell stays open when you detach or the connection is lost, and ends with `exit` or with the bottle. Each name
/// is a shell of its own. `bottle ps` lists them.
#[derive(Debug, clap::Args)]
pub(crate) struct Shell {
    /// The bottle, as `bottle list` shows it
    #[arg(add = candidates::running())]
    slug: Slug,
    /// The name of the shell
    #[arg(default_value = "shell")]
    name: ProcessName,
    #[command(flatten)]
    program: ProgramArgs,
}

impl Shell {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        if !terminal::is_terminal() {
            return Err(CliError::usage("a shell needs a terminal, and standard input or output is not one")
                .about(&self.slug)
                .hint(format!("`bottle exec {} -- CMD` runs a command on pipes", self.slug)));
        }
        let settings = Settings::load(host)?;
        block_on(async {
            let channel = connect(host, &self.slug).await?;
            report_delay(&channel, output).await;
            let process = self.program.process(host, &self.slug, Vec::new()).await?;
            open(&channel, &self.slug, &self.name, process).await.map_err(|error| error.about(&self.slug))?;
            let request =
                Attach { read_only: false, process: Some(self.name.clone()), size: Some(terminal::size()) };
            let stream = open_guest(&channel, GuestRequest::Attach(request)).await?;
            let title = format!("{} ({})", self.slug, self.name);
            let style = on_terminal(&settings, title, None, false);
            let session = Session { stream, style, pass: settings.terminal_pass, title_notices: None };
            let outcome = session::run(session, &Deadline::default(), &mut Signals::catch()?, output).await?;
            self.ended(outcome, &channel, output).await
        })
    }

    async fn ended(&self, outcome: Outcome, channel: &Channel, output: &Output) -> Result<u8, CliError> {
        let returns = format!("`bottle shell {} {}` returns to it", self.slug, self.name);
        match outcome {
            Outcome::Exited(exit) => Ok(exit.shell_code()),
            Outcome::Detached | Outcome::Proposals => {
                // The shell may have left the cursor in the middle of a line.
                output.write_error_lines("");
                output.note(format!("the shell stays open; {returns}"));
                Ok(exit::DONE)
            }
            Outcome::Failed(failure) => Err(guest_failure(failure).about(&self.slug)),
            Outcome::Interrupted(number) => {
                channel.flush().await;
                Ok(128u8.saturating_add(number))
            }
            Outcome::Reset(why) => {
                if tokio::time::timeout(Duration::ZERO, channel.closed()).await.is_ok() {
                    return Err(keeper_lost(why));
                }
                output.note(format!("the session ended: {why}; {returns}"));
                Ok(exit::DONE)
            }
            Outcome::OutputClosed(error) => Err(output_failed(error)),
        }
    }
}

/// Starts the shell, unless it is already running.
async fn open(channel: &Channel, slug: &Slug, name: &ProcessName, process: Process) -> Result<(), CliError> {
    let GuestEvent::Processes { processes } = ask(channel, GuestRequest::ListProcesses, slug).await? else {
        return Err(unexpected_answer());
    };
    let is_named = |info: &ProcessInfo| [&info.name, &info.handle].contains(&&Some(name.clone()));
    if processes.iter().any(|info| is_named(info) && info.state == ProcessState::Running) {
        return Ok(());
    }
    let mut missing: Option<Failure> = None;
    for argv in SHELLS {
        let process = Process {
            argv: argv.iter().map(|&word| word.to_owned()).collect(),
            terminal: Some(terminal::size()),
            stdin: true,
            ..process.clone()
        };
        let request = GuestRequest::StartProcess(StartProcess { process, name: Some(name.clone()) });
        let mut stream = open_guest(channel, request).await?;
        match stream.receive().await.map_err(keeper_lost)? {
            GuestEvent::ProcessStarted { .. } => return Ok(()),
            GuestEvent::Failed(failure) if failure.kind == FailureKind::NotFound => missing = Some(failure),
            GuestEvent::Failed(failure) => return Err(guest_failure(failure)),
            _ => return Err(unexpected_answer()),
        }
    }
    Err(missing.map_or_else(unexpected_answer, guest_failure))
}
