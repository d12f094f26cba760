//! Scans the contents of gzip and zip in a blob: unpacks them in streaming, at any offset, within bounds.
//!
//! Every signature of an archive is followed, also one inside another archive, so that a decoy header or
//! a file in front hides nothing behind it. A blob whose contents exceed the limits is refused whole.

use bottle_scan::{Finding, Scanner, Severity, Stream};
use flate2::{Decompress, FlushDecompress, Status};

use crate::findings::MOST_FINDINGS;
use crate::names;

/// Most unpacked bytes of one blob.
const MOST: u64 = 1 << 30;

/// Bytes that are unpacked at once.
const PIECE: usize = 16 << 10;

/// Most nested archives.
const DEPTH: usize = 4;

/// Most signatures in one blob, on all levels: each costs more than its bytes.
const FILES: usize = 1 << 20;

/// Most files open at once, on all levels: each of them reads every byte.
const OPEN: usize = 64;

/// Most bytes between a signature and the compressed data. A zip header has two fields of up to 64 KiB.
const HEAD: usize = 192 << 10;

/// Bytes of a header before the first attempt to parse it; doubled for each further attempt.
const FIRST: usize = 32;

/// Bytes of the fixed part of a zip's local file header.
const ZIP_HEADER: usize = 30;

const GZIP: &[u8] = b"\x1f\x8b\x08";
const ZIP: &[u8] = b"PK\x03\x04";
const MARKS: [&[u8]; 2] = [GZIP, ZIP];

/// Signatures of the records that can follow a zip entry.
const AFTER_ENTRY: [&[u8]; 4] = [ZIP, b"PK\x01\x02", b"PK\x05\x06", b"PK\x07\x08"];

/// Most bytes of an incomplete signature at the end of a piece.
const OVERLAP: usize = 3;

/// Finds archives in a blob and scans their contents.
pub(crate) struct Archives<'s> {
    text: Text<'s>,
    found: ArchiveReport,
}

/// The findings in archives.
#[derive(Default)]
pub(crate) struct ArchiveReport {
    pub(crate) findings: Vec<Finding>,
    /// A file in an archive that holds secrets by its name.
    pub(crate) file: Option<String>,
    /// The contents exceed a limit.
    pub(crate) bomb: bool,
    /// There are more than [`MOST_FINDINGS`].
    pub(crate) more: bool,
    unpacked: u64,
    files: usize,
    open: usize,
}

impl<'s> Archives<'s> {
    pub(crate) fn new(scanner: &'s Scanner) -> Self {
        Self { text: Text::new(scanner, 0), found: ArchiveReport::default() }
    }

    /// Scans the next piece of the blob. Damaged data ends its file; the raw bytes are scanned anyway.
    pub(crate) fn feed(&mut self, piece: &[u8]) {
        self.text.feed(piece, &mut self.found);
    }

    /// Returns the findings in all archives.
    pub(crate) fn finish(mut self) -> ArchiveReport {
        self.text.finish(&mut self.found);
        self.found
    }
}

impl ArchiveReport {
    /// Adds findings, deduplicated. Known secrets have priority.
    fn add(&mut self, findings: Vec<Finding>, more: bool) {
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

/// Data in which archives may start at any offset.
struct Text<'s> {
    scanner: &'s Scanner,
    depth: usize,
    candidates: Vec<Candidate<'s>>,
    /// The last bytes so far, where a signature may start.
    overlap: Vec<u8>,
}

/// A possible file at a signature: an incomplete header, then contents.
struct Candidate<'s> {
    buffer: Vec<u8>,
    /// Bytes to buffer before the next attempt to parse the header.
    wanted: usize,
    file: Option<Box<File<'s>>>,
}

struct File<'s> {
    content: Content<'s>,
    stream: Stream<&'s Scanner>,
}

enum Content<'s> {
    Deflated(Box<Decompress>, Text<'s>),
    /// Uncompressed, up to the next record; buffers the last bytes, where that may start. It is
    /// scanned separately, since its neighbours could change the tokens. Archives in it are found in
    /// the surrounding data.
    Stored(Vec<u8>),
}

/// A parsed header.
enum Head<'h> {
    /// The header is incomplete.
    Cut,
    /// Not a header.
    Nothing,
    /// Length of the header, whether the data is deflated or stored, and the name of a zip entry.
    File { length: usize, deflated: bool, name: Option<&'h [u8]> },
}

impl<'s> Text<'s> {
    fn new(scanner: &'s Scanner, depth: usize) -> Self {
        Self { scanner, depth, candidates: Vec::new(), overlap: Vec::new() }
    }

