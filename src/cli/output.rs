//! What a command prints: data on standard output, words about it on standard error.
//!
//! Colours and letters follow the stream ([`Styles`]). Lists are aligned columns on a terminal, tab-separated lines
//! in a pipe, and JSON with `--json`. A reader that went away ends the
//! command quietly.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

pub(crate) use bottle_contract::terminal::inert;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::Serialize;

use super::args::Global;
use super::error::{CliError, Kind};
use super::exit;
use super::layout::Table;
pub(crate) use super::style::Styles;

/// Between two looks at something that is followed.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Where a command's words go and in which form.
#[derive(Debug, Clone)]
pub(crate) struct Output {
    /// Data as JSON, errors too.
    pub(crate) json: bool,
    /// Only data and errors.
    pub(crate) quiet: bool,
    stdout: Styles,
    stderr: Styles,
}

impl Output {
    /// As the flags and the environment want it.
    pub(crate) fn new(global: &Global) -> Self {
        Self {
            json: global.json,
            quiet: global.quiet,
            stdout: Styles::of(&io::stdout(), global),
            stderr: Styles::of(&io::stderr(), global),
        }
    }

    /// For errors of a command line that was not read to its end.
    pub(crate) fn for_errors(json: bool) -> Self {
        Self { json, quiet: true, stdout: Styles::PLAIN, stderr: Styles::PLAIN }
    }

    /// Colours of standard output.
    pub(crate) fn styles(&self) -> Styles {
        self.stdout
    }

    /// Colours of standard error.
    pub(crate) fn err_styles(&self) -> Styles {
        self.stderr
    }

    /// Data: `text` on standard output, ended by a line break.
    pub(crate) fn print(&self, text: &str) -> Result<(), CliError> {
        let text = text.strip_suffix('\n').unwrap_or(text);
        write_all(&mut io::stdout().lock(), &format!("{}\n", self.stdout.letters(text)))
    }

    /// Data as JSON, one document, indented for a reader.
    pub(crate) fn print_json<T: Serialize>(&self, value: &T) -> Result<(), CliError> {
        let text = serde_json::to_string_pretty(value)
            .map_err(|error| CliError::failed(format!("cannot write JSON: {error}")))?;
        write_all(&mut io::stdout().lock(), &format!("{text}\n"))
    }

    /// A list: columns on a terminal, tab-separated lines without the heading in a pipe, nothing when empty.
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

    /// A word to the user, unless they asked for silence or for JSON alone.
    pub(crate) fn note(&self, text: impl fmt::Display) {
        if !self.quiet && !self.json {
            self.labelled("bottle:", 8, &one_line(&text.to_string()));
        }
    }

    /// Something the user should know even in silence.
    pub(crate) fn warn(&self, text: impl fmt::Display) {
        if self.json {
            return self.say(&serde_json::json!({"warning": {"message": text.to_string()}}).to_string());
        }
        self.labelled(&self.stderr.yellow("warning:"), 9, &one_line(&text.to_string()));
    }

    /// The error a command ends with.
    pub(crate) fn error(&self, error: &CliError) {
        if error.kind == Kind::OutputClosed {
            return;
        }
        if self.json {
            return self.say(&error.json().to_string());
        }
        if error.kind == Kind::Interrupted {
            // What the user wanted is no error.
            self.labelled("bottle:", 8, &inert(&error.message));
        } else {
            self.labelled(&self.stderr.red("error:"), 7, &inert(&error.message));
        }
        if let Some(hint) = &error.hint {
            self.labelled(&self.stderr.cyan("hint:"), 6, &inert(hint));
        }
    }

    /// A sentence behind a word that says what it is.
    fn labelled(&self, label: &str, indent: usize, text: &str) {
        self.say(&format!("{label} {}", self.stderr.hanging(text, indent)));
    }

    /// Lines on standard error, as they are: what comes from elsewhere has to be [`inert`] already. One that
    /// cannot be written has nobody to be told.
    pub(crate) fn say(&self, text: &str) {
        let _ = write_all(&mut io::stderr().lock(), &format!("{}\n", self.stderr.letters(text)));
    }
}

/// Foreign text that stays on the line it is part of: a file's name with a line break in it must not be able
/// to write a line of its own that looks like ours.
pub(crate) fn one_line(text: &str) -> String {
    inert(text).replace('\n', "\\n").replace('\t', "\\t")
}

fn write_all(stream: &mut impl Write, text: &str) -> Result<(), CliError> {
    stream.write_all(text.as_bytes()).and_then(|()| stream.flush()).map_err(closed)
}

/// Waits this long, or less: until nobody reads standard output any more, which is answered with an error. Only a
/// pipe tells it.
///
/// # Errors
/// When the reader is gone.
pub(crate) fn wait_while_read(patience: Duration) -> Result<(), CliError> {
    let until = Instant::now() + patience;
    loop {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).unwrap_or_default();
        let stdout = io::stdout();
        let mut polled = [PollFd::new(&stdout, PollFlags::empty())];
        match poll(&mut polled, Some(&left)) {
            Err(Errno::INTR) => {}
            Ok(1..) if polled[0].revents().contains(PollFlags::ERR) => {
                return Err(closed(io::ErrorKind::BrokenPipe.into()));
            }
            // Something else is the matter with it, and the next write says what.
            Ok(1..) | Err(_) => {
                std::thread::sleep(until.saturating_duration_since(Instant::now()));
                return Ok(());
            }
            Ok(0) => return Ok(()),
        }
    }
}

/// Resolves when nobody reads standard output any more.
pub(crate) async fn unread() -> CliError {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        if let Err(error) = wait_while_read(Duration::ZERO) {
            return error;
        }
    }
}

/// Why standard output could not be written.
pub(crate) fn closed(error: io::Error) -> CliError {
    if error.kind() == io::ErrorKind::BrokenPipe {
        CliError::new(Kind::OutputClosed, "standard output was closed")
    } else {
        CliError::failed(format!("cannot write to standard output: {error}"))
    }
}

/// The same of a program's output, in place of whose own code ours is passed on.
pub(crate) fn cut_off(error: io::Error) -> CliError {
    let error = closed(error);
    if error.kind == Kind::OutputClosed { error } else { error.exit(exit::BOTTLE_FAILED) }
}
