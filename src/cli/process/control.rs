//! `bottle process start`, `write`, `signal` and `kill`.

use bottle_channel::{Channel, Event, StreamReceiver, StreamSender};
use bottle_contract::names::Slug;
use bottle_contract::session::guest::{Exit, GuestEvent, GuestRequest, Process, STDIN, Size};
use bottle_contract::session::process::{
    EndProcess, ProcessName, ProcessState, SignalProcess, StartProcess, WriteInput,
};
use bottle_host::Host;
use bottle_lib::processes::{ask, failed};
use bottle_lib::report::{ProcessEnd, StartedProcess};
use nix::sys::signal::Signal;

use crate::cli::candidates;
use crate::cli::connect::{connect, keeper_lost, open_guest, unexpected_answer};
use crate::cli::error::CliError;
use crate::cli::exit;
use crate::cli::output::Output;
use crate::cli::process_output::Target;
use crate::cli::program_args::ProgramArgs;
use crate::cli::runtime::block_on;
use crate::cli::session::{Signals, interrupted};
use crate::cli::terminal;

/// The size of the terminal of a process that has no client.
const SIZE: Size = Size { columns: 120, rows: 30 };

/// Start a process that goes on without a client, and print its handle
///
/// It ends with the bottle. `bottle process log` shows its output.
#[derive(Debug, clap::Args)]
pub(crate) struct Start {
    /// The bottle, as `bottle list` shows it
    #[arg(add = candidates::running())]
    slug: Slug,
    /// A name beside the handle, which is free again when the process ends
    #[arg(long)]
    name: Option<ProcessName>,
    /// Run it in a terminal
    #[arg(short, long)]
    tty: bool,
    #[command(flatten)]
    program: ProgramArgs,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

impl Start {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let (handle, pid) = block_on(async {
            let process = Process {
                stdin: true,
                terminal: self.tty.then_some(SIZE),
                ..self.program.process(host, &self.slug, self.command).await?
            };
            let channel = connect(host, &self.slug).await?;
            let request = StartProcess { process, name: self.name };
            match ask(&channel, GuestRequest::StartProcess(request), &self.slug).await? {
                GuestEvent::ProcessStarted { handle, pid } => Ok((handle, pid)),
                _ => Err(unexpected_answer()),
            }
        })?;
        let started = StartedProcess { handle: handle.to_string(), pid };
        output.json_or(&started, || output.print(&started.handle))?;
        output.note(format!("`bottle process log {} {handle}` shows its output", self.slug));
        Ok(exit::DONE)
    }
}

/// Write to the input of a process
///
/// Without TEXT, forwards standard input. Every user of this machine can see TEXT while the command runs.
#[derive(Debug, clap::Args)]
pub(crate) struct Write {
    #[command(flatten)]
    target: Target,
    /// The text, to which a line break is added
    text: Option<String>,
    /// Add no line break to TEXT
    #[arg(long, requires = "text")]
    no_newline: bool,
    /// Then close the input; in a terminal, type Ctrl-D
    #[arg(long)]
    eof: bool,
}

impl Write {
    pub(crate) fn run(self, host: &Host, _output: &Output) -> Result<u8, CliError> {
        block_on(async {
            let channel = connect(host, &self.target.slug).await?;
            let mut signals = Signals::catch()?;
            let request = WriteInput { process: self.target.process.clone(), close: self.eof };
            let stream = open_guest(&channel, GuestRequest::WriteInput(request)).await?;
            let (sender, receiver) = stream.split();
            let answer = tokio::select! {
                answer = self.write(&sender, receiver) => answer?,
                number = signals.end() => return Err(interrupted(number)),
            };
            match answer {
                GuestEvent::Done => Ok(exit::DONE),
                GuestEvent::Failed(failure) => Err(failed(failure, &self.target.slug).into()),
                _ => Err(unexpected_answer()),
            }
        })
    }

    /// Sends the input. Returns the answer, which comes before the end of the input if the process has ended.
    async fn write(&self, sender: &StreamSender, receiver: StreamReceiver) -> Result<GuestEvent, CliError> {
        let mut answered = std::pin::pin!(answer(receiver));
        tokio::select! {
            answer = &mut answered => answer,
            sent = self.send(sender) => match sent {
                Ok(()) => answered.await,
                Err(error) => Err(error),
            },
        }
    }

