//! `bottle process start`, `write`, `signal`, `resize` and `kill`: start, control and end processes in a bottle.

use std::time::Duration;

use bottle_host::Host;
use bottle_lib::processes::{Processes, TERMINAL_SIZE, parse_signal};
use bottle_lib::report::ProcessEnd;
use bottle_policy::names::Slug;
use bottle_protocol::session::guest::{Exit, Process, Size};
use bottle_protocol::session::process::{ProcessName, ProcessState, StartProcess};

use crate::cli::candidates;
use crate::cli::process_output::Target;
use crate::cli::program_args::ProgramArgs;
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::Output;
use crate::console::runtime::block_on;
use crate::console::signals::{Signals, interrupted};

/// Start a process that goes on without a client, and print its handle
///
/// It ends with the bottle. `bottle process log` shows its output. Unless the bottle or `--env` sets PYTHONUNBUFFERED, it is
/// 1, so that Python writes its output at once; not with `--tty`.
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
    /// With `--tty`: the size of the terminal
    #[arg(long, value_name = "COLUMNSxROWS", requires = "tty")]
    size: Option<Size>,
    #[command(flatten)]
    program: ProgramArgs,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

impl Start {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let started = block_on(async {
            let process = Process {
                stdin: true,
                terminal: self.tty.then(|| self.size.unwrap_or(TERMINAL_SIZE)),
                ..self.program.process(host, &self.slug, self.command).await?
            };
            let request = StartProcess { process, name: self.name };
            Ok(Processes::new(host, &self.slug).start(request).await?)
        })?;
        output.json_or(&started, || output.print(&started.handle))?;
        output.note(format!("`bottle process log {} {}` shows its output", self.slug, started.handle));
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
        let Target { slug, process } = self.target;
        block_on(async {
            let mut signals = Signals::catch()?;
            let processes = Processes::new(host, &slug);
            let write = async {
                match self.text {
                    Some(text) => {
                        let line = if self.no_newline { text } else { format!("{text}\n") };
                        processes.write(process, line.as_bytes(), self.eof).await
                    }
                    None => processes.write(process, tokio::io::stdin(), self.eof).await,
                }
            };
            tokio::select! {
                written = write => written?,
                number = signals.end() => return Err(interrupted(number)),
            }
            Ok(exit::DONE)
        })
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
    #[arg(value_parser = parse_signal)]
    signal: u8,
}

impl SendSignal {
    pub(crate) fn run(self, host: &Host, _output: &Output) -> Result<u8, CliError> {
        let Target { slug, process } = self.target;
        block_on(async { Ok(Processes::new(host, &slug).signal(process, self.signal).await?) })?;
        Ok(exit::DONE)
    }
}

/// Set the size of a process's terminal
///
/// The program in the foreground gets SIGWINCH. `bottle shell` sets the size of your terminal when it attaches.
#[derive(Debug, clap::Args)]
pub(crate) struct Resize {
    #[command(flatten)]
    target: Target,
    /// The size, as 120x30
    #[arg(value_name = "COLUMNSxROWS")]
    size: Size,
}

impl Resize {
    pub(crate) fn run(self, host: &Host, _output: &Output) -> Result<u8, CliError> {
        let Target { slug, process } = self.target;
        block_on(async { Ok(Processes::new(host, &slug).resize(process, self.size).await?) })?;
        Ok(exit::DONE)
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
            let name = process.to_string();
            let grace = Duration::from_secs(self.time.into());
            let exit = Processes::new(host, &slug).end(process, grace).await?;
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
