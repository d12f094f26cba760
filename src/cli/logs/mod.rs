//! `bottle logs`: shows the agent's output or the proxy's access log.
//!
//! All output is escaped, even in a pipe: it contains text and line breaks, but no escape sequences.
//!
//! - `plain`: converts terminal bytes to lines of text
//! - `egress_log`: reads and follows the proxy's ring of files · `decision`: formats one line of the log

mod decision;
mod egress_log;
mod plain;

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::path::Path;

use bottle_channel::Event;
use bottle_contract::names::Slug;
use bottle_contract::session::guest::{GuestEvent, GuestRequest, Logs as LogsRequest, STDERR, STDOUT};
use jiff::Timestamp;

use crate::cli::since::since;

pub(super) use self::decision::{Shown, Tone};
use self::plain::Plain;
use super::connect::{connect, guest_failure, keeper_lost, open_guest};
use super::error::CliError;
use super::exit;
use super::output::{Output, reader_gone, write_failed};
use super::session::Signals;
use crate::backend::SIDECAR_LOGS;
use crate::cli::completions;
use crate::host::Host;
use crate::instance::{State, Store};

/// The maximum number of bytes read from saved output. Longer output is truncated, which does not occur, because
/// the guest keeps only 1 MiB of each stream.
const SAVED_MAX: u64 = 8 << 20;

/// Show an agent's output, or with `--egress` the proxy's access log
#[derive(Debug, clap::Args)]
pub(crate) struct Logs {
    /// The bottle, as `bottle list` shows it
    #[arg(add = completions::all_bottles())]
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
}

impl Logs {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let store = Store::of(host);
        let folder = store.folder(&self.slug).join("logs");
        match (store.state(&self.slug), self.egress) {
            (Some(_), true) => {
                egress_log::show(&store.folder(&self.slug).join(SIDECAR_LOGS), &self, host, output)
            }
            (Some(State::Dead(record)), false) if record.agent_exit.is_some() => self.saved(&folder),
            (Some(State::Preserved(_)), false) => self.saved(&folder),
            // For a slug that does not exist, `connect` creates the error.
            _ => super::block_on(self.live(host)),
        }
    }

    /// Shows the output that the guest has buffered, and follows new output.
    async fn live(&self, host: &Host) -> Result<u8, CliError> {
        let mut signals = Signals::catch()?;
        let channel = connect(host, &self.slug).await?;
        let request = LogsRequest { tail: self.tail, follow: self.follow };
        let mut stream = open_guest(&channel, GuestRequest::Logs(request)).await?;
        let mut printed = Printer::default();
        loop {
            let event = tokio::select! {
                event = stream.next() => event,
                number = signals.end() => return Ok(128u8.saturating_add(number)),
                gone = reader_gone() => return Err(gone),
            };
            match event {
                Some(Event::Data { fd: STDOUT | STDERR, bytes }) => printed.feed(&bytes)?,
                Some(Event::Message(json)) => {
                    if let Ok(GuestEvent::Failed(failure)) = serde_json::from_slice(&json) {
                        return Err(guest_failure(failure).exit(exit::FAILED).about(&self.slug));
                    }
                }
                Some(Event::Data { .. }) => {}
                Some(Event::Reset(why)) => {
                    printed.finish()?;
                    return Err(keeper_lost(why).about(&self.slug));
                }
                Some(Event::End) | None => break,
            }
        }
        printed.finish()?;
        Ok(exit::DONE)
    }

    /// Shows the output of an ended agent, which the keeper saved.
    fn saved(&self, folder: &Path) -> Result<u8, CliError> {
        let path = folder.join("agent.log");
        let mut bytes = Vec::new();
        match std::fs::File::open(&path) {
            Ok(file) => file.take(SAVED_MAX).read_to_end(&mut bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(CliError::state("the agent's output was not saved")
                    .about(&self.slug)
                    .hint("bottle saves the output when a bottle ends in an orderly way"));
            }
            Err(error) => Err(error),
        }
        .map_err(|error| CliError::cannot(format_args!("read {}", path.display()), error))?;
        let mut printed = Printer { tail: Tail::new(self.tail), ..Printer::default() };
        printed.feed(&bytes)?;
        printed.finish()?;
        Ok(exit::DONE)
    }
}

/// Buffers the last `most` lines. Without a limit, buffers no line.
#[derive(Default)]
struct Tail {
    most: Option<usize>,
    last: VecDeque<String>,
}

impl Tail {
    fn new(most: Option<u64>) -> Self {
        let most = most.map(|lines| usize::try_from(lines).unwrap_or(usize::MAX));
        Self { most, last: VecDeque::new() }
    }

    /// Adds a line. Returns it immediately if there is no limit.
    fn push(&mut self, line: String) -> Option<String> {
        let Some(most) = self.most else { return Some(line) };
        self.last.push_back(line);
        if self.last.len() > most {
            self.last.pop_front();
        }
        None
    }
}

/// Prints bytes as plain lines. With a limit, prints only the last lines, at the end.
#[derive(Default)]
pub(super) struct Printer {
    plain: Plain,
    tail: Tail,
}

impl Printer {
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        let lines = self.plain.feed(bytes);
        print(lines.into_iter().filter_map(|line| self.tail.push(line)))
    }

    pub(super) fn finish(&mut self) -> Result<(), CliError> {
        let rest = self.plain.finish().and_then(|line| self.tail.push(line));
        print(self.tail.last.drain(..).chain(rest))
    }
}

fn print(lines: impl Iterator<Item = String>) -> Result<(), CliError> {
    let text: String = lines.map(|line| line + "\n").collect();
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(write_failed)
}
