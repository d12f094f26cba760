//! Reads the output of a process, as `bottle process log` and `bottle service logs` do.

mod target;

use std::time::Duration;

use bottle_host::Host;
use bottle_instance::output_pieces::OutputPieces;
use bottle_lib::processes::{self, FOLLOW, PART, Processes};
use bottle_lib::report::ProcessOutput;
use bottle_protocol::session::guest::{STDERR, STDOUT};
use bottle_protocol::session::process::{ProcessState, ReadFrom};

pub(crate) use self::target::Target;
use crate::cli::time_limit::time_limit;
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::{Output, counted, reader_gone};
use crate::console::plain::Printer;
use crate::console::runtime::block_on;
use crate::console::signals::Signals;

/// Show the output of a process, or a part of it
///
/// The bottle keeps the last MiB of the output. The output is also saved on your machine, with secrets masked, so that it
/// can be read after the bottle ended. On a terminal, it has no escape sequences. A file or a program gets it as the process
/// wrote it. With `--json`, `next` is the position at which the next part begins, and `streams` says which bytes of the text
/// are standard error. Positions and `--tail` count both streams.
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
    /// Only its standard output
    #[arg(long, conflicts_with = "stderr")]
    stdout: bool,
    /// Only its standard error
    #[arg(long)]
    stderr: bool,
    /// Follow new output until the process ends
    #[arg(short, long)]
    follow: bool,
    /// If there is no output yet, wait for it at most so long: seconds, or with a unit (5m)
    #[arg(long, value_name = "TIME", value_parser = time_limit, conflicts_with = "follow")]
    wait: Option<Duration>,
    /// With `--json`: return at most so many bytes (at least 4). A part does not end inside a character
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
            let Target { slug, process } = &self.target;
            let read = Processes::new(host, slug).output(process).await?;
            let mut signals = Signals::catch()?;
            tokio::select! {
                done = self.show(&read, output) => done.map(|()| exit::DONE),
                number = signals.end() => Ok(128u8.saturating_add(number)),
                gone = reader_gone() => Err(gone),
            }
        })
    }

    /// Returns the pieces of the stream that the flags select.
    fn selected(&self, pieces: OutputPieces) -> OutputPieces {
        match (self.stdout, self.stderr) {
            (true, _) => pieces.only(STDOUT),
            (_, true) => pieces.only(STDERR),
            _ => pieces,
        }
    }

    async fn show(&self, process: &processes::Output, output: &Output) -> Result<(), CliError> {
        let mut from = match self.tail {
            Some(lines) => ReadFrom::LastLines(lines),
            None => ReadFrom::Position(self.from.unwrap_or(0)),
        };
        let mut wait = self.wait.unwrap_or_default();
        if output.json {
            let (pieces, read) = process.part(from, self.max_output, wait).await?;
            return output.print_json(&ProcessOutput::of(&self.selected(pieces), read));
        }
        let mut printer = Printer::new();
        // Without `--follow`, output that the process writes after the first read is not printed.
        let mut end = None;
        loop {
            let (pieces, read) = process.part(from, PART, wait).await?;
            if read.lost > 0 && self.from.is_some() {
                output.note(format!("{} of the output are not kept any more", counted(read.lost, "byte")));
            }
            printer.feed(&self.selected(pieces).bytes())?;
            from = ReadFrom::Position(read.next);
            wait = if self.follow { FOLLOW } else { Duration::ZERO };
            let end = if self.follow { read.end } else { *end.get_or_insert(read.end) };
            let ended = read.state != ProcessState::Running || !self.follow;
            if ended && read.next >= end {
                return printer.finish();
            }
        }
    }
}
