//! Compressed files inside a text, wherever they begin: uploads, parts of a form, entries of an archive.
//!
//! Found by the marks with which they begin. A mark that begins nothing is text like any other; what does
//! not open (a password, a rare method) is looked at as it is, so that entries' names are seen in any case.

use std::sync::Arc;

use bottle_scan::{Finding, Scanner, Severity, Stream};

use super::decode::{Coding, Decoder, gzip_head};
use super::unreadable::Unreadable;

/// Files within files. A layer of an image is a gzip in a tar in a gzip.
const DEPTH: usize = 3;
/// Files in one text. What has more is refused: each costs more than its bytes.
const FILES: usize = 1 << 16;
/// Bytes that a mark may be long, less one.
const LAP: usize = 3;
/// The longest head between a mark and what is compressed.
const HEAD: usize = 192 << 10;

const GZIP: &[u8] = b"\x1f\x8b\x08";
const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd";
const ZIP: &[u8] = b"PK\x03\x04";

/// Looks for files in a text and into them.
pub(super) struct Nested {
    scanner: Arc<Scanner>,
    depth: usize,
    files: usize,
    state: State,
    /// The last bytes of the text so far, where a mark may begin.
    lap: Vec<u8>,
    found: Vec<Finding>,
}

enum State {
    Searching,
    /// A mark was found; its file's head is not all there yet.
    Opening {
        held: Vec<u8>,
    },
    Inside(Box<File>),
}

struct File {
    decoder: Decoder,
    text: Stream<Arc<Scanner>>,
    nested: Nested,
}

/// What a head says.
enum Opened {
    /// More of it has to come.
    Not,
    /// It begins no file that can be opened.
    Nothing,
    /// So many bytes of head.
    File(Box<Decoder>, usize),
}

impl Nested {
    pub(super) fn in_scanner(scanner: &Arc<Scanner>) -> Self {
        Self::at(scanner, 0)
    }

    fn at(scanner: &Arc<Scanner>, depth: usize) -> Self {
        Self {
            scanner: Arc::clone(scanner),
            depth,
            files: 0,
            state: State::Searching,
            lap: Vec::new(),
            found: Vec::new(),
        }
    }

    pub(super) fn scanner(&self) -> &Arc<Scanner> {
        &self.scanner
    }

    /// Takes the next piece of the text.
    pub(super) fn feed(&mut self, piece: &[u8]) -> Result<(), Unreadable> {
        if self.depth >= DEPTH {
            return Ok(());
        }
        let mut again = self.go_on(piece)?;
        // What was held for a head that is none is looked at again, once, together with the piece.
        while let Some(text) = again {
            again = self.go_on(&text)?;
        }
        Ok(())
    }

    fn go_on(&mut self, mut piece: &[u8]) -> Result<Option<Vec<u8>>, Unreadable> {
        while !piece.is_empty() {
            match std::mem::replace(&mut self.state, State::Searching) {
                State::Searching => piece = self.search(piece)?,
                State::Opening { held } if held.is_empty() => match opened(piece) {
                    Opened::File(decoder, head) => {
                        self.enter(*decoder);
                        piece = &piece[head..];
                    }
                    Opened::Not if piece.len() < HEAD => {
                        self.state = State::Opening { held: piece.to_vec() };
                        return Ok(None);
                    }
                    Opened::Not | Opened::Nothing => piece = &piece[1..],
                },
                State::Opening { mut held } => {
                    held.extend_from_slice(piece);
                    match opened(&held) {
                        Opened::File(decoder, head) => {
                            self.enter(*decoder);
                            held.drain(..head);
                            return Ok(Some(held));
                        }
                        Opened::Not if held.len() < HEAD => {
                            self.state = State::Opening { held };
                            return Ok(None);
                        }
                        Opened::Not | Opened::Nothing => {
                            held.drain(..1);
                            return Ok(Some(held));
                        }
                    }
                }
                State::Inside(mut file) => match file.feed(piece) {
                    Ok((used, ended)) => {
                        piece = &piece[used..];
                        if ended {
                            self.close(*file);
                        } else {
                            self.state = State::Inside(file);
                        }
                    }
                    Err(Unreadable::Bomb) => return Err(Unreadable::Bomb),
                    // No file after all, or its end: others may follow.
                    Err(_) => self.close(*file),
                },
            }
        }
        Ok(None)
    }

