//! A streaming reader of server-sent events. The reader reports the text of `data` lines and the end of each
//! event.
//!
//! The reader buffers nothing, so events may have any length. The reader treats line ends, comments and the
//! byte order mark as the HTML standard requires.

/// A reported part of an event stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Piece<'t> {
    /// A part of the current event's data.
    Data(&'t [u8]),
    /// The end of the current event.
    End,
}

/// The name of the event field that the reader reports.
const FIELD: &[u8] = b"data";
/// The byte order mark. A stream may begin with it.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The position within the current line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    /// The line so far consists of this many bytes of [`FIELD`].
    Name(usize),
    /// Directly after the colon. A space at this position is ignored.
    Value,
    /// Inside a reported value.
    Data,
    /// Inside a line that is not reported.
    Other,
}

/// A streaming reader of server-sent events.
#[derive(Debug)]
pub(crate) struct Events {
    line: Line,
    /// Whether the last byte was a CR. An LF directly after a CR does not end another line.
    after_cr: bool,
    /// How many bytes of [`BYTE_ORDER_MARK`] were read so far. `None` after any other byte.
    bom_bytes: Option<usize>,
    /// Whether the current event already has data.
    has_data: bool,
}

impl Default for Events {
    fn default() -> Self {
        Self { line: Line::Name(0), after_cr: false, bom_bytes: Some(0), has_data: false }
    }
}

impl Events {
    /// Reads the next piece of the stream.
    pub(crate) fn feed(&mut self, mut text: &[u8], report: &mut dyn FnMut(Piece<'_>)) {
        while let Some(&first) = text.first() {
            if self.is_bom(first) || self.completes_crlf(first) {
                text = &text[1..];
                continue;
            }
            let used = match self.line {
                _ if first == b'\r' || first == b'\n' => {
                    self.end_line(report);
                    self.after_cr = first == b'\r';
                    1
                }
                Line::Name(at) => {
                    self.line = match FIELD.get(at) {
                        Some(expected) if *expected == first => Line::Name(at + 1),
                        None if first == b':' => self.begin_data(report),
                        _ => Line::Other,
                    };
                    1
                }
                Line::Value => {
                    self.line = Line::Data;
                    usize::from(first == b' ')
                }
                Line::Data | Line::Other => {
                    let end = memchr::memchr2(b'\r', b'\n', text).unwrap_or(text.len());
                    if self.line == Line::Data {
                        report(Piece::Data(&text[..end]));
                    }
                    end
                }
            };
            text = &text[used..];
        }
    }

    fn is_bom(&mut self, byte: u8) -> bool {
        let Some(at) = self.bom_bytes else { return false };
        if BYTE_ORDER_MARK.get(at) == Some(&byte) {
            self.bom_bytes = Some(at + 1);
            return true;
        }
        self.bom_bytes = None;
        false
    }

    fn completes_crlf(&mut self, byte: u8) -> bool {
        std::mem::take(&mut self.after_cr) && byte == b'\n'
    }

    fn begin_data(&mut self, report: &mut dyn FnMut(Piece<'_>)) -> Line {
        if self.has_data {
            report(Piece::Data(b"\n"));
        }
        self.has_data = true;
        Line::Value
    }

    fn end_line(&mut self, report: &mut dyn FnMut(Piece<'_>)) {
        let line = std::mem::replace(&mut self.line, Line::Name(0));
        if line == Line::Name(0) && std::mem::take(&mut self.has_data) {
            report(Piece::End);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(pieces: &[&[u8]]) -> String {
        let mut events = Events::default();
        let mut all = Vec::new();
        for piece in pieces {
            events.feed(piece, &mut |piece| match piece {
                Piece::Data(text) => all.extend_from_slice(text),
                Piece::End => all.extend_from_slice(b"|"),
            });
        }
        String::from_utf8_lossy(&all).into_owned()
    }

    #[test]
    fn reports_data_by_event() {
        for (text, data) in [
            ("event: x\ndata: one\n\ndata: two\n\n", "one|two|"),
            ("data:one\r\ndata: two\r\n\r\n", "one\ntwo|"),
            ("data: one\r\rdata: two\r\r", "one|two|"),
            ("\u{feff}data: one\n\n", "one|"),
            (": a comment\n\nid: 7\n\ndata\n\ndatax: no\n\nda: no\n\ndata:  one\n\n", " one|"),
            ("data: cut", "cut"),
            ("data:\n\n", "|"),
        ] {
            assert_eq!(read(&[text.as_bytes()]), data, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn splitting_the_input_makes_no_difference(text in "(data: |data:|data|\r\n|\r|\n|x|: |\u{feff}){0,40}", size in 1_usize..7) {
            let pieces: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
            prop_assert_eq!(read(&pieces), read(&[text.as_bytes()]));
        }
    }
}
