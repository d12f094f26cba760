//! Scans the contents of gzip and zip archives in a blob. An archive may begin at any offset, and is unpacked as a
//! stream. A blob that begins with a zlib header is unpacked too. At later offsets, zlib headers are ignored, because
//! about every second byte could begin a zlib header. Zlib data within other formats (PNG, PDF) is therefore not
//! unpacked.
//!
//! A push is refused if the archives in one of its blobs exceed one of the limits in this module.

use bottle_protocol::secret_files::is_secret_file;
use bottle_scan::archive_finder::{ArchiveFinder, Content, GZIP, Visitor, ZIP};
use bottle_scan::{Finding, Report, Scanner, Severity, Stream};
use flate2::{Decompress, FlushDecompress, Status};
use sha2::{Digest, Sha256};

use crate::findings::{Found, Location, MOST_FINDINGS, PushFindings};
use crate::read_error::ReadError;

/// The magic numbers of the archives that are unpacked.
const FORMATS: &[&[u8]] = &[GZIP, ZIP];

/// The maximum number of bytes that are unpacked from the archives in one blob.
const MOST: u64 = 1 << 30;

/// The number of bytes that are unpacked in one step.
const PIECE: usize = 16 << 10;

/// The maximum nesting of archives.
const DEPTH: usize = 4;

/// The maximum number of magic numbers in one blob, on all levels of nesting. The scan parses the data after each magic
/// number as an archive, which costs more time than the scan of the few bytes themselves.
const FILES: usize = 1 << 20;

/// The maximum number of concurrently open files in one blob, on all levels of nesting. Each open file reads all
/// further bytes of the data in which it was found.
const OPEN: usize = 64;

/// The signatures of the zip records that can follow the data of a zip entry.
const AFTER_ENTRY: [&[u8]; 4] = [b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06", b"PK\x07\x08"];

/// The number of bytes in the header of zlib data.
const ZLIB_HEADER: usize = 2;

/// The maximum number of bytes of a record signature that is incomplete at the end of a piece.
const OVERLAP: usize = 3;

/// Finds archives in a blob and scans their contents.
pub(crate) struct Archives<'s> {
    scanner: &'s Scanner,
    /// The path of the blob. `None` if the path is unknown.
    path: Option<&'s str>,
    finder: ArchiveFinder<File<'s>>,
    zlib: Zlib<'s>,
    found: ArchiveReport,
}

/// The zlib data with which a blob may begin.
enum Zlib<'s> {
    /// The first bytes of the blob, which do not yet contain a complete header.
    Begin(Vec<u8>),
    Open(Box<File<'s>>),
    /// The blob does not begin with zlib data, or the data has ended.
    Closed,
}

/// The scan result of all archives in one blob.
#[derive(Default)]
pub(crate) struct ArchiveReport {
    pub(crate) findings: Vec<PackedFinding>,
    /// The name of a file in an archive, if files with that name usually contain secrets.
    pub(crate) file: Option<String>,
    /// Whether the archives exceed a limit, so that they were not scanned completely.
    pub(crate) bomb: bool,
    /// Whether findings were dropped because there were more than [`MOST_FINDINGS`].
    pub(crate) more: bool,
    unpacked: u64,
    files: usize,
    open: usize,
}

/// A finding in an unpacked file, or in its name.
pub(crate) struct PackedFinding {
    pub(crate) finding: Finding,
    /// The hash of the file's content and of the finding's position. The hash identifies the finding in later pushes,
    /// because the content itself is not stored.
    value: [u8; 32],
}

impl<'s> Archives<'s> {
    pub(crate) fn new(scanner: &'s Scanner, path: Option<&'s str>) -> Self {
        let zlib = Zlib::Begin(Vec::new());
        Self { scanner, path, finder: ArchiveFinder::new(FORMATS), zlib, found: ArchiveReport::default() }
    }

    /// Scans the next piece of the blob. Unpacking of a file stops at damaged data.
    pub(crate) fn feed(&mut self, piece: &[u8]) {
        if !self.found.bomb {
            let mut level =
                Level { scanner: self.scanner, path: self.path, depth: 0, found: &mut self.found };
            let fed = self.finder.feed(piece, &mut level).and_then(|()| self.zlib.feed(piece, &mut level));
            self.found.bomb |= fed.is_err();
        }
    }

    /// Ends the scan of all open files, and returns the result.
    pub(crate) fn finish(mut self) -> ArchiveReport {
        let mut level = Level { scanner: self.scanner, path: self.path, depth: 0, found: &mut self.found };
        let finished = self.finder.finish(&mut level).and(self.zlib.finish(&mut level));
        self.found.bomb |= finished.is_err();
        self.found
    }
}

