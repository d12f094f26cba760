//! `bottle logs`: shows the agent's output or the proxy's access log.
//!
//! All output except that of `--raw` is escaped, even in a pipe: it contains text and line breaks, but no escape
//! sequences.
//!
//! - `rendered`: renders the agent's output as lines · `cli::plain`: converts terminal bytes to lines of text ·
//!   `screen`: a model of a screen, for output that moves the cursor
//! - `egress_log`: reads and follows the proxy's ring of files · `console::decision`: formats one line of the log

mod egress_log;
mod rendered;
mod screen;

use std::io::{self, IsTerminal, Read};
use std::path::Path;
use std::time::Duration;

use bottle_backend::SIDECAR_LOGS;
use bottle_channel::{Channel, Event};
use bottle_contract::names::Slug;
use bottle_contract::session::guest::{GuestEvent, GuestRequest, Logs as LogsRequest, STDERR, STDOUT, Size};
use bottle_host::Host;
use bottle_instance::record::Record;
use bottle_instance::{State, Store};
use jiff::Timestamp;

use crate::cli::since::since;
use crate::console::runtime::block_on;

use self::rendered::{Rendered, render};
use super::connect::{connect, guest_failure, keeper_lost, open_guest};
use super::plain::{print, write_out};
use crate::cli::candidates;
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::{Output, reader_gone};
use crate::console::signals::Signals;

/// The maximum number of bytes of output that are rendered. Longer output is truncated, which does not occur, because
/// the guest keeps only 1 MiB of each stream.
const SAVED_MAX: usize = 8 << 20;

/// Time limit for the guest to report the size of the agent's terminal.
const SIZE_WITHIN: Duration = Duration::from_secs(2);

/// Show an agent's output, or with `--egress` the proxy's access log
#[derive(Debug, clap::Args)]
pub(crate) struct Logs {
    /// The bottle, as `bottle list` shows it
    #[arg(add = candidates::all_bottles())]
    slug: Slug,
    /// Show the proxy's access log, one line per decision; `--json` prints each line as the proxy wrote it.
    /// `egress.log` in the bottle manifest sets how much is logged
    #[arg(long)]
    egress: bool,
    /// Follow new output until the bottle ends
    #[arg(short, long)]
    follow: bool,
    /// Show only decisions since this time, day or age (`10m`)
    #[arg(long, requires = "egress", value_name = "TIME|DAY|AGO", value_parser = since)]
    since: Option<Timestamp>,
    /// Show only this many lines, from the end
    #[arg(long, value_name = "LINES")]
    tail: Option<u64>,
    /// Write the output as the agent wrote it, with its escape sequences, to a file or a program
    #[arg(long, conflicts_with_all = ["egress", "tail"])]
    raw: bool,
}

