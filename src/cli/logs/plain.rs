//! Bytes that a program wrote to a terminal → lines of text that do nothing.

use dialoguer::console::strip_ansi_codes;

use crate::cli::output::inert;

/// The longest line; a longer one is cut into several.
const LINE_MAX: usize = 64 * 1024;

/// Lines out of pieces.
#[derive(Debug, Default)]
pub(super) struct Plain {
    line: Vec<u8>,
}

impl Plain {
    /// The lines that this piece completes.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Vec<String> {
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

    /// The last line, when it had no end.
    pub(super) fn finish(&mut self) -> Option<String> {
        (!self.line.is_empty()).then(|| text(&std::mem::take(&mut self.line)))
    }
}

/// What a user last saw in this line: without escape sequences, and of what overwrote itself only the end.
fn text(line: &[u8]) -> String {
    let decoded = String::from_utf8_lossy(line);
    let stripped = strip_ansi_codes(&decoded);
    let seen = stripped.split('\r').rfind(|part| !part.trim().is_empty()).unwrap_or_default();
    inert(seen)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn colours_titles_and_progress_leave_only_their_text() {
        let mut plain = Plain::default();
        let lines = plain.feed(b"\x1b[1;31mred\x1b[0m\r\n\x1b]0;title\x07named\n10%\r55%\r100%\r\nun");
        assert_eq!(lines, ["red", "named", "100%"]);
        assert_eq!(plain.feed(b"finished"), [] as [String; 0]);
        assert_eq!(plain.finish().as_deref(), Some("unfinished"));
        assert_eq!(plain.finish(), None);
    }

    proptest! {
        #[test]
        fn nothing_but_text_comes_out(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let mut plain = Plain::default();
            let mut lines = plain.feed(&bytes);
            lines.extend(plain.finish());
            for line in lines {
                prop_assert!(!line.contains(|c: char| c.is_control() && c != '\t'), "{line:?}");
            }
        }
    }
}