impl<'s> Zlib<'s> {
    fn feed(&mut self, mut piece: &[u8], level: &mut Level<'_, 's>) -> Result<(), Bomb> {
        if let Self::Begin(begin) = self {
            let (now, later) = piece.split_at(piece.len().min(ZLIB_HEADER - begin.len()));
            begin.extend_from_slice(now);
            let Some(header) = begin.first_chunk::<ZLIB_HEADER>().copied() else { return Ok(()) };
            if !is_zlib(header) {
                *self = Self::Closed;
                return Ok(());
            }
            level.begin()?;
            let unpacking = Unpacking::zlib();
            let mut file = Box::new(File { unpacking, content: Unpacked::new(level.scanner, level.path) });
            level.feed(&mut file, &header)?;
            *self = Self::Open(file);
            piece = later;
        }
        let Self::Open(file) = self else { return Ok(()) };
        if level.feed(file, piece)? { Ok(()) } else { self.finish(level) }
    }

    fn finish(&mut self, level: &mut Level<'_, 's>) -> Result<(), Bomb> {
        match std::mem::replace(self, Self::Closed) {
            Self::Open(file) => level.close(Some(*file)),
            _ => Ok(()),
        }
    }
}

/// Returns whether two bytes are the header of zlib data without a preset dictionary (RFC 1950, section 2.2).
fn is_zlib([method, flags]: [u8; ZLIB_HEADER]) -> bool {
    method & 0x0f == 8
        && method >> 4 <= 7
        && flags & 0x20 == 0
        && u16::from_be_bytes([method, flags]).is_multiple_of(31)
}

impl ArchiveReport {
    /// Adds the findings in a file. `hash` is the hash of all bytes of the file. All findings of the same known secret
    /// are merged into one finding that contains the pieces of all of them. If there are too many findings, the finding
    /// of a known secret replaces another finding.
    fn add(&mut self, report: Report, hash: &Sha256) {
        self.more |= report.more;
        for finding in report.findings.into_iter().filter(|finding| finding.severity == Severity::Block) {
            let place = [finding.span.start, finding.span.end].map(u64::to_be_bytes);
            let value = hash.clone().chain_update(place.as_flattened()).finalize().into();
            let same = |other: &PackedFinding| {
                let is_equal = finding.secret.is_some() || other.value == value;
                is_equal && other.finding.rule == finding.rule && other.finding.secret == finding.secret
            };
            if let Some(other) = self.findings.iter_mut().find(|other| same(other)) {
                other.finding.pieces.add(&finding.pieces);
                continue;
            }
            let packed = PackedFinding { finding, value };
            if self.findings.len() < MOST_FINDINGS {
                self.findings.push(packed);
            } else {
                self.more = true;
                let other = self.findings.iter_mut().find(|other| other.finding.secret.is_none());
                if let (Some(other), true) = (other, packed.finding.secret.is_some()) {
                    *other = packed;
                }
            }
        }
    }

    /// Adds the findings to the findings of the push, with the location `location`.
    ///
    /// # Errors
    /// Fails with [`ReadError::Findings`] if there were too many findings. Succeeds nevertheless if one finding is a
    /// known secret, because a known secret blocks the push anyway.
    pub(crate) fn report(self, location: &Location, findings: &mut PushFindings) -> Result<(), ReadError> {
        if self.more && self.findings.iter().all(|packed| packed.finding.secret.is_none()) {
            return Err(ReadError::Findings(location.location.clone()));
        }
        for PackedFinding { finding, value } in self.findings {
            findings.add(Found::from_scan(&finding, location.clone(), &value));
        }
        Ok(())
    }
}

/// The error that the archives in a blob exceed a limit.
struct Bomb;

/// The files at one level of nesting: in the blob itself, or in one unpacked file.
struct Level<'l, 's> {
    scanner: &'s Scanner,
    path: Option<&'s str>,
    /// The number of unpacked files that contain this level. The number is 0 for the blob itself.
    depth: usize,
    found: &'l mut ArchiveReport,
}

struct File<'s> {
    unpacking: Unpacking<'s>,
    content: Unpacked<'s>,
}

/// The scan of an unpacked file.
struct Unpacked<'s> {
    stream: Stream<&'s Scanner>,
    hash: Sha256,
}

impl<'s> Unpacked<'s> {
    fn new(scanner: &'s Scanner, path: Option<&str>) -> Self {
        Self { stream: scanner.stream_of(path), hash: Sha256::new() }
    }

    fn feed(&mut self, piece: &[u8]) {
        self.stream.feed(piece);
        self.hash.update(piece);
    }
}

enum Unpacking<'s> {
    Deflated(Box<Decompress>, ArchiveFinder<File<'s>>),
    /// An uncompressed zip entry, which ends at the signature of the next record. The buffer contains the last bytes of
    /// the input, in which the signature may begin. The entry is scanned separately, because adjacent bytes in the zip
    /// file could hide a token. Archives within the entry need no additional finder, because the finder of the outer
    /// data finds them.
    Stored(Vec<u8>),
}

