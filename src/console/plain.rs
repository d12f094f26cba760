//! Converts bytes written to a terminal to plain lines of text.

use std::io::{self, IsTerminal, Write};

use bottle_protocol::session::process::unfinished_character;
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
    let mut parts = stripped.split('\r');
    let first = parts.clone().next().unwrap_or_default();
    inert(parts.rfind(|part| !part.trim().is_empty()).unwrap_or(first))
}

/// Prints bytes of a bottle to standard output. A file or a program gets exactly these bytes. A terminal gets plain text
/// with the same line breaks.
pub(crate) struct Printer {
    /// The text for a terminal. `None` if standard output is not a terminal.
    terminal: Option<PlainText>,
}

impl Printer {
    /// Creates a printer for the standard output of this process.
    pub(crate) fn new() -> Self {
        Self { terminal: io::stdout().is_terminal().then(PlainText::default) }
    }

    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        match &mut self.terminal {
            Some(plain) => write_out(plain.feed(bytes).as_bytes()),
            None => write_out(bytes),
        }
    }

    pub(crate) fn finish(&mut self) -> Result<(), CliError> {
        self.terminal.as_mut().map_or(Ok(()), |plain| write_out(plain.finish().as_bytes()))
    }
}

/// Converts a byte stream to plain text with the same line breaks.
#[derive(Debug, Default)]
struct PlainText {
    /// The line whose end has not arrived yet.
    line: Vec<u8>,
}

impl PlainText {
    /// Returns the text of the lines that this chunk completes. A line of more than [`LINE_MAX`] bytes is returned in
    /// pieces, each of which ends at the end of a character.
    fn feed(&mut self, bytes: &[u8]) -> String {
        let mut shown = String::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if let Some(line) = self.line.strip_suffix(b"\n") {
                shown.push_str(&text(line));
                shown.push('\n');
                self.line.clear();
            } else if self.line.len() >= LINE_MAX {
                let whole = self.line.len() - unfinished_character(&self.line);
                let rest = self.line.split_off(whole);
                shown.push_str(&text(&std::mem::replace(&mut self.line, rest)));
            }
        }
        shown
    }

    /// Returns the text of the last line if it does not end in a line break.
    fn finish(&mut self) -> String {
        text(&std::mem::take(&mut self.line))
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

    #[test]
    fn plain_text_keeps_the_line_breaks() {
        for (chunks, expected) in [
            (&[&b""[..]][..], ""),
            (&[b"no line break"], "no line break"),
            (&[b"a\n", b"\n", b" \n\tb  "], "a\n\n \n\tb  "),
            (&[b"ha", b"lf\nan", b"d"], "half\nand"),
            (&[b"\xc3", b"\xa9\xff\xc3"], "é\u{fffd}\u{fffd}"),
            (&[b"10%\r55%\r100%\r\n", b"\x1b[31mred\x1b[m\x07\n"], "100%\nred\\u{7}\n"),
        ] {
            let mut plain = PlainText::default();
            let mut text: String = chunks.iter().map(|chunk| plain.feed(chunk)).collect();
            text += &plain.finish();
            assert_eq!(text, expected, "{chunks:?}");
        }
    }

    #[test]
    fn a_long_line_is_cut_between_characters_and_gets_no_line_break() {
        for shift in 0..3 {
            let line = format!("{}{}\nend", &"ab"[..shift], "€".repeat(LINE_MAX + 100));
            for size in [1000, LINE_MAX - 1, usize::MAX] {
                let mut plain = PlainText::default();
                let mut text: String = line.as_bytes().chunks(size).map(|chunk| plain.feed(chunk)).collect();
                text += &plain.finish();
                assert!(text == line, "shifted by {shift}, in chunks of {size}");
            }
        }
    }

    proptest! {
        #[test]
        fn plain_text_does_not_depend_on_the_chunks(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            size in 1_usize..50,
        ) {
            let read = |size| {
                let mut plain = PlainText::default();
                let mut text: String = bytes.chunks(size).map(|chunk| plain.feed(chunk)).collect();
                text += &plain.finish();
                text
            };
            prop_assert_eq!(read(size), read(200));
            prop_assert!(read(size).chars().all(|c| c == '\n' || c == '\t' || !c.is_control()));
        }

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
