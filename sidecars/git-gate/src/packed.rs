//! What is inside of gzip and zip: unpacked as it streams by, wherever it begins, within bounds.
//!
//! Every mark of a packed file is followed, also one within what an earlier mark opened: a header that begins
//! nothing, or a file in front, hides nothing after it. What becomes more than the gate looks at is refused as a whole.

use bottle_scan::{Finding, Scanner, Severity, Stream};
use flate2::{Decompress, FlushDecompress, Status};

use crate::findings::MOST_FINDINGS;
use crate::names;

/// What the files of one blob may become together, in bytes.
const MOST: u64 = 1 << 30;

/// Bytes that are unpacked at once.
const PIECE: usize = 16 << 10;

/// Files within files.
const DEPTH: usize = 4;

/// Marks in one blob, on all levels: each costs more than its bytes.
const FILES: usize = 1 << 20;

/// Files that are open at once, on all levels: each of them reads every byte.
const OPEN: usize = 64;

/// The longest head between a mark and what is compressed, in bytes. A zip's has two texts of 64 KiB.
const HEAD: usize = 192 << 10;

/// Bytes of a head that are looked at first, and twice as many each time after.
const FIRST: usize = 32;

/// A zip's local header, fixed part.
const ZIP_HEADER: usize = 30;

const GZIP: &[u8] = b"\x1f\x8b\x08";
const ZIP: &[u8] = b"PK\x03\x04";
const MARKS: [&[u8]; 2] = [GZIP, ZIP];

/// What follows an entry of a zip: another one, or a record of another kind.
const AFTER_ENTRY: [&[u8]; 4] = [ZIP, b"PK\x01\x02", b"PK\x05\x06", b"PK\x07\x08"];

/// Bytes of a mark that may stand at the end of a piece, without making it whole.
const LAP: usize = 3;

/// Looks for packed files in a blob, and into them.
pub(crate) struct Packed<'s> {
    text: Text<'s>,
    found: Inside,
}

/// What was found in packed files.
#[derive(Default)]
pub(crate) struct Inside {
    pub(crate) findings: Vec<Finding>,
    /// A file in one of them that holds secrets by its name.
    pub(crate) file: Option<String>,
    /// They become more than the gate looks at.
    pub(crate) bomb: bool,
    /// There are more findings than are kept.
    pub(crate) more: bool,
    made: u64,
    files: usize,
    open: usize,
}

impl<'s> Packed<'s> {
    pub(crate) fn new(scanner: &'s Scanner) -> Self {
        Self { text: Text::new(scanner, 0), found: Inside::default() }
    }

    /// The next piece of the blob. What is damaged ends its file; the bytes themselves are read anyway.
    pub(crate) fn feed(&mut self, piece: &[u8]) {
        self.text.feed(piece, &mut self.found);
    }

    /// What was found in all of them.
    pub(crate) fn finish(mut self) -> Inside {
        self.text.finish(&mut self.found);
        self.found
    }
}

impl Inside {
    /// Known secrets first: they are what counts.
    fn keep(&mut self, findings: Vec<Finding>, more: bool) {
        self.more |= more;
        for finding in findings.into_iter().filter(|finding| finding.severity == Severity::Block) {
            let same = |other: &Finding| other.rule == finding.rule && other.secret == finding.secret;
            if self.findings.iter().any(same) {
                continue;
            }
            if self.findings.len() < MOST_FINDINGS {
                self.findings.push(finding);
            } else {
                self.more = true;
                let other = self.findings.iter_mut().find(|other| other.secret.is_none());
                if let (Some(other), true) = (other, finding.secret.is_some()) {
                    *other = finding;
                }
            }
        }
    }
}

/// A text in which files may begin.
struct Text<'s> {
    scanner: &'s Scanner,
    depth: usize,
    candidates: Vec<Candidate<'s>>,
    /// The last bytes so far, where a mark may begin.
    lap: Vec<u8>,
}

/// What begins at a mark: a head that is not all there yet, then a file.
struct Candidate<'s> {
    held: Vec<u8>,
    /// How much has to be there before the head is looked at again.
    wanted: usize,
    file: Option<Box<File<'s>>>,
}

struct File<'s> {
    content: Content<'s>,
    stream: Stream<&'s Scanner>,
}

enum Content<'s> {
    Deflated(Box<Decompress>, Text<'s>),
    /// As it is, up to what follows the entry, with the last bytes so far, where that may begin. It is read by itself, for
    /// its neighbours may make another word of it; files in it are found in the text around it.
    Stored(Vec<u8>),
}

