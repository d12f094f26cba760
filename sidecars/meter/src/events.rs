//! Server-sent events read as they come: the text of their `data` lines, and where each event ends.
//!
//! Nothing is held, so that no event is too long. Line ends, comments and the mark of the text's order are as
//! the HTML standard has them.

/// What of a stream of events is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Piece<'t> {
    /// More of the event's data.
    Data(&'t [u8]),
    /// The event is whole.
    End,
}

/// The field whose value is told.
const FIELD: &[u8] = b"data";
/// A stream may begin with it.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// Where in a line the reader is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    /// So many bytes of [`FIELD`] came, and nothing else.
    Name(usize),
    /// Behind the colon, where one space does not count.
    Value,
    /// In the value.
    Data,
    /// Somewhere in a line that is not told.
    Other,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Events {
    line: Line,
    /// The last byte was a CR, whose LF ends no further line.
    after_cr: bool,
    /// Bytes of [`MARK`] that came; none once anything else did.
    mark: Option<usize>,
    /// The event has data already.
    has_data: bool,
}

impl Default for Events {
    fn default() -> Self {
        Self { line: Line::Name(0), after_cr: false, mark: Some(0), has_data: false }
    }
}

impl Events {
    /// Reads the next piece.
    pub(crate) fn feed(&mut self, mut text: &[u8], told: &mut dyn FnMut(Piece<'_>)) {
        while let Some(&first) = text.first() {
            if self.is_mark(first) || self.is_second_half(first) {
                text = &text[1..];
                continue;
            }
            let used = match self.line {
                _ if first == b'\r' || first == b'\n' => {
                    self.end_line(told);
                    self.after_cr = first == b'\r';
                    1
                }
                Line::Name(at) => {
                    self.line = match FIELD.get(at) {
                        Some(expected) if *expected == first => Line::Name(at + 1),
                        None if first == b':' => self.begin_data(told),
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
                        told(Piece::Data(&text[..end]));
                    }
                    end
                }
            };
            text = &text[used..];
        }
    }

    fn is_mark(&mut self, byte: u8) -> bool {
        let Some(at) = self.mark else { return false };
        if MARK.get(at) == Some(&byte) {
            self.mark = Some(at + 1);
            return true;
        }
        self.mark = None;
        false
    }

    fn is_second_half(&mut self, byte: u8) -> bool {
        std::mem::take(&mut self.after_cr) && byte == b'\n'
    }

    fn begin_data(&mut self, told: &mut dyn FnMut(Piece<'_>)) -> Line {
        if self.has_data {
            told(Piece::Data(b"\n"));
        }
        self.has_data = true;
        Line::Value
    }

    fn end_line(&mut self, told: &mut dyn FnMut(Piece<'_>)) {
        let line = std::mem::replace(&mut self.line, Line::Name(0));
        if line == Line::Name(0) && std::mem::take(&mut self.has_data) {
            told(Piece::End);
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
    fn data_is_told_event_by_event() {
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
        fn the_same_wherever_the_borders_fall(text in "(data: |data:|data|\r\n|\r|\n|x|: |\u{feff}){0,40}", size in 1_usize..7) {
            let pieces: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
            prop_assert_eq!(read(&pieces), read(&[text.as_bytes()]));
        }
    }
}
