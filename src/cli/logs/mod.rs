//! `bottle logs`: shows the agent's output or the proxy's access log.
//!
//! All output except the output of `--raw` is escaped, even in a pipe. Escaped output contains text and line breaks,
//! but no escape sequences.
//!
//! - `egress_log`: follows the proxy's access log · `console::agent_log`: renders the agent's output ·
//!   `console::decision`: formats one line of the access log

mod egress_log;

use std::io::{self, IsTerminal};

use bottle_channel::Event;
use bottle_host::Host;
use bottle_instance::Store;
use bottle_lib::logs::{self, AgentLog};
use bottle_policy::names::Slug;
use bottle_protocol::session::guest::{GuestEvent, GuestRequest, Logs as LogsRequest, STDERR, STDOUT};
use jiff::Timestamp;

use super::connect::{connect, keeper_lost, open_guest};
use crate::cli::candidates;
use crate::cli::since::since;
use crate::console::agent_log::{Rendered, lines};
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::{Output, reader_gone};
use crate::console::plain::{print, write_out};
use crate::console::runtime::block_on;
use crate::console::signals::Signals;

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
        if self.egress && Store::of(host).state(&self.slug).is_some() {
            return egress_log::show(&self, host, output);
        }
        match logs::saved_record(host, &self.slug) {
            Some(record) => self.show(logs::saved(host, &record)?),
            None => block_on(self.live(host)),
        }
    }

    /// Shows the output of a running bottle. If there is no bottle with this slug, the attempt to connect returns the
    /// error.
    async fn live(&self, host: &Host) -> Result<u8, CliError> {
        let mut signals = Signals::catch()?;
        let log = async {
            if self.follow {
                self.follow(host).await.map(|()| None)
            } else {
                self.buffered(host).await.map(Some)
            }
        };
        let log = tokio::select! {
            log = log => log?,
            number = signals.end() => return Ok(128u8.saturating_add(number)),
            gone = reader_gone() => return Err(gone),
        };
        log.map_or(Ok(exit::DONE), |log| self.show(log))
    }

    async fn buffered(&self, host: &Host) -> Result<AgentLog, CliError> {
        Ok(logs::live(host, &self.slug).await?)
    }

    /// Shows the output that the guest has buffered, and then new output.
    async fn follow(&self, host: &Host) -> Result<(), CliError> {
        let channel = connect(host, &self.slug).await?;
        let mut rendered = match self.raw {
            true => None,
            false => Some(Rendered::new(logs::terminal_size(&channel).await)),
        };
        // Here the guest counts the lines of `--tail`. Without `--follow`, this program counts them after rendering,
        // because a rendered screen has other lines than the raw output.
        let request = LogsRequest { tail: self.tail, follow: true };
        let mut stream = open_guest(&channel, GuestRequest::Logs(request)).await?;
        let lost = loop {
            match stream.next().await {
                Some(Event::Data { fd: STDOUT | STDERR, bytes }) => match &mut rendered {
                    Some(rendered) => print(rendered.feed(&bytes).into_iter())?,
                    None => write_out(&bytes)?,
                },
                Some(Event::Message(json)) => {
                    if let Ok(GuestEvent::Failed(failure)) = serde_json::from_slice(&json) {
                        return Err(logs::refused(failure, &self.slug).into());
                    }
                }
                Some(Event::Data { .. }) => {}
                Some(Event::Reset(why)) => break Some(keeper_lost(why).about(&self.slug)),
                Some(Event::End) | None => break None,
            }
        };
        if let Some(rendered) = rendered {
            print(rendered.finish().into_iter())?;
        }
        lost.map_or(Ok(()), Err)
    }

    /// Prints a complete log.
    fn show(&self, log: AgentLog) -> Result<u8, CliError> {
        if self.raw {
            write_out(&log.bytes)?;
        } else {
            print(lines(&log, self.tail).into_iter())?;
        }
        log.lost.map_or(Ok(exit::DONE), |lost| Err(lost.into()))
    }
}