    fn feed(&mut self, piece: &[u8], found: &mut ArchiveReport) {
        if found.bomb {
            return;
        }
        // Open signatures that start in the previous piece first: they get all of this one.
        let overlap = self.overlap.len();
        self.overlap.extend_from_slice(&piece[..piece.len().min(OVERLAP)]);
        let is_over = |at: &usize| {
            *at < overlap && !MARKS.iter().any(|mark| self.overlap[*at..overlap].starts_with(mark))
        };
        let over: Vec<usize> = marks(&self.overlap).into_iter().filter(is_over).collect();
        for at in over {
            let head = self.overlap[at..overlap].to_vec();
            self.open(head, found);
        }
        // All open files get the same bytes, up to the next signature.
        let mut at = 0;
        for mark in marks(piece) {
            self.feed_open(&piece[at..mark], found);
            self.open(Vec::new(), found);
            at = mark;
        }
        self.feed_open(&piece[at..], found);
        if piece.len() >= OVERLAP {
            self.overlap.clear();
            self.overlap.extend_from_slice(&piece[piece.len() - OVERLAP..]);
        } else {
            self.overlap.drain(..self.overlap.len().saturating_sub(OVERLAP));
        }
    }

    fn open(&mut self, buffer: Vec<u8>, found: &mut ArchiveReport) {
        found.files += 1;
        found.open += 1;
        found.bomb |= found.files > FILES || found.open > OPEN;
        self.candidates.push(Candidate { buffer, wanted: FIRST, file: None });
    }

    /// Feeds `piece` to every open file.
    fn feed_open(&mut self, piece: &[u8], found: &mut ArchiveReport) {
        if found.bomb {
            return;
        }
        let (scanner, depth) = (self.scanner, self.depth);
        self.candidates.retain_mut(|candidate| {
            let is_open = candidate.feed(piece, scanner, depth, found);
            if !is_open {
                candidate.finish(found);
            }
            is_open
        });
    }

    fn finish(&mut self, found: &mut ArchiveReport) {
        for mut candidate in std::mem::take(&mut self.candidates) {
            // Parse a header that waits for more bytes than exist.
            candidate.wanted = 0;
            candidate.feed(&[], self.scanner, self.depth, found);
            candidate.finish(found);
        }
    }
}

impl<'s> Candidate<'s> {
    /// Scans the next piece. Returns whether the file continues.
    fn feed(&mut self, piece: &[u8], scanner: &'s Scanner, depth: usize, found: &mut ArchiveReport) -> bool {
        if let Some(file) = &mut self.file {
            return file.feed(piece, found);
        }
        self.buffer.extend_from_slice(piece);
        if self.buffer.len() < self.wanted.min(HEAD) {
            return true;
        }
        let (length, deflated, name) = match head(&self.buffer) {
            Head::Cut if self.buffer.len() < HEAD => {
                self.wanted = self.buffer.len() * 2;
                return true;
            }
            Head::Cut | Head::Nothing => return false,
            Head::File { length, deflated, name } => (length, deflated, name),
        };
        if let Some(name) = name {
            check_entry_name(name, scanner, found);
        }
        if deflated && depth >= DEPTH {
            found.bomb = true;
            return false;
        }
        let buffer = std::mem::take(&mut self.buffer);
        let content = if deflated {
            Content::Deflated(Box::new(Decompress::new(false)), Text::new(scanner, depth + 1))
        } else {
            Content::Stored(Vec::new())
        };
        let file = File { content, stream: scanner.stream() };
        self.file.insert(Box::new(file)).feed(&buffer[length..], found)
    }

    fn finish(&mut self, found: &mut ArchiveReport) {
        found.open -= 1;
        // A truncated file has been scanned as far as it goes.
        if let Some(mut file) = self.file.take() {
            match &mut file.content {
                Content::Deflated(_, text) => text.finish(found),
                Content::Stored(buffer) => file.stream.feed(buffer),
            }
            let report = file.stream.finish();
            found.add(report.findings, report.more);
        }
    }
}

