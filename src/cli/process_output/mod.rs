//! Reads the output of a process, as `bottle process log` and `bottle service logs` do.
//!
//! - `saved`: the processes of a bottle that ended · `target`: the arguments that name a process

mod saved;
mod target;

use std::time::Duration;

use bottle_channel::{Channel, Event};
use bottle_contract::session::guest::{GuestEvent, GuestRequest, STDERR, STDOUT};
use bottle_contract::session::process::{OutputRead, ProcessState, ReadFrom, ReadOutput};
use bottle_host::Host;
use bottle_lib::processes::failed;
use bottle_lib::report::ProcessOutput;

pub(crate) use self::saved::Source;
pub(crate) use self::target::Target;
use crate::cli::connect::{keeper_lost, open_guest, unexpected_answer};
use crate::cli::error::CliError;
use crate::cli::exit;
use crate::cli::output::{Output, counted, reader_gone};
use crate::cli::plain::Printer;
use crate::cli::runtime::block_on;
use crate::cli::session::Signals;
use crate::cli::time_limit::time_limit;

/// The maximum number of bytes of one part.
pub(crate) const PART: u32 = 256 << 10;

/// How long one request waits for more output.
pub(crate) const FOLLOW: Duration = Duration::from_secs(30);

/// Show the output of a process, or a part of it
///
/// The bottle keeps the last MiB of the output. The output is also saved on your machine, with secrets masked, so that it
/// can be read after the bottle ended. As text, it has no escape sequences. With `--json`, `next` is the position at which
/// the next part begins.
#[derive(Debug, clap::Args)]
pub(crate) struct Log {
    #[command(flatten)]
    target: Target,
    /// Begin at this position, counted in bytes from the beginning of the output
    #[arg(long, value_name = "POSITION", conflicts_with = "tail")]
    from: Option<u64>,
    /// Begin so many lines before the end
    #[arg(long, value_name = "LINES")]
    tail: Option<u64>,
    /// Follow new output until the process ends
    #[arg(short, long)]
    follow: bool,
    /// If there is no output yet, wait for it at most so long: seconds, or with a unit (5m)
    #[arg(long, value_name = "TIME", value_parser = time_limit, conflicts_with = "follow")]
    wait: Option<Duration>,
    /// With `--json`: return at most so many bytes
    #[arg(long, value_name = "BYTES", default_value_t = 50_000)]
    max_output: u32,
}

impl Log {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        if output.json && self.follow {
            let error = CliError::usage("`--follow` has no end, and `--json` prints one document");
            return Err(error.about("--follow").hint("repeat `--from NEXT --wait TIME`"));
        }
        block_on(async {
            let source = Source::of(host, &self.target.slug).await?;
            let mut signals = Signals::catch()?;
            tokio::select! {
                done = self.show(&source, output) => done.map(|()| exit::DONE),
                number = signals.end() => Ok(128u8.saturating_add(number)),
                gone = reader_gone() => Err(gone),
            }
        })
    }

    async fn show(&self, source: &Source, output: &Output) -> Result<(), CliError> {
        let mut from = match self.tail {
            Some(lines) => ReadFrom::LastLines(lines),
            None => ReadFrom::Position(self.from.unwrap_or(0)),
        };
        let mut wait = self.wait.unwrap_or_default();
        if output.json {
            let (bytes, read) = self.part(source, from, self.max_output, wait).await?;
            let OutputRead { from, next, lost, end, state } = read;
            let text = String::from_utf8_lossy(&bytes).into_owned();
            return output.print_json(&ProcessOutput { text, from, next, end, lost, state: state.into() });
        }
        let mut printer = Printer::default();
        // Without `--follow`, what a busy process adds meanwhile is left out.
        let mut end = None;
        loop {
            let (bytes, read) = self.part(source, from, PART, wait).await?;
            if read.lost > 0 && self.from.is_some() {
                output.note(format!("{} of the output are not kept any more", counted(read.lost, "byte")));
            }
            printer.feed(&bytes)?;
            from = ReadFrom::Position(read.next);
            wait = if self.follow { FOLLOW } else { Duration::ZERO };
            let end = if self.follow { read.end } else { *end.get_or_insert(read.end) };
            let ended = read.state != ProcessState::Running || !self.follow;
            if ended && read.next >= end {
                return printer.finish();
            }
        }
    }

    async fn part(
        &self,
        source: &Source,
        from: ReadFrom,
        max: u32,
        wait: Duration,
    ) -> Result<(Vec<u8>, OutputRead), CliError> {
        match source {
            Source::Running(channel) => part(channel, &self.target, from, max, wait).await,
            Source::Ended(saved) => saved.part(&self.target, from, max),
        }
    }
}

/// Reads a part of the output, at most `max` bytes. Waits for output at most `wait` if there is none yet.
pub(crate) async fn part(
    channel: &Channel,
    target: &Target,
    from: ReadFrom,
    max: u32,
    wait: Duration,
) -> Result<(Vec<u8>, OutputRead), CliError> {
    let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    let request = ReadOutput { process: target.process.clone(), from, max, wait_ms, follow: false };
    let mut stream = open_guest(channel, GuestRequest::ReadOutput(request)).await?;
    let mut bytes = Vec::new();
    loop {
        match stream.next().await {
            Some(Event::Data { fd: STDOUT | STDERR, bytes: part }) => bytes.extend_from_slice(&part),
            Some(Event::Data { .. }) => {}
            Some(Event::Message(json)) => {
                return match serde_json::from_slice(&json) {
                    Ok(GuestEvent::Read(read)) => Ok((bytes, read)),
                    Ok(GuestEvent::Failed(failure)) => Err(failed(failure, &target.slug).into()),
                    _ => Err(unexpected_answer()),
                };
            }
            Some(Event::Reset(why)) => return Err(keeper_lost(why)),
            Some(Event::End) | None => return Err(unexpected_answer()),
        }
    }
}