impl Logs {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        if self.raw && io::stdout().is_terminal() {
            return Err(CliError::usage(
                "cannot write the raw output to a terminal: it may contain any sequences",
            )
            .about("--raw")
            .hint(format!("`bottle logs {} --raw >FILE`; `bottle attach --read-only` shows it", self.slug)));
        }
        let store = Store::of(host);
        let directory = store.directory(&self.slug).join("logs");
        match (store.state(&self.slug), self.egress) {
            (Some(_), true) => {
                egress_log::show(&store.directory(&self.slug).join(SIDECAR_LOGS), &self, host, output)
            }
            (Some(State::Dead(record)), false) if record.agent_exit.is_some() => {
                self.saved(&directory, &record)
            }
            (Some(State::Preserved(record)), false) => self.saved(&directory, &record),
            // For a slug that does not exist, `connect` creates the error.
            _ => block_on(self.live(host)),
        }
    }

    /// Shows the output that the guest has buffered, and follows new output.
    async fn live(&self, host: &Host) -> Result<u8, CliError> {
        let mut signals = Signals::catch()?;
        let channel = connect(host, &self.slug).await?;
        let mut shown = match (self.raw, self.follow) {
            (true, _) => Display::Raw,
            (false, false) => Display::Whole(Vec::new(), terminal_size(&channel).await),
            (false, true) => Display::Followed(Box::new(Rendered::new(terminal_size(&channel).await))),
        };
        // Only of output that is followed, the guest counts the lines: a screen has other lines than its output.
        let request = LogsRequest { tail: self.tail.filter(|_| self.follow), follow: self.follow };
        let mut stream = open_guest(&channel, GuestRequest::Logs(request)).await?;
        loop {
            let event = tokio::select! {
                event = stream.next() => event,
                number = signals.end() => return Ok(128u8.saturating_add(number)),
                gone = reader_gone() => return Err(gone),
            };
            match event {
                Some(Event::Data { fd: STDOUT | STDERR, bytes }) => shown.feed(&bytes)?,
                Some(Event::Message(json)) => {
                    if let Ok(GuestEvent::Failed(failure)) = serde_json::from_slice(&json) {
                        return Err(guest_failure(failure).exit(exit::FAILED).about(&self.slug));
                    }
                }
                Some(Event::Data { .. }) => {}
                Some(Event::Reset(why)) => {
                    shown.finish(self.tail)?;
                    return Err(keeper_lost(why).about(&self.slug));
                }
                Some(Event::End) | None => break,
            }
        }
        shown.finish(self.tail)?;
        Ok(exit::DONE)
    }

    /// Shows the output of an ended agent, which the keeper saved.
    fn saved(&self, directory: &Path, record: &Record) -> Result<u8, CliError> {
        let path = directory.join("agent.log");
        let mut bytes = Vec::new();
        match std::fs::File::open(&path) {
            Ok(file) => file.take(SAVED_MAX as u64).read_to_end(&mut bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(CliError::state("the agent's output was not saved")
                    .about(&self.slug)
                    .hint("bottle saves the output when a bottle ends in an orderly way"));
            }
            Err(error) => Err(error),
        }
        .map_err(|error| CliError::cannot(format_args!("read {}", path.display()), error))?;
        let mut shown =
            if self.raw { Display::Raw } else { Display::Whole(Vec::new(), record.terminal_size) };
        shown.feed(&bytes)?;
        shown.finish(self.tail)?;
        Ok(exit::DONE)
    }
}

/// The size of the agent's terminal. `None` if it has none, or if that is not known.
async fn terminal_size(channel: &Channel) -> Option<Size> {
    let query = async {
        match open_guest(channel, GuestRequest::Status).await.ok()?.receive().await.ok()? {
            GuestEvent::Status { terminal, .. } => terminal,
            _ => None,
        }
    };
    tokio::time::timeout(SIZE_WITHIN, query).await.ok().flatten()
}

/// How the agent's output is shown.
enum Display {
    /// As the agent wrote it.
    Raw,
    /// All of it is rendered when it is complete.
    Whole(Vec<u8>, Option<Size>),
    /// It is rendered while it arrives.
    Followed(Box<Rendered>),
}

impl Display {
    fn feed(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        match self {
            Self::Raw => write_out(bytes),
            Self::Whole(all, _) => {
                let room = SAVED_MAX.saturating_sub(all.len()).min(bytes.len());
                all.extend_from_slice(&bytes[..room]);
                Ok(())
            }
            Self::Followed(rendered) => print(rendered.feed(bytes).into_iter()),
        }
    }

    /// Prints what was not printed yet; with `tail`, only so many of its lines if it is rendered as a whole.
    fn finish(self, tail: Option<u64>) -> Result<(), CliError> {
        match self {
            Self::Raw => Ok(()),
            Self::Whole(bytes, size) => {
                let lines = render(&bytes, size);
                let most = tail.map_or(usize::MAX, |lines| usize::try_from(lines).unwrap_or(usize::MAX));
                let omitted = lines.len().saturating_sub(most);
                print(lines.into_iter().skip(omitted))
            }
            Self::Followed(rendered) => print(rendered.finish().into_iter()),
        }
    }
}