/// What a head says.
enum Head<'h> {
    /// More of it has to come.
    Cut,
    /// It begins nothing.
    Nothing,
    /// So many bytes of head before what is deflated, or stored as it is; the name of a zip's entry.
    File { length: usize, deflated: bool, name: Option<&'h [u8]> },
}

impl<'s> Text<'s> {
    fn new(scanner: &'s Scanner, depth: usize) -> Self {
        Self { scanner, depth, candidates: Vec::new(), lap: Vec::new() }
    }

    fn feed(&mut self, piece: &[u8], found: &mut Inside) {
        if found.bomb {
            return;
        }
        // A mark may begin in the piece before. Those that do are opened first, and get all of this one.
        let held = self.lap.len();
        self.lap.extend_from_slice(&piece[..piece.len().min(LAP)]);
        let is_over =
            |at: &usize| *at < held && !MARKS.iter().any(|mark| self.lap[*at..held].starts_with(mark));
        let over: Vec<usize> = marks(&self.lap).into_iter().filter(is_over).collect();
        for at in over {
            let head = self.lap[at..held].to_vec();
            self.begin(head, found);
        }
        // All that are open get the same bytes, up to where the next begins.
        let mut at = 0;
        for mark in marks(piece) {
            self.give(&piece[at..mark], found);
            self.begin(Vec::new(), found);
            at = mark;
        }
        self.give(&piece[at..], found);
        if piece.len() >= LAP {
            self.lap.clear();
            self.lap.extend_from_slice(&piece[piece.len() - LAP..]);
        } else {
            self.lap.drain(..self.lap.len().saturating_sub(LAP));
        }
    }

    fn begin(&mut self, held: Vec<u8>, found: &mut Inside) {
        found.files += 1;
        found.open += 1;
        found.bomb |= found.files > FILES || found.open > OPEN;
        self.candidates.push(Candidate { held, wanted: FIRST, file: None });
    }

    /// `piece` to everything that is open.
    fn give(&mut self, piece: &[u8], found: &mut Inside) {
        if found.bomb {
            return;
        }
        let (scanner, depth) = (self.scanner, self.depth);
        self.candidates.retain_mut(|candidate| {
            let goes_on = candidate.feed(piece, scanner, depth, found);
            if !goes_on {
                candidate.finish(found);
            }
            goes_on
        });
    }

    fn finish(&mut self, found: &mut Inside) {
        for mut candidate in std::mem::take(&mut self.candidates) {
            // A head that waits for more than there is.
            candidate.wanted = 0;
            candidate.feed(&[], self.scanner, self.depth, found);
            candidate.finish(found);
        }
    }
}

impl<'s> Candidate<'s> {
    /// Takes the next piece; whether it goes on.
    fn feed(&mut self, piece: &[u8], scanner: &'s Scanner, depth: usize, found: &mut Inside) -> bool {
        if let Some(file) = &mut self.file {
            return file.feed(piece, found);
        }
        self.held.extend_from_slice(piece);
        if self.held.len() < self.wanted.min(HEAD) {
            return true;
        }
        let (length, deflated, name) = match head(&self.held) {
            Head::Cut if self.held.len() < HEAD => {
                self.wanted = self.held.len() * 2;
                return true;
            }
            Head::Cut | Head::Nothing => return false,
            Head::File { length, deflated, name } => (length, deflated, name),
        };
        if let Some(name) = name {
            entry(name, scanner, found);
        }
        if deflated && depth >= DEPTH {
            found.bomb = true;
            return false;
        }
        let held = std::mem::take(&mut self.held);
        let content = if deflated {
            Content::Deflated(Box::new(Decompress::new(false)), Text::new(scanner, depth + 1))
        } else {
            Content::Stored(Vec::new())
        };
        let file = File { content, stream: scanner.stream() };
        self.file.insert(Box::new(file)).feed(&held[length..], found)
    }

    fn finish(&mut self, found: &mut Inside) {
        found.open -= 1;
        // One that is cut short has been scanned as far as it goes.
        if let Some(mut file) = self.file.take() {
            match &mut file.content {
                Content::Deflated(_, text) => text.finish(found),
                Content::Stored(held) => file.stream.feed(held),
            }
            let report = file.stream.finish();
            found.keep(report.findings, report.more);
        }
    }
}

