//! `bottle fs read` and `bottle fs write`: print a file, and write standard input to a file.

use bottle_host::Host;
use bottle_lib::report::WrittenFile;
use bottle_protocol::session::files::{self, FileEvent, FilePath, FileRequest, READ_MAX};

use super::{Client, Target};
use crate::cli::connect::unexpected_answer;
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::{Output, counted};
use crate::console::plain::Printer;

/// The number of bytes that `--json` reads if `--max` is not given.
const JSON_MAX: u64 = 256 << 10;

/// The maximum number of bytes that `--json` can read. There is a maximum because the JSON document is in memory.
const JSON_READ_MAX: u64 = 64 << 20;

/// Print a file, or a part of it
///
/// On a terminal, the text has no escape sequences. With `--json`, `next` is the position at which the next part begins,
/// and bytes that are not text are in Base64.
#[derive(Debug, clap::Args)]
pub(crate) struct Read {
    #[command(flatten)]
    target: Target,
    /// Begin at this position, counted in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    offset: u64,
    /// Print at most so many bytes [default with --json: 262144]
    #[arg(long, value_name = "BYTES")]
    max: Option<u64>,
}

impl Read {
    pub(super) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let Self { target, offset, max } = &self;
        let client = Client::new(host, &target.slug);
        let path = FilePath::from(&target.path);
        let request =
            |max| FileRequest::Read(files::Read { path: path.clone(), offset: *offset, max, redact: false });
        if output.json {
            let request = request(max.unwrap_or(JSON_MAX).min(JSON_READ_MAX));
            output.print_json(&client.document(request)?)?;
            return Ok(exit::DONE);
        }
        let request = request(max.unwrap_or(READ_MAX));
        let mut printer = Printer::new();
        let event = client.run(request, tokio::io::empty(), |bytes| printer.feed(&bytes))?;
        printer.finish()?;
        let FileEvent::Read { next, size } = event else { return Err(unexpected_answer()) };
        if next < size && max.is_none() {
            let rest = counted(size - next, "byte");
            output.warn(format!("{rest} of the file follow; `--offset {next}` continues"));
        }
        Ok(exit::DONE)
    }
}

/// Write standard input to a file, with its directories
///
/// The file keeps its mode. A program that reads it meanwhile sees the old content or the new one. If the input breaks
/// off, the file stays as it was.
#[derive(Debug, clap::Args)]
pub(crate) struct Write {
    #[command(flatten)]
    target: Target,
    /// Fail if the file exists
    #[arg(long)]
    new: bool,
}

impl Write {
    pub(super) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let Target { slug, path } = &self.target;
        let request = files::Write { path: FilePath::from(path), new: self.new };
        let event = Client::new(host, slug).ask_with_input(FileRequest::Write(request), output)?;
        let FileEvent::Written { bytes, created } = event else { return Err(unexpected_answer()) };
        output.json_or(&WrittenFile { size_bytes: bytes, created }, || {
            output.note(format!("wrote {}", counted(bytes, "byte")));
            Ok(())
        })?;
        Ok(exit::DONE)
    }
}
