//! A blob in all the ways that it is looked at, and the lines of what is found in it.

use bottle_scan::{Finding, Report, Scanner, Stream};
use sha2::{Digest, Sha256};

use crate::packed::Packed;

/// The longest line that is looked at for a mark.
const LINE: usize = 64 << 10;

/// The mark by which an author says that a line is no secret.
const MARK: &[u8] = b"gitleaks:allow";

/// A blob as it is, without the zero bytes of wide characters, and unpacked.
pub(crate) struct Views<'s> {
    scanner: &'s Scanner,
    plain: Stream<&'s Scanner>,
    wide: Option<Stream<&'s Scanner>>,
    packed: Packed<'s>,
    narrow: Vec<u8>,
}

/// What was seen in it.
pub(crate) struct Seen {
    pub(crate) plain: Report,
    pub(crate) wide: Report,
    pub(crate) inside: Report,
    /// A file inside that holds secrets by its name.
    pub(crate) file: Option<String>,
    /// It becomes too much when it is unpacked.
    pub(crate) bomb: bool,
}

impl<'s> Views<'s> {
    pub(crate) fn new(scanner: &'s Scanner) -> Self {
        Self {
            scanner,
            plain: scanner.stream(),
            wide: None,
            packed: Packed::new(scanner),
            narrow: Vec::new(),
        }
    }

    pub(crate) fn feed(&mut self, piece: &[u8]) {
        self.plain.feed(piece);
        self.packed.feed(piece);
        if self.wide.is_none() && piece.contains(&0) {
            self.wide = Some(self.scanner.stream());
        }
        if let Some(wide) = &mut self.wide {
            self.narrow.clear();
            self.narrow.extend(piece.iter().filter(|byte| **byte != 0));
            wide.feed(&self.narrow);
        }
    }

    pub(crate) fn finish(self) -> Seen {
        let inside = self.packed.finish();
        Seen {
            plain: self.plain.finish(),
            wide: finished(self.wide),
            inside: Report { findings: inside.findings, more: inside.more },
            file: inside.file,
            bomb: inside.bomb,
        }
    }
}

fn finished(stream: Option<Stream<&Scanner>>) -> Report {
    stream.map_or(Report { findings: Vec::new(), more: false }, Stream::finish)
}

/// Finds the lines of findings while the blob passes again.
pub(crate) struct Lines {
    places: Vec<Placed>,
    at: u64,
    line: u64,
    begin: u64,
    text: Vec<u8>,
}

/// A finding on its way to its line.
pub(crate) struct Placed {
    start: u64,
    end: u64,
    hash: Sha256,
    /// The line in which it begins.
    pub(crate) line: Option<u64>,
    /// Whether a line that it touches says so.
    pub(crate) marked: bool,
}

impl Placed {
    /// What its value is known again by.
    pub(crate) fn value(&self) -> [u8; 32] {
        self.hash.clone().finalize().into()
    }
}

impl Lines {
    pub(crate) fn of<'f>(findings: impl IntoIterator<Item = &'f Finding>) -> Self {
        let placed = |finding: &Finding| {
            let (start, end) = (finding.span.start, finding.span.end);
            Placed { start, end, hash: Sha256::new(), line: None, marked: false }
        };
        let places = findings.into_iter().map(placed).collect();
        Self { places, at: 0, line: 1, begin: 0, text: Vec::new() }
    }

    pub(crate) fn feed(&mut self, piece: &[u8]) {
        for &byte in piece {
            for place in self.places.iter_mut().filter(|place| place.start <= self.at && self.at < place.end)
            {
                place.line.get_or_insert(self.line);
                place.hash.update([byte]);
            }
            self.at += 1;
            if byte == b'\n' {
                self.settle();
                (self.line, self.begin) = (self.line + 1, self.at);
                self.text.clear();
            } else if self.text.len() < LINE {
                self.text.push(byte);
            }
        }
    }

    /// Each in the order given.
    pub(crate) fn finish(mut self) -> Vec<Placed> {
        self.settle();
        self.places
    }

    /// A line has ended: what stands in it is marked by it.
    fn settle(&mut self) {
        if self.text.windows(MARK.len()).any(|window| window.eq_ignore_ascii_case(MARK)) {
            let in_line = |place: &&mut Placed| place.start < self.at && self.begin < place.end;
            self.places.iter_mut().filter(in_line).for_each(|place| place.marked = true);
        }
    }
}
