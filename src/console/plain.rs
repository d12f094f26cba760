//! Converts bytes written to a terminal to plain lines of text.

use std::io::{self, Write};

use dialoguer::console::strip_ansi_codes;

use crate::console::error::CliError;
use crate::console::output::{inert, write_failed};

/// The maximum length of a line in bytes. A longer line is split.
const LINE_MAX: usize = 64 * 1024;

/// Splits a byte stream into lines.
#[derive(Debug, Default)]
pub(crate) struct Plain {
    line: Vec<u8>,
}

impl Plain {
    /// Returns the lines that this chunk completes.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut lines = Vec::new();
        for &byte in bytes {
            if byte == b'\n' || self.line.len() >= LINE_MAX {
                lines.push(text(&std::mem::take(&mut self.line)));
            }
            if byte != b'\n' {
                self.line.push(byte);
            }
        }
        lines
    }

    /// Removes and returns the bytes of the incomplete line.
    pub(crate) fn take_begun(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.line)
    }

    /// Returns the last line if it does not end in a line break.
    pub(crate) fn finish(&mut self) -> Option<String> {
        (!self.line.is_empty()).then(|| text(&std::mem::take(&mut self.line)))
    }
}

/// Returns the text that a terminal would finally show for this line. Removes escape sequences. If carriage returns
/// divide the line, returns the last part that is not blank.
fn text(line: &[u8]) -> String {
    let decoded = String::from_utf8_lossy(line);
    let stripped = strip_ansi_codes(&decoded);
    let seen = stripped.split('\r').rfind(|part| !part.trim().is_empty()).unwrap_or_default();
    inert(seen)
}

/// Prints bytes as plain lines.
#[derive(Default)]
pub(crate) struct Printer {
    plain: Plain,
}

impl Printer {
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        print(self.plain.feed(bytes).into_iter())
    }

    pub(crate) fn finish(&mut self) -> Result<(), CliError> {
        print(self.plain.finish().into_iter())
    }
}

/// Prints lines to standard output.
pub(crate) fn print(lines: impl Iterator<Item = String>) -> Result<(), CliError> {
    let text: String = lines.map(|line| line + "\n").collect();
    write_out(text.as_bytes())
}

/// Writes bytes to the standard output.
pub(crate) fn write_out(bytes: &[u8]) -> Result<(), CliError> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(write_failed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn strips_colours_titles_and_progress() {
        let mut plain = Plain::default();
        let lines = plain.feed(b"\x1b[1;31mred\x1b[0m\r\n\x1b]0;title\x07named\n10%\r55%\r100%\r\nun");
        assert_eq!(lines, ["red", "named", "100%"]);
        assert_eq!(plain.feed(b"finished"), [] as [String; 0]);
        assert_eq!(plain.finish().as_deref(), Some("unfinished"));
        assert_eq!(plain.finish(), None);
    }

    proptest! {
        #[test]
        fn output_has_no_control_characters(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let mut plain = Plain::default();
            let mut lines = plain.feed(&bytes);
            lines.extend(plain.finish());
            for line in lines {
                prop_assert!(!line.contains(|c: char| c.is_control() && c != '\t'), "{line:?}");
            }
        }
    }
}
