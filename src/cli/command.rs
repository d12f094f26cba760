//! The command that `bottle exec` and `bottle env run` run in a bottle.

use std::time::{Duration, Instant};

use bottle_host::{Host, Settings};
use bottle_lib::exec::{Connection, Deadline, OUTPUT_KEPT, Place};
use bottle_lib::report::Executed;
use bottle_policy::names::Slug;
use bottle_protocol::session::guest::{Exit, Process};
use bottle_text::terminal::Pass;

use super::connect::{guest_failure, report_delay};
use super::program_args::ProgramArgs;
use super::time_limit::time_limit;
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::{Output, output_failed};
use crate::console::runtime::block_on;
use crate::console::signals::Signals;
use crate::console::terminal::{self, Detach};
use crate::screens::session::{self, Outcome, Session, Style};

/// The maximum of `--max-output` in bytes.
const MAX_OUTPUT: usize = 16 << 20;

/// A command, and how it runs.
#[derive(Debug, clap::Args)]
pub(crate) struct Command {
    /// Allocate a terminal
    #[arg(short, long)]
    tty: bool,
    /// Forward standard input
    #[arg(short, long)]
    interactive: bool,
    #[command(flatten)]
    program: ProgramArgs,
    /// End the command after this time: seconds, or with a unit (5m). SIGTERM, and SIGKILL 3 seconds later
    #[arg(long, value_name = "TIME", value_parser = time_limit)]
    timeout: Option<Duration>,
    /// Write standard error into standard output, in the order of the command
    #[arg(long, conflicts_with = "tty")]
    merge: bool,
    /// Replace the values of the bottle's secret variables with `[REDACTED]` in the output
    #[arg(long, conflicts_with = "tty")]
    redact: bool,
    /// With `--json`: keep so many bytes of each output, half of them from its end
    #[arg(long, value_name = "BYTES", default_value_t = OUTPUT_KEPT)]
    max_output: usize,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

impl Command {
    /// Runs the command in a bottle. Returns the exit code of the command.
    ///
    /// # Errors
    /// Returns an error if `bottle` itself or the bottle failed.
    pub(crate) fn run(self, slug: &Slug, place: Place, host: &Host, output: &Output) -> Result<u8, CliError> {
        if self.tty && !terminal::is_terminal() {
            return Err(CliError::usage("cannot allocate a terminal: standard input or output is not one")
                .about("--tty")
                .hint("omit `-t` to use plain pipes"));
        }
        if self.tty && output.json {
            return Err(CliError::usage("a terminal has no result").about("--json").hint("omit `-t`"));
        }
        if self.max_output > MAX_OUTPUT {
            return Err(CliError::usage(format!("`--max-output` keeps at most {MAX_OUTPUT} bytes"))
                .about("--max-output"));
        }
        let pass = Settings::load(host)?.terminal_pass;
        block_on(async {
            self.session(slug, place, host, pass, output).await.map_err(|error| error.about(slug))
        })
    }

    async fn session(
        self,
        slug: &Slug,
        place: Place,
        host: &Host,
        pass: Pass,
        output: &Output,
    ) -> Result<u8, CliError> {
        let process = Process {
            terminal: self.tty.then(terminal::size),
            stdin: self.interactive || self.tty,
            merged: self.merge,
            redact: self.redact,
            ..self.program.process(host, slug, self.command).await?
        };
        let connection = Connection::open(host, slug, place).await?;
        report_delay(connection.channel(), output).await;
        let stream = connection.start(process).await?;
        let deadline = Deadline::after(self.timeout);
        let mut signals = Signals::catch()?;
        if output.json {
            let begun = Instant::now();
            let (stdin, limit) = (self.interactive, self.max_output);
            let (outcome, captured) =
                session::capture(stream, stdin, limit, &deadline, &mut signals, output).await;
            let end = End::of(outcome, &deadline, &connection, output).await?;
            let (code, timed_out, duration) = (end.code, end.timed_out, begun.elapsed());
            output.print_json(&Executed::of(code, end.exit, timed_out, duration, &captured, self.merge))?;
            return Ok(end.code);
        }
        let style = if self.tty {
            Style::Terminal {
                detach: Detach::new(&[]),
                title: None,
                color: None,
                tint: false,
                watch_only: false,
            }
        } else {
            Style::Pipes { stdin: self.interactive, pass_signals: true }
        };
        let session = Session { stream, style, pass, title_notices: None };
        let outcome = session::run(session, &deadline, &mut signals, output).await?;
        let end = End::of(outcome, &deadline, &connection, output).await?;
        if let (true, Some(limit)) = (end.timed_out, self.timeout) {
            output.warn(format!("the command was ended, because its time limit of {limit:?} passed"));
        }
        Ok(end.code)
    }
}

/// How a command ended.
struct End {
    /// How the command exited. `None` if the command was interrupted, or if its exit was not reported.
    exit: Option<Exit>,
    timed_out: bool,
    /// The exit code with which this program exits.
    code: u8,
}

impl End {
    async fn of(
        outcome: Outcome,
        deadline: &Deadline,
        connection: &Connection<'_>,
        output: &Output,
    ) -> Result<Self, CliError> {
        let timed_out = deadline.has_passed();
        match outcome {
            Outcome::Exited(exit) => {
                let code = if timed_out { exit::TIMED_OUT } else { exit.shell_code() };
                if matches!(exit, Exit::Signal(_))
                    && !timed_out
                    && let Some(ended) = connection.end_of_bottle().await
                {
                    let hint = ended.hint.map(|hint| format!("; {hint}")).unwrap_or_default();
                    output.warn(format!("{}{hint}", ended.message));
                }
                Ok(Self { exit: Some(exit), timed_out, code })
            }
            Outcome::Failed(failure) => Err(guest_failure(failure)),
            // Dropping the stream ends the command in the bottle. The keeper must receive the stream's reset
            // before this process exits.
            Outcome::Interrupted(number) => {
                connection.channel().flush().await;
                Ok(Self { exit: None, timed_out: false, code: 128u8.saturating_add(number) })
            }
            Outcome::Detached | Outcome::Proposals => {
                Ok(Self { exit: None, timed_out: false, code: exit::DONE })
            }
            Outcome::Reset(why) if timed_out => {
                output.warn(why);
                connection.channel().flush().await;
                Ok(Self { exit: None, timed_out, code: exit::TIMED_OUT })
            }
            Outcome::Reset(why) => Err(connection.lost(why).await.into()),
            Outcome::OutputClosed(error) => Err(output_failed(error)),
        }
    }
}