impl Unpacking<'_> {
    /// Prepares the unpacking of zlib data that begins with the zlib header.
    fn zlib() -> Self {
        Self::Deflated(Box::new(Decompress::new(true)), ArchiveFinder::new(FORMATS))
    }
}

impl<'s> Visitor for Level<'_, 's> {
    type File = File<'s>;
    type Error = Bomb;
    const OPENS_STORED: bool = true;

    fn begin(&mut self) -> Result<(), Bomb> {
        if self.found.files >= FILES || self.found.open >= OPEN {
            return Err(Bomb);
        }
        self.found.files += 1;
        self.found.open += 1;
        Ok(())
    }

    fn open(&mut self, content: Content, name: Option<&[u8]>) -> Result<Option<File<'s>>, Bomb> {
        if let Some(name) = name {
            self.check_entry_name(name);
        }
        let unpacking = match content {
            Content::Deflated if self.depth >= DEPTH => return Err(Bomb),
            Content::Deflated => {
                Unpacking::Deflated(Box::new(Decompress::new(false)), ArchiveFinder::new(FORMATS))
            }
            Content::Stored => Unpacking::Stored(Vec::new()),
            Content::Zstd => return Ok(None),
        };
        Ok(Some(File { unpacking, content: Unpacked::new(self.scanner, self.path) }))
    }

    fn feed(&mut self, file: &mut File<'s>, piece: &[u8]) -> Result<bool, Bomb> {
        let File { unpacking, content } = file;
        match unpacking {
            Unpacking::Deflated(decoder, finder) => self.inflate(decoder, piece, |output, level| {
                content.feed(output);
                finder.feed(output, level)
            }),
            Unpacking::Stored(buffer) => {
                buffer.extend_from_slice(piece);
                let end = AFTER_ENTRY.iter().filter_map(|mark| memchr::memmem::find(buffer, mark)).min();
                let rest = buffer.split_off(end.unwrap_or(buffer.len().saturating_sub(OVERLAP)));
                content.feed(buffer);
                *buffer = if end.is_some() { Vec::new() } else { rest };
                Ok(end.is_none())
            }
        }
    }

    fn close(&mut self, file: Option<File<'s>>) -> Result<(), Bomb> {
        self.found.open -= 1;
        // A truncated file is scanned up to its last byte.
        let Some(File { unpacking, mut content }) = file else { return Ok(()) };
        let ended = match unpacking {
            Unpacking::Deflated(_, mut finder) => finder.finish(&mut self.inner()),
            Unpacking::Stored(buffer) => {
                content.feed(&buffer);
                Ok(())
            }
        };
        self.found.add(content.stream.finish(), &content.hash);
        ended
    }
}

impl<'s> Level<'_, 's> {
    /// Returns the next level of nesting, for the files within a file of this level.
    fn inner(&mut self) -> Level<'_, 's> {
        Level { scanner: self.scanner, path: self.path, depth: self.depth + 1, found: self.found }
    }

    /// Inflates the next piece of a file, and passes the output to `scan`. Returns false if the file has
    /// ended or is damaged.
    fn inflate(
        &mut self,
        decoder: &mut Decompress,
        mut input: &[u8],
        mut scan: impl FnMut(&[u8], &mut Level<'_, 's>) -> Result<(), Bomb>,
    ) -> Result<bool, Bomb> {
        let mut output = vec![0; PIECE];
        loop {
            let (before_in, before_out) = (decoder.total_in(), decoder.total_out());
            let status = decoder.decompress(input, &mut output, FlushDecompress::None);
            let taken = usize::try_from(decoder.total_in() - before_in).unwrap_or(input.len());
            let made = usize::try_from(decoder.total_out() - before_out).unwrap_or(0);
            input = &input[taken..];
            self.found.unpacked += made as u64;
            if self.found.unpacked > MOST {
                return Err(Bomb);
            }
            scan(&output[..made], &mut self.inner())?;
            match status {
                Ok(Status::StreamEnd) | Err(_) => return Ok(false),
                Ok(_) if taken == 0 && made == 0 => return Ok(true),
                Ok(_) if input.is_empty() && made < output.len() => return Ok(true),
                Ok(_) => {}
            }
        }
    }

    /// Scans the name of a zip entry, and checks the name against the rules for file names.
    fn check_entry_name(&mut self, name: &[u8]) {
        let (directory, base) = split(name);
        if is_secret_file(directory, base) && self.found.file.is_none() {
            self.found.file = Some(String::from_utf8_lossy(name).into_owned());
        }
        self.found.add(self.scanner.scan(name), &Sha256::new_with_prefix(name));
    }
}