impl File<'_> {
    /// Scans the next piece. Returns whether the file continues: it has not ended and is not damaged.
    fn feed(&mut self, piece: &[u8], found: &mut ArchiveReport) -> bool {
        let Self { content, stream } = self;
        let (decoder, text) = match content {
            Content::Deflated(decoder, text) => (decoder, text),
            Content::Stored(buffer) => {
                buffer.extend_from_slice(piece);
                let end = AFTER_ENTRY.iter().filter_map(|mark| memchr::memmem::find(buffer, mark)).min();
                let rest = buffer.split_off(end.unwrap_or(buffer.len().saturating_sub(OVERLAP)));
                stream.feed(buffer);
                *buffer = if end.is_some() { Vec::new() } else { rest };
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
            found.unpacked += made as u64;
            found.bomb |= found.unpacked > MOST;
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

/// Checks the name of a zip entry against the rules for names and scans it.
fn check_entry_name(name: &[u8], scanner: &Scanner, found: &mut ArchiveReport) {
    let (folder, base) = split(name);
    if names::rule(folder, base).is_some() && found.file.is_none() {
        found.file = Some(String::from_utf8_lossy(name).into_owned());
    }
    let report = scanner.scan(name);
    found.add(report.findings, report.more);
}

/// Offsets of signatures, in order.
fn marks(text: &[u8]) -> Vec<usize> {
    let mut all: Vec<usize> = MARKS.iter().flat_map(|mark| memchr::memmem::find_iter(text, mark)).collect();
    all.sort_unstable();
    all
}

/// Parses the header at the start of `text`.
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

/// The length of a gzip header (RFC 1952, 2.3); `None` if it is incomplete.
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

/// The last two components of a path: folder and name.
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

    /// The header of a gzip file and of a stored block with `length` bytes.
    fn stored(length: u16) -> Vec<u8> {
        let [low, high] = length.to_le_bytes();
        [&b"\x1f\x8b\x08\0\0\0\0\0\0\x03\x01"[..], &[low, high, !low, !high]].concat()
    }

    fn scan(body: &[u8], size: usize) -> (bool, Option<String>, bool) {
        let known = KnownSecrets::new([&Secret::new(SECRET.to_owned())]).expect("secrets");
        let scanner = Scanner::outbound(Arc::new(known));
        let mut archives = Archives::new(&scanner);
        for piece in body.chunks(size) {
            archives.feed(piece);
        }
        let report = archives.finish();
        assert_eq!(report.open, 0);
        (report.findings.iter().any(|finding| finding.secret.is_some()), report.file, report.bomb)
    }

    #[test]
    fn scans_an_archive_behind_a_decoy() {
        let text = format!("here it is: {SECRET}, keep it");
        let decoys: Vec<(&str, Vec<u8>)> = vec![
            ("nothing", Vec::new()),
            ("text", b"#!/bin/sh\nexit\n".to_vec()),
            ("a lone signature", GZIP.to_vec()),
            ("a lone header", b"\x1f\x8b\x08\0\0\0\0\0\0\x03".to_vec()),
            ("a header with an endless name", b"\x1f\x8b\x08\x08\0\0\0\0\0\x03name".to_vec()),
            ("a header with a length beyond the end", b"\x1f\x8b\x08\x04\0\0\0\0\0\x03\xff\xff".to_vec()),
            ("contents beyond the end", stored(60_000)),
            ("a file", gzip(b"nothing")),
            ("zip", b"PK\x03\x04\x14\0\0\0\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\xff\xff\xff\xff".to_vec()),
            ("zip with an entry beyond the end", [&zip("a", b"")[..31], &stored(60_000)[10..]].concat()),
        ];
        for (name, decoy) in &decoys {
            for (kind, real) in [("gzip", gzip(text.as_bytes())), ("zip", zip("a.txt", text.as_bytes()))] {
                let body = [decoy, &b"\n"[..], &real, b" and more"].concat();
                for size in [body.len(), 1000, decoy.len().max(1), 3, 1] {
                    assert_eq!(scan(&body, size), (true, None, false), "{name} before {kind}, in {size}");
                }
            }
            let body = [decoy, &b"\n"[..], &zip("app/.env", b"A=1")].concat();
            assert_eq!(scan(&body, 7).1.as_deref(), Some("app/.env"), "{name}");
            assert_eq!(
                scan(&[&decoy[..], b"no", &gzip(b"nothing")].concat(), 50),
                (false, None, false),
                "{name}"
            );
        }
    }

    #[test]
    fn scans_nested_archives_or_refuses_them() {
        let mut body = SECRET.as_bytes().to_vec();
        for depth in 1..8 {
            body = if depth % 2 == 0 { zip("a", &body) } else { gzip(&body) };
            let (found, _, bomb) = scan(&body, 777);
            assert_eq!((found, bomb), (depth <= DEPTH, depth > DEPTH), "{depth}");
        }
        // Consecutive entries do not add to the number of open files.
        let entries: Vec<u8> = (0..3000).flat_map(|_| zip("src/a.rs", b"fn main() {}")).collect();
        assert_eq!(scan(&[&entries[..], &zip("b", SECRET.as_bytes())].concat(), 4096), (true, None, false));
    }

    #[test]
    fn refuses_a_blob_of_signatures_quickly() {
        for (name, piece) in [
            ("signatures", GZIP.to_vec()),
            ("endless names", b"\x1f\x8b\x08\x08\0\0\0\0\0\x03name".to_vec()),
            ("contents beyond the end", stored(65_535)),
            ("zip", b"PK\x03\x04\x14\0\0\0\x08\0".to_vec()),
        ] {
            let body = piece.repeat((1 << 18) / piece.len());
            let start = std::time::Instant::now();
            let _ = scan(&body, 1000);
            assert!(start.elapsed().as_secs() < 30, "{name}: {:?}", start.elapsed());
        }
        assert!(scan(&stored(65_535).repeat(100), 1000).2);
    }
}