impl File<'_> {
    /// Whether it goes on: it has not ended and is not damaged.
    fn feed(&mut self, piece: &[u8], found: &mut Inside) -> bool {
        let Self { content, stream } = self;
        let (decoder, text) = match content {
            Content::Deflated(decoder, text) => (decoder, text),
            Content::Stored(held) => {
                held.extend_from_slice(piece);
                let end = AFTER_ENTRY.iter().filter_map(|mark| memchr::memmem::find(held, mark)).min();
                let rest = held.split_off(end.unwrap_or(held.len().saturating_sub(LAP)));
                stream.feed(held);
                *held = if end.is_some() { Vec::new() } else { rest };
                return end.is_none();
            }
        };
        let (mut input, mut output) = (piece, vec![0; PIECE]);
        loop {
            let (before_in, before_out) = (decoder.total_in(), decoder.total_out());
            let status = decoder.decompress(input, &mut output, FlushDecompress::None);
            let taken = usize::try_from(decoder.total_in() - before_in).unwrap_or(input.len());
            let made = usize::try_from(decoder.total_out() - before_out).unwrap_or(0);
            input = &input[taken..];
            found.made += made as u64;
            found.bomb |= found.made > MOST;
            if found.bomb {
                return false;
            }
            stream.feed(&output[..made]);
            text.feed(&output[..made], found);
            match status {
                Ok(Status::StreamEnd) | Err(_) => return false,
                Ok(_) if taken == 0 && made == 0 => return true,
                Ok(_) if input.is_empty() && made < output.len() => return true,
                Ok(_) => {}
            }
        }
    }
}

/// Judges the name of a zip's entry, and what it holds.
fn entry(name: &[u8], scanner: &Scanner, found: &mut Inside) {
    let (folder, base) = split(name);
    if names::rule(folder, base).is_some() && found.file.is_none() {
        found.file = Some(String::from_utf8_lossy(name).into_owned());
    }
    let report = scanner.scan(name);
    found.keep(report.findings, report.more);
}

/// Where marks begin, in order.
fn marks(text: &[u8]) -> Vec<usize> {
    let mut all: Vec<usize> = MARKS.iter().flat_map(|mark| memchr::memmem::find_iter(text, mark)).collect();
    all.sort_unstable();
    all
}

/// Reads the head that `text` begins with.
fn head(text: &[u8]) -> Head<'_> {
    if text.starts_with(GZIP) {
        let file = |length| Head::File { length, deflated: true, name: None };
        return gzip_head(text).map_or(Head::Cut, file);
    }
    if !text.starts_with(ZIP) {
        return if MARKS.iter().any(|mark| mark.starts_with(text)) { Head::Cut } else { Head::Nothing };
    }
    let number = |at: usize| {
        let bytes = text.get(at..at + 2).and_then(<[u8]>::first_chunk);
        bytes.map(|bytes| usize::from(u16::from_le_bytes(*bytes)))
    };
    let (Some(method), Some(name), Some(extra)) = (number(8), number(26), number(28)) else {
        return Head::Cut;
    };
    let length = ZIP_HEADER + name + extra;
    if text.len() < length {
        return Head::Cut;
    }
    Head::File { length, deflated: method == 8, name: text.get(ZIP_HEADER..ZIP_HEADER + name) }
}

/// How long gzip's own head is (RFC 1952, 2.3); none when more of it has to come.
fn gzip_head(text: &[u8]) -> Option<usize> {
    let flags = text.get(3)?;
    let mut at = 10;
    if flags & 4 != 0 {
        let length = text.get(at..at + 2).and_then(<[u8]>::first_chunk)?;
        at += 2 + usize::from(u16::from_le_bytes(*length));
    }
    for flag in [8, 16] {
        if flags & flag != 0 {
            at += memchr::memchr(0, text.get(at..)?)? + 1;
        }
    }
    if flags & 2 != 0 {
        at += 2;
    }
    (at <= text.len()).then_some(at)
}