/// Returns the last two components of a path: the name of the innermost directory and the file name. The directory is
/// empty if the path has only one component.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let mut parts = path.rsplit(|byte| *byte == b'/');
    let name = parts.next().unwrap_or_default();
    (parts.next().unwrap_or_default(), name)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;

    use bottle_policy::secret::Secret;
    use bottle_scan::KnownSecrets;

    use super::*;

    const GZIP: &[u8] = b"\x1f\x8b\x08";
    const SECRET: &str = "Zq7-Kd93vXwpT2mB8ySe4Lh5Rf0Nc";

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        writer.write_all(text).expect("write");
        writer.finish().expect("finish")
    }

    /// Builds a zip archive with one deflated entry.
    fn zip(name: &str, text: &[u8]) -> Vec<u8> {
        let mut made = b"PK\x03\x04\x14\0\0\0\x08\0".to_vec();
        made.extend([0; 16]);
        made.extend([u8::try_from(name.len()).expect("short"), 0, 0, 0]);
        made.extend_from_slice(name.as_bytes());
        made.extend_from_slice(&gzip(text)[10..]);
        made
    }

    /// Builds the header of a gzip file, followed by the header of an uncompressed deflate block of `length` bytes.
    fn stored(length: u16) -> Vec<u8> {
        let [low, high] = length.to_le_bytes();
        [&b"\x1f\x8b\x08\0\0\0\0\0\0\x03\x01"[..], &[low, high, !low, !high]].concat()
    }

    fn scan(body: &[u8], size: usize) -> (bool, Option<String>, bool) {
        let known = KnownSecrets::new([&Secret::new(SECRET.to_owned())]).expect("secrets");
        let scanner = Scanner::outbound(Arc::new(known));
        let mut archives = Archives::new(&scanner, None);
        for piece in body.chunks(size) {
            archives.feed(piece);
        }
        let report = archives.finish();
        assert_eq!(report.open, 0);
        (report.findings.iter().any(|packed| packed.finding.secret.is_some()), report.file, report.bomb)
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
    fn scans_zlib_data_at_the_begin_of_a_blob() {
        for level in [0, 1, 6, 9] {
            let mut writer = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::new(level));
            writer.write_all(format!("here it is: {SECRET}, keep it").as_bytes()).expect("write");
            let body = writer.finish().expect("finish");
            for size in [1, 2, 3, 1000] {
                assert_eq!(scan(&body, size), (true, None, false), "level {level}, in {size}");
                assert_eq!(scan(&[&body[..], b" and more"].concat(), size), (true, None, false));
            }
        }
        for text in ["x", "x^2 + 1", "", "X\u{1}"] {
            assert_eq!(scan(text.as_bytes(), 1), (false, None, false), "{text:?}");
        }
    }

    #[test]
    fn each_secret_in_an_archive_is_a_finding_of_its_own() {
        let scanner = Scanner::outbound(Arc::new(KnownSecrets::new([]).expect("secrets")));
        let fingerprints = |body: &[u8]| {
            let (mut archives, mut findings) = (Archives::new(&scanner, None), PushFindings::default());
            archives.feed(body);
            let location = Location::new(None, "the names of files (packed)".to_owned());
            archives.finish().report(&location, &mut findings).expect("few findings");
            findings.found.into_iter().map(|found| found.fingerprint).collect::<Vec<_>>()
        };
        let token = |letter: &str| format!("key glpat-Zq7Kd93vXwpT2mB8y{letter}Se\n");
        let (one, other) =
            (fingerprints(&gzip(token("a").as_bytes())), fingerprints(&gzip(token("b").as_bytes())));
        assert_eq!((one.len(), other.len()), (1, 1));
        // The two findings have different fingerprints, so an approval of one finding does not cover the other.
        assert_ne!(one, other);
        assert_eq!(one, fingerprints(&[b"elsewhere", &gzip(token("a").as_bytes())[..]].concat()));
        for both in [
            gzip(format!("{}{}", token("a"), token("b")).as_bytes()),
            [gzip(token("a").as_bytes()), gzip(token("b").as_bytes())].concat(),
            [zip(&token("a"), b"x"), zip(&token("b"), b"x")].concat(),
        ] {
            assert_eq!(fingerprints(&both).len(), 2);
        }
        let name = "x".repeat(40) + &token("a");
        assert_eq!(fingerprints(&[zip(&name, b"x"), zip(&name, b"x")].concat()).len(), 1);
    }

    #[test]
    fn scans_nested_archives_or_refuses_them() {
        let mut body = SECRET.as_bytes().to_vec();
        for depth in 1..8 {
            body = if depth % 2 == 0 { zip("a", &body) } else { gzip(&body) };
            let (found, _, bomb) = scan(&body, 777);
            assert_eq!((found, bomb), (depth <= DEPTH, depth > DEPTH), "{depth}");
        }
        // Consecutive entries are not open at the same time.
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
