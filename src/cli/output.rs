//! What a command prints: data on standard output, words about it on standard error.
//!
//! Colours follow `--color`, `NO_COLOR` and whether the stream is a terminal. Lists are aligned columns on
//! a terminal, tab-separated lines in a pipe, and JSON with `--json`. A reader that went away ends the
//! command quietly.

use std::fmt::{self, Write as _};
use std::io::{self, IsTerminal, Write};

pub(crate) use bottle_contract::terminal::inert;
use clap::builder::styling::{AnsiColor, Style};
use dialoguer::console::measure_text_width;
use serde::Serialize;

use super::args::Global;
use super::error::{CliError, Kind};

/// Where a command's words go and in which form.
#[derive(Debug, Clone)]
pub(crate) struct Output {
    /// Data as JSON, errors too.
    pub(crate) json: bool,
    /// Only data and errors.
    pub(crate) quiet: bool,
    stdout: Ink,
    stderr: Ink,
}

/// Whether a stream shows colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ink(bool);

/// `--color`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum Color {
    // Plain comments: `--help` would list them.
    // On a terminal, unless `NO_COLOR` is set or the terminal knows no colours.
    #[default]
    Auto,
    Always,
    Never,
}

impl Output {
    /// As the flags and the environment want it.
    pub(crate) fn new(global: &Global) -> Self {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let ink = |terminal: bool| {
            Ink(match global.color {
                Color::Always => true,
                Color::Never => false,
                Color::Auto => terminal && !no_color && !dumb,
            })
        };
        Self {
            json: global.json,
            quiet: global.quiet,
            stdout: ink(io::stdout().is_terminal()),
            stderr: ink(io::stderr().is_terminal()),
        }
    }

    /// For errors of a command line that could not be read.
    pub(crate) fn json_only() -> Self {
        Self { json: true, quiet: true, stdout: Ink(false), stderr: Ink(false) }
    }

    /// Colours of standard output.
    pub(crate) fn ink(&self) -> Ink {
        self.stdout
    }

    /// Colours of standard error.
    pub(crate) fn err_ink(&self) -> Ink {
        self.stderr
    }

    /// Data: `text` on standard output, ended by a line break.
    pub(crate) fn print(&self, text: &str) -> Result<(), CliError> {
        let text = text.strip_suffix('\n').unwrap_or(text);
        write_all(&mut io::stdout().lock(), &format!("{text}\n"))
    }

    /// Data as JSON, one document, indented for a reader.
    pub(crate) fn print_json<T: Serialize>(&self, value: &T) -> Result<(), CliError> {
        let text = serde_json::to_string_pretty(value)
            .map_err(|error| CliError::failed(format!("cannot write JSON: {error}")))?;
        self.print(&text)
    }

    /// A list: columns on a terminal, tab-separated lines without the heading in a pipe, nothing when empty.
    pub(crate) fn print_table(&self, heading: &[&str], rows: &[Vec<String>]) -> Result<(), CliError> {
        if rows.is_empty() {
            return Ok(());
        }
        if io::stdout().is_terminal() {
            self.print(&aligned(heading, rows, self.stdout))
        } else {
            self.print(&tab_separated(rows))
        }
    }

    /// A word to the person, unless they asked for silence or for JSON alone.
    pub(crate) fn note(&self, text: impl fmt::Display) {
        if !self.quiet && !self.json {
            self.say(&format!("bottle: {}", one_line(&text.to_string())));
        }
    }

    /// Something the person should know even in silence.
    pub(crate) fn warn(&self, text: impl fmt::Display) {
        if self.json {
            return self.say(&serde_json::json!({"warning": {"message": text.to_string()}}).to_string());
        }
        self.say(&format!("{} {}", self.stderr.yellow("warning:"), one_line(&text.to_string())));
    }

    /// The error a command ends with.
    pub(crate) fn error(&self, error: &CliError) {
        if error.kind == Kind::OutputClosed {
            return;
        }
        if self.json {
            return self.say(&error.json().to_string());
        }
        let mut text = format!("{} {}", self.stderr.red("error:"), inert(&error.message));
        if let Some(hint) = &error.hint {
            let _ = write!(text, "\n{} {}", self.stderr.cyan("hint:"), inert(hint));
        }
        self.say(&text);
    }

    /// Lines on standard error, as they are: what comes from elsewhere has to be [`inert`] already. One that
    /// cannot be written has nobody to be told.
    pub(crate) fn say(&self, text: &str) {
        let _ = write_all(&mut io::stderr().lock(), &format!("{text}\n"));
    }
}