    async fn send(&self, sender: &StreamSender) -> Result<(), CliError> {
        match &self.text {
            Some(text) => {
                let line = if self.no_newline { text.clone() } else { format!("{text}\n") };
                sender.data(STDIN, line.as_bytes()).await.map_err(keeper_lost)?;
            }
            None => {
                let mut input = terminal::chunks();
                while let Some(bytes) = input.recv().await {
                    sender.data_bytes(STDIN, bytes).await.map_err(keeper_lost)?;
                }
            }
        }
        sender.end().await.map_err(keeper_lost)
    }
}

/// Waits for the event that ends a stream.
async fn answer(mut receiver: StreamReceiver) -> Result<GuestEvent, CliError> {
    loop {
        match receiver.next().await {
            Some(event @ Event::Message(_)) => return event.parse().map_err(keeper_lost),
            Some(Event::Data { .. }) => {}
            Some(Event::Reset(why)) => return Err(keeper_lost(why)),
            Some(Event::End) | None => return Err(unexpected_answer()),
        }
    }
}

/// Send a signal to a process
///
/// In a terminal, INT, QUIT and TSTP go to the program in the foreground, as with Ctrl-C.
#[derive(Debug, clap::Args)]
pub(crate) struct SendSignal {
    #[command(flatten)]
    target: Target,
    /// The signal: INT, SIGINT or 2
    #[arg(value_parser = signal_number)]
    signal: u8,
}

impl SendSignal {
    pub(crate) fn run(self, host: &Host, _output: &Output) -> Result<u8, CliError> {
        let Target { slug, process } = self.target;
        block_on(async {
            let channel = connect(host, &slug).await?;
            let request = SignalProcess { process, signal: self.signal };
            carry_out(&channel, GuestRequest::SignalProcess(request), &slug).await
        })
    }
}

/// End a process with all programs that it started in its session
#[derive(Debug, clap::Args)]
pub(crate) struct Kill {
    #[command(flatten)]
    target: Target,
    /// The time between SIGTERM and SIGKILL, in seconds
    #[arg(long, default_value_t = 3, value_name = "SECONDS")]
    time: u32,
}

impl Kill {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let Target { slug, process } = self.target;
        block_on(async {
            let channel = connect(host, &slug).await?;
            let name = process.to_string();
            let request = EndProcess { process, grace_ms: u64::from(self.time) * 1000 };
            let event = ask(&channel, GuestRequest::EndProcess(request), &slug).await?;
            let GuestEvent::Exited(exit) = event else { return Err(unexpected_answer()) };
            output.json_or(&ProcessEnd::from(ProcessState::Exited(exit)), || {
                output.note(match exit {
                    Exit::Code(code) => format!("{name} exited with code {code}"),
                    Exit::Signal(signal) => format!("{name} was killed by signal {signal}"),
                });
                Ok(())
            })?;
            Ok(exit::DONE)
        })
    }
}

/// Parses a signal by its name, with or without SIG, or by its number.
fn signal_number(text: &str) -> Result<u8, String> {
    let upper = text.to_ascii_uppercase();
    let name = if upper.starts_with("SIG") { upper } else { format!("SIG{upper}") };
    let named = name.parse::<Signal>().ok().map(|signal| signal as i32);
    let number = named.or_else(|| text.parse().ok()).and_then(|number| u8::try_from(number).ok());
    number.filter(|number| (1..=31).contains(number)).ok_or_else(|| {
        "write HUP, INT, QUIT, TERM, KILL, STOP, CONT, TSTP, USR1, USR2, WINCH or another name, or 1 to 31"
            .to_owned()
    })
}

/// Checks that the guest carried out a request.
async fn carry_out(channel: &Channel, request: GuestRequest, slug: &Slug) -> Result<u8, CliError> {
    match ask(channel, request, slug).await? {
        GuestEvent::Done => Ok(exit::DONE),
        _ => Err(unexpected_answer()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names_and_numbers() {
        for (text, number) in [("TERM", 15), ("sigint", 2), ("Hup", 1), ("9", 9), ("31", 31)] {
            assert_eq!(signal_number(text), Ok(number), "{text}");
        }
        for text in ["", "0", "32", "-1", "SIG", "NOPE", "99999999999"] {
            assert!(signal_number(text).is_err(), "{text}");
        }
    }
}
