//! Prints data to standard output, and notes and errors to standard error.
//!
//! Colours and characters depend on the stream's capabilities ([`Styles`]). Lists are aligned columns on a
//! terminal, tab-separated lines in a pipe, and JSON with `--json`. When the reader closes the pipe, the
//! command ends without an error.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use bottle_lib::notice::Notice;
pub(crate) use bottle_lib::text::{counted, one_line};
pub(crate) use bottle_text::terminal::{inert, inert_json};
use indicatif::HumanCount;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::Serialize;

use super::error::{CliError, Kind};
use super::exit;
use super::global::Global;
use super::layout::Table;
pub(crate) use super::style::Styles;

/// The time between two reads of a followed file.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The output streams of a command and their format.
#[derive(Debug, Clone)]
pub(crate) struct Output {
    /// Print data, warnings and errors as JSON.
    pub(crate) json: bool,
    /// Print only data, warnings and errors.
    pub(crate) quiet: bool,
    /// How many times `--verbose` was given.
    pub(crate) verbose: u8,
    stdout: Styles,
    stderr: Styles,
}

impl Output {
    /// Creates the output from the flags and the environment.
    pub(crate) fn new(global: &Global) -> Self {
        Self {
            json: global.json,
            quiet: global.quiet,
            verbose: global.verbose,
            stdout: Styles::for_stream(&io::stdout(), global),
            stderr: Styles::for_stream(&io::stderr(), global),
        }
    }

    /// Creates the output that reports an error in the command line's syntax.
    pub(crate) fn for_errors(json: bool) -> Self {
        Self { json, quiet: true, verbose: 0, stdout: Styles::PLAIN, stderr: Styles::PLAIN }
    }

    /// The styles of standard output.
    pub(crate) fn styles(&self) -> Styles {
        self.stdout
    }

    /// The styles of standard error.
    pub(crate) fn err_styles(&self) -> Styles {
        self.stderr
    }

    /// Prints data: `text` on standard output, ended by a line break.
    pub(crate) fn print(&self, text: &str) -> Result<(), CliError> {
        let text = text.strip_suffix('\n').unwrap_or(text);
        write_all(&mut io::stdout().lock(), &format!("{}\n", self.stdout.displayable(text)))
    }

    /// Prints data as one indented JSON document.
    pub(crate) fn print_json<T: Serialize>(&self, value: &T) -> Result<(), CliError> {
        let text =
            serde_json::to_string_pretty(value).map_err(|error| CliError::cannot("write JSON", error))?;
        // JSON allows unescaped control characters from U+007F on in strings, so this function escapes them.
        write_all(&mut io::stdout().lock(), &format!("{}\n", inert_json(&text)))
    }

    /// Prints data that is too large for memory. `write` writes to a buffered standard output.
    pub(crate) fn print_with(
        &self,
        write: impl FnOnce(&mut dyn Write) -> Result<(), CliError>,
    ) -> Result<(), CliError> {
        let mut stdout = io::BufWriter::new(io::stdout().lock());
        write(&mut stdout)?;
        stdout.flush().map_err(write_failed)
    }

    /// With `--json`, prints a value as JSON. Otherwise calls `plain`, which prints the value as text.
    pub(crate) fn json_or<T: Serialize>(
        &self,
        value: &T,
        plain: impl FnOnce() -> Result<(), CliError>,
    ) -> Result<(), CliError> {
        if self.json { self.print_json(value) } else { plain() }
    }

    /// Prints values. With `--json`, prints a JSON array. Otherwise prints a table with one row per value.
    pub(crate) fn print_list<T: Serialize>(
        &self,
        values: &[T],
        heading: &[&str],
        name: usize,
        row: impl Fn(&T) -> Vec<String>,
    ) -> Result<(), CliError> {
        let table = || {
            let rows: Vec<_> = values.iter().map(row).collect();
            self.print_table(&Table { heading, name, rows: &rows })
        };
        self.json_or(&values, table)
    }

    /// Prints a table: columns on a terminal, tab-separated lines without a heading in a pipe. Prints nothing
    /// when the table is empty.
    pub(crate) fn print_table(&self, table: &Table<'_>) -> Result<(), CliError> {
        if table.rows.is_empty() {
            return Ok(());
        }
        if io::stdout().is_terminal() {
            self.print(&table.aligned(self.stdout))
        } else {
            self.print(&table.tab_separated())
        }
    }

    /// Prints a note, except with `--quiet` or `--json`.
    pub(crate) fn note(&self, text: impl fmt::Display) {
        if !self.quiet && !self.json {
            self.labelled("bottle:", 8, &one_line(&text.to_string()));
        }
    }

    /// Prints a notice of the library as a note or a warning.
    pub(crate) fn notice(&self, notice: Notice) {
        match notice {
            Notice::Note(text) => self.note(text),
            Notice::Warning(text) => self.warn(text),
        }
    }