/// Folder and name of a path: the last two of its parts.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let mut parts = path.rsplit(|byte| *byte == b'/');
    let name = parts.next().unwrap_or_default();
    (parts.next().unwrap_or_default(), name)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;

    use bottle_contract::secret::Secret;
    use bottle_scan::KnownSecrets;

    use super::*;

    const SECRET: &str = "Zq7-Kd93vXwpT2mB8ySe4Lh5Rf0Nc";

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        writer.write_all(text).expect("write");
        writer.finish().expect("finish")
    }

    /// An archive of one deflated entry.
    fn zip(name: &str, text: &[u8]) -> Vec<u8> {
        let mut made = b"PK\x03\x04\x14\0\0\0\x08\0".to_vec();
        made.extend([0; 16]);
        made.extend([u8::try_from(name.len()).expect("short"), 0, 0, 0]);
        made.extend_from_slice(name.as_bytes());
        made.extend_from_slice(&gzip(text)[10..]);
        made
    }

    /// The head of a gzip whose content is stored as it is: so many bytes of what follows belong to it.
    fn stored(length: u16) -> Vec<u8> {
        let [low, high] = length.to_le_bytes();
        [&b"\x1f\x8b\x08\0\0\0\0\0\0\x03\x01"[..], &[low, high, !low, !high]].concat()
    }

    fn look(body: &[u8], size: usize) -> (bool, Option<String>, bool) {
        let known = KnownSecrets::new([&Secret::new(SECRET.to_owned())]).expect("secrets");
        let scanner = Scanner::outbound(Arc::new(known));
        let mut packed = Packed::new(&scanner);
        for piece in body.chunks(size) {
            packed.feed(piece);
        }
        let inside = packed.finish();
        assert_eq!(inside.open, 0);
        (inside.findings.iter().any(|finding| finding.secret.is_some()), inside.file, inside.bomb)
    }

    #[test]
    fn a_decoy_hides_no_file_after_it() {
        let said = format!("here it is: {SECRET}, keep it");
        let decoys: Vec<(&str, Vec<u8>)> = vec![
            ("nothing", Vec::new()),
            ("text", b"#!/bin/sh\nexit\n".to_vec()),
            ("a mark alone", GZIP.to_vec()),
            ("a head alone", b"\x1f\x8b\x08\0\0\0\0\0\0\x03".to_vec()),
            ("a head with a name that does not end", b"\x1f\x8b\x08\x08\0\0\0\0\0\x03name".to_vec()),
            ("a head with more than there is", b"\x1f\x8b\x08\x04\0\0\0\0\0\x03\xff\xff".to_vec()),
            ("content that goes on", stored(60_000)),
            ("a file", gzip(b"nothing")),
            ("zip", b"PK\x03\x04\x14\0\0\0\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\xff\xff\xff\xff".to_vec()),
            ("zip whose entry goes on", [&zip("a", b"")[..31], &stored(60_000)[10..]].concat()),
        ];
        for (name, decoy) in &decoys {
            for (kind, real) in [("gzip", gzip(said.as_bytes())), ("zip", zip("a.txt", said.as_bytes()))] {
                let body = [decoy, &b"\n"[..], &real, b" and more"].concat();
                for size in [body.len(), 1000, decoy.len().max(1), 3, 1] {
                    assert_eq!(look(&body, size), (true, None, false), "{name} before {kind}, in {size}");
                }
            }
            let body = [decoy, &b"\n"[..], &zip("app/.env", b"A=1")].concat();
            assert_eq!(look(&body, 7).1.as_deref(), Some("app/.env"), "{name}");
            assert_eq!(
                look(&[&decoy[..], b"no", &gzip(b"nothing")].concat(), 50),
                (false, None, false),
                "{name}"
            );
        }
    }

    #[test]
    fn files_in_files_are_found_or_refused() {
        let mut body = SECRET.as_bytes().to_vec();
        for depth in 1..8 {
            body = if depth % 2 == 0 { zip("a", &body) } else { gzip(&body) };
            let (found, _, bomb) = look(&body, 777);
            assert_eq!((found, bomb), (depth <= DEPTH, depth > DEPTH), "{depth}");
        }
        // Many entries one after the other are no more than one is.
        let entries: Vec<u8> = (0..3000).flat_map(|_| zip("src/a.rs", b"fn main() {}")).collect();
        assert_eq!(look(&[&entries[..], &zip("b", SECRET.as_bytes())].concat(), 4096), (true, None, false));
    }

    #[test]
    fn what_is_made_of_marks_is_refused_soon() {
        for (name, piece) in [
            ("marks", GZIP.to_vec()),
            ("names that do not end", b"\x1f\x8b\x08\x08\0\0\0\0\0\x03name".to_vec()),
            ("content that goes on", stored(65_535)),
            ("zip", b"PK\x03\x04\x14\0\0\0\x08\0".to_vec()),
        ] {
            let body = piece.repeat((1 << 18) / piece.len());
            let start = std::time::Instant::now();
            let _ = look(&body, 1000);
            assert!(start.elapsed().as_secs() < 30, "{name}: {:?}", start.elapsed());
        }
        assert!(look(&stored(65_535).repeat(100), 1000).2);
    }
}