impl Ink {
    /// No colours.
    #[cfg(test)]
    pub(crate) const PLAIN: Self = Self(false);

    /// Whether there are colours.
    pub(crate) fn is_on(self) -> bool {
        self.0
    }

    fn paint(self, style: Style, text: &str) -> String {
        if self.0 { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.paint(Style::new().bold(), text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.paint(Style::new().dimmed(), text)
    }

    pub(crate) fn red(self, text: &str) -> String {
        self.paint(Style::new().bold().fg_color(Some(AnsiColor::Red.into())), text)
    }

    pub(crate) fn yellow(self, text: &str) -> String {
        self.paint(Style::new().fg_color(Some(AnsiColor::Yellow.into())), text)
    }

    pub(crate) fn green(self, text: &str) -> String {
        self.paint(Style::new().fg_color(Some(AnsiColor::Green.into())), text)
    }

    /// In the colour a person gave a bottle; as it is when that is no colour's name.
    pub(crate) fn named(self, color: Option<&str>, text: &str) -> String {
        let color = match color {
            Some("red") => AnsiColor::Red,
            Some("green") => AnsiColor::Green,
            Some("yellow") => AnsiColor::Yellow,
            Some("blue") => AnsiColor::Blue,
            Some("magenta") => AnsiColor::Magenta,
            Some("cyan") => AnsiColor::Cyan,
            _ => return text.to_owned(),
        };
        self.paint(Style::new().fg_color(Some(color.into())), text)
    }

    pub(crate) fn cyan(self, text: &str) -> String {
        self.paint(Style::new().fg_color(Some(AnsiColor::Cyan.into())), text)
    }
}

/// Foreign text that stays on the line it is part of: a file's name with a line break in it must not be able
/// to write a line of its own that looks like ours.
pub(crate) fn one_line(text: &str) -> String {
    inert(text).replace('\n', "\\n").replace('\t', "\\t")
}

/// Columns as wide as their widest cell; the last one ends where its text ends.
pub(crate) fn aligned(heading: &[&str], rows: &[Vec<String>], ink: Ink) -> String {
    let cells = |row: &[String]| row.iter().map(|cell| measure_text_width(cell)).collect::<Vec<_>>();
    let mut widths: Vec<usize> = heading.iter().map(|word| measure_text_width(word)).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(cells(row)) {
            *width = (*width).max(cell);
        }
    }
    let line = |row: &[String]| {
        let mut line = String::new();
        for (index, cell) in row.iter().enumerate() {
            line.push_str(cell);
            if index + 1 < row.len() {
                let room = widths.get(index).copied().unwrap_or(0).saturating_sub(measure_text_width(cell));
                line.push_str(&" ".repeat(room + 2));
            }
        }
        line.trim_end().to_owned()
    };
    let heading: Vec<String> = heading.iter().map(|word| ink.dim(word)).collect();
    let mut text = line(&heading);
    for row in rows {
        let _ = write!(text, "\n{}", line(row));
    }
    text
}

fn tab_separated(rows: &[Vec<String>]) -> String {
    let plain = |cell: &String| cell.replace(['\t', '\n'], " ");
    rows.iter().map(|row| row.iter().map(plain).collect::<Vec<_>>().join("\t")).collect::<Vec<_>>().join("\n")
}

fn write_all(stream: &mut impl Write, text: &str) -> Result<(), CliError> {
    stream.write_all(text.as_bytes()).and_then(|()| stream.flush()).map_err(closed)
}

/// Why standard output could not be written.
pub(crate) fn closed(error: io::Error) -> CliError {
    if error.kind() == io::ErrorKind::BrokenPipe {
        CliError::new(Kind::OutputClosed, "standard output was closed")
    } else {
        CliError::failed(format!("cannot write to standard output: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: &[&[&str]]) -> Vec<Vec<String>> {
        rows.iter().map(|row| row.iter().map(|cell| (*cell).to_owned()).collect()).collect()
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_in_cells_of_a_terminal() {
        let text = aligned(
            &["SLUG", "LABEL"],
            &rows(&[&["a", "short"], &["日本", ""], &["long-one", "x"]]),
            Ink::PLAIN,
        );
        assert_eq!(text, "SLUG      LABEL\na         short\n日本\nlong-one  x");
    }

    #[test]
    fn a_pipe_gets_one_line_a_row_whatever_a_cell_holds() {
        assert_eq!(tab_separated(&rows(&[&["a", "b\tc"], &["d\ne", "f"]])), "a\tb c\nd e\tf");
    }
}