    /// Prints a warning, even with `--quiet`.
    pub(crate) fn warn(&self, text: impl fmt::Display) {
        if self.json {
            let document = serde_json::json!({"warning": {"message": text.to_string()}});
            return self.write_error_lines(&inert_json(&document.to_string()));
        }
        self.labelled(&self.stderr.yellow("warning:"), 9, &one_line(&text.to_string()));
    }

    /// Prints warnings.
    pub(crate) fn warn_all(&self, warnings: impl IntoIterator<Item = String>) {
        warnings.into_iter().for_each(|warning| self.warn(warning));
    }

    /// Prints the error that ends a command.
    pub(crate) fn error(&self, error: &CliError) {
        if error.is_output_closed() {
            return;
        }
        if self.json {
            return self.write_error_lines(&inert_json(&error.json().to_string()));
        }
        if error.failure.kind == Kind::Interrupted {
            // An interruption by the user is not printed as an error.
            self.labelled("bottle:", 8, &inert(&error.failure.message));
        } else {
            let (message, causes) = match self.verbose {
                0 => (error.failure.message.as_str(), &[][..]),
                _ => (error.without_causes(), &error.failure.causes[..]),
            };
            self.labelled(&self.stderr.red("error:"), 7, &inert(message));
            for cause in causes {
                self.labelled("cause:", 7, &inert(cause));
            }
        }
        if let Some(hint) = &error.failure.hint {
            self.labelled(&self.stderr.cyan("hint:"), 6, &inert(hint));
        }
    }

    /// Prints a text after a label to standard error.
    fn labelled(&self, label: &str, indent: usize, text: &str) {
        self.write_error_lines(&format!("{label} {}", self.stderr.hanging(text, indent)));
    }

    /// Begins a new line on the terminal and erases everything below, because an agent may have left the cursor in the
    /// middle of its own output.
    pub(crate) fn clear_below(&self) {
        let erase = if std::env::var_os("TERM").is_some_and(|term| term == "dumb") { "" } else { "\x1b[J" };
        let _ = write_all(&mut io::stderr().lock(), &format!("\r\n{erase}"));
    }

    /// Prints lines to standard error unchanged. The caller must have escaped untrusted text with [`inert`].
    /// A write error is ignored, because no other stream could report it.
    pub(crate) fn write_error_lines(&self, text: &str) {
        let _ = write_all(&mut io::stderr().lock(), &format!("{}\n", self.stderr.displayable(text)));
    }
}

/// Formats a number: with grouped digits on a terminal, and with plain digits in a pipe.
pub(crate) fn number(number: u64) -> String {
    if io::stdout().is_terminal() { HumanCount(number).to_string() } else { number.to_string() }
}

/// Formats a number of times: `once`, or `3 times`.
pub(crate) fn times<N: fmt::Display + PartialEq + From<u8>>(count: N) -> String {
    if count == N::from(1) { "once".to_owned() } else { format!("{count} times") }
}

fn write_all(stream: &mut impl Write, text: &str) -> Result<(), CliError> {
    stream.write_all(text.as_bytes()).and_then(|()| stream.flush()).map_err(write_failed)
}

/// Waits for `patience`, or until the reader of standard output closes standard output. The system reports a closed
/// reader only for a pipe.
///
/// # Errors
/// Returns an error if the reader closed standard output.
pub(crate) fn wait_while_read(patience: Duration) -> Result<(), CliError> {
    let until = Instant::now() + patience;
    loop {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).unwrap_or_default();
        let stdout = io::stdout();
        let mut polled = [PollFd::new(&stdout, PollFlags::empty())];
        match poll(&mut polled, Some(&left)) {
            Err(Errno::INTR) => {}
            Ok(1..) if polled[0].revents().contains(PollFlags::ERR) => {
                return Err(write_failed(io::ErrorKind::BrokenPipe.into()));
            }
            // The poll failed or reported another condition. If the condition is an error, the next write reports it.
            Ok(1..) | Err(_) => {
                std::thread::sleep(until.saturating_duration_since(Instant::now()));
                return Ok(());
            }
            Ok(0) => return Ok(()),
        }
    }
}

/// Resolves when the reader of standard output has closed standard output. Returns the error for this case.
pub(crate) async fn reader_gone() -> CliError {
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        if let Err(error) = wait_while_read(Duration::ZERO) {
            return error;
        }
    }
}

/// Returns the error for a failed write to standard output.
pub(crate) fn write_failed(error: io::Error) -> CliError {
    if error.kind() == io::ErrorKind::BrokenPipe {
        CliError::output_closed()
    } else {
        CliError::cannot("write to standard output", error)
    }
}

/// Returns the error for a failed write of a program's output. The error has an exit code of `bottle`, not the exit
/// code of the program.
pub(crate) fn output_failed(error: io::Error) -> CliError {
    let error = write_failed(error);
    if error.is_output_closed() { error } else { error.exit(exit::BOTTLE_FAILED) }
}