    /// Searches for a mark; what is left begins with it, or with what follows its part that is held.
    fn search<'p>(&mut self, piece: &'p [u8]) -> Result<&'p [u8], Unreadable> {
        let start = piece.len().min(LAP);
        self.lap.extend_from_slice(&piece[..start]);
        if let Some(at) = mark(&self.lap) {
            let held = self.lap.split_off(at);
            self.lap.clear();
            self.begin(held)?;
            return Ok(&piece[start..]);
        }
        if let Some(at) = mark(piece) {
            self.lap.clear();
            self.begin(Vec::new())?;
            return Ok(&piece[at..]);
        }
        if piece.len() > LAP {
            self.lap.clear();
            self.lap.extend_from_slice(&piece[piece.len() - LAP..]);
        } else {
            self.lap.drain(..self.lap.len().saturating_sub(LAP));
        }
        Ok(&[])
    }

    fn begin(&mut self, held: Vec<u8>) -> Result<(), Unreadable> {
        self.files += 1;
        if self.files > FILES {
            return Err(Unreadable::Bomb);
        }
        self.state = State::Opening { held };
        Ok(())
    }

    fn enter(&mut self, decoder: Decoder) {
        let nested = Self::at(&self.scanner, self.depth + 1);
        let text = self.scanner.stream_owned();
        self.state = State::Inside(Box::new(File { decoder, text, nested }));
    }

    fn close(&mut self, file: File) {
        self.keep(file.finish());
    }

    fn keep(&mut self, found: Vec<Finding>) {
        // A few of them say enough; the rest would only be memory.
        let room = 16_usize.saturating_sub(self.found.len());
        let blocks = found.into_iter().filter(|finding| finding.severity == Severity::Block);
        self.found.extend(blocks.take(room));
    }

    /// The text has ended.
    pub(super) fn finish(mut self) -> Vec<Finding> {
        if let State::Inside(file) = std::mem::replace(&mut self.state, State::Searching) {
            self.close(*file);
        }
        self.found
    }
}

impl File {
    fn feed(&mut self, piece: &[u8]) -> Result<(usize, bool), Unreadable> {
        let Self { decoder, text, nested } = self;
        decoder.feed_until_end(piece, &mut |piece| {
            text.feed(piece);
            nested.feed(piece)
        })
    }

    fn finish(self) -> Vec<Finding> {
        let mut found = self.text.finish().findings;
        found.extend(self.nested.finish());
        found
    }
}

/// Where the first mark begins.
fn mark(text: &[u8]) -> Option<usize> {
    [GZIP, ZSTD, ZIP].iter().filter_map(|mark| memchr::memmem::find(text, mark)).min()
}

/// Reads the head that `text` begins with.
fn opened(text: &[u8]) -> Opened {
    let whole = |decoder: Decoder, length: usize| Opened::File(Box::new(decoder), length);
    if text.starts_with(ZSTD) {
        return whole(Decoder::new(Coding::Zstd), 0);
    }
    if text.starts_with(GZIP) {
        return match gzip_head(text) {
            Ok(Some(length)) => whole(Decoder::bare_deflate(), length),
            Ok(None) => Opened::Not,
            Err(_) => Opened::Nothing,
        };
    }
    if !text.starts_with(ZIP) {
        return if ZIP.starts_with(text) { Opened::Not } else { Opened::Nothing };
    }
    let number = |at: usize| text.get(at..at + 2).and_then(<[u8]>::first_chunk::<2>);
    let (Some(method), Some(name), Some(extra)) = (number(8), number(26), number(28)) else {
        return Opened::Not;
    };
    if u16::from_le_bytes(*method) != 8 {
        return Opened::Nothing;
    }
    let length = 30 + usize::from(u16::from_le_bytes(*name)) + usize::from(u16::from_le_bytes(*extra));
    if text.len() < length { Opened::Not } else { whole(Decoder::bare_deflate(), length) }
}
