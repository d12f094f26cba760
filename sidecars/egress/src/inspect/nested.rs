//! Scans compressed files inside a text, wherever they begin: uploads, form parts, archive entries.
//!
//! Files are found by their magic numbers. A magic number without a file is ordinary text and hides nothing behind it.
//! A file that cannot be decoded (a password, a rare method) is scanned as it is, so entry names are always seen. A
//! text with more files than the limits is denied, never forwarded unscanned.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bottle_scan::{Finding, Scanner, Severity, Stream};

use super::decode::{ALWAYS_ALLOWED, Coding, Decoder, MAX_RATIO, gzip_header};
use super::unreadable::Unreadable;

/// Nesting depth of files. An archive in an archive in an image layer is as deep.
const MAX_DEPTH: usize = 6;
/// Files in one body, on all levels: each costs more than its bytes.
const MAX_FILES: usize = 1 << 16;
/// Open files at once, on all levels: each receives every byte of the text. Bytes that resemble the beginning of a
/// file fail soon, so many at once are an attempt to hide one.
const MAX_OPEN: usize = 64;
/// The longest magic number, less one byte.
const TAIL: usize = 3;
/// The longest header between a magic number and the compressed data.
const MAX_HEADER: usize = 192 << 10;
/// Bytes of a header at its first parse; doubled for each further one.
const FIRST_PARSE: usize = 32;

const GZIP: &[u8] = b"\x1f\x8b\x08";
const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd";
const ZIP: &[u8] = b"PK\x03\x04";
const MAGIC_NUMBERS: [&[u8]; 3] = [GZIP, ZSTD, ZIP];

/// Finds and scans files in a text. Every magic number is followed, also inside another file: only a file's end shows
/// whether it was one.
pub(super) struct NestedFiles {
    scanner: Arc<Scanner>,
    budget: Arc<Budget>,
    depth: usize,
    candidates: Vec<Candidate>,
    /// The last bytes of the text, where a magic number may begin.
    tail: Vec<u8>,
    found: Vec<Finding>,
}

/// The shared limits of all files in one body.
#[derive(Default)]
struct Budget {
    files: AtomicUsize,
    open: AtomicUsize,
    /// Bytes of the body, and bytes decoded from its files.
    input_bytes: AtomicU64,
    output_bytes: AtomicU64,
}

impl Budget {
    fn open_file(&self) -> Result<(), Unreadable> {
        let files = self.files.fetch_add(1, Ordering::Relaxed);
        let open = self.open.fetch_add(1, Ordering::Relaxed);
        if files >= MAX_FILES || open >= MAX_OPEN { Err(Unreadable::Nested) } else { Ok(()) }
    }

    fn close_file(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    fn add_output(&self, length: usize) -> Result<(), Unreadable> {
        let output_bytes = self.output_bytes.fetch_add(length as u64, Ordering::Relaxed) + length as u64;
        let limit =
            ALWAYS_ALLOWED.saturating_add(self.input_bytes.load(Ordering::Relaxed).saturating_mul(MAX_RATIO));
        if output_bytes > limit { Err(Unreadable::Bomb) } else { Ok(()) }
    }
}

/// A magic number's candidate: an incomplete header, then a file.
struct Candidate {
    buffer: Vec<u8>,
    /// Bytes needed before the header is parsed again.
    wanted: usize,
    file: Option<Box<File>>,
}

struct File {
    decoder: Decoder,
    text: Stream<Arc<Scanner>>,
    nested: NestedFiles,
}

/// A parsed header.
enum Header {
    /// The header is incomplete.
    Incomplete,
    /// It begins no file that can be decoded.
    NotAFile,
    /// A decoder, and the header's length.
    File(Box<Decoder>, usize),
}

impl NestedFiles {
    pub(super) fn new(scanner: &Arc<Scanner>) -> Self {
        Self::at_depth(scanner, Arc::default(), 0)
    }

    fn at_depth(scanner: &Arc<Scanner>, budget: Arc<Budget>, depth: usize) -> Self {
        Self {
            scanner: Arc::clone(scanner),
            budget,
            depth,
            candidates: Vec::new(),
            tail: Vec::new(),
            found: Vec::new(),
        }
    }

    pub(super) fn scanner(&self) -> &Arc<Scanner> {
        &self.scanner
    }

    /// Scans the next chunk of the text.
    ///
    /// # Errors
    /// [`Unreadable::Bomb`] and [`Unreadable::Nested`]: the files exceed the limits.
    pub(super) fn feed(&mut self, chunk: &[u8]) -> Result<(), Unreadable> {
        if self.depth == 0 {
            self.budget.input_bytes.fetch_add(chunk.len() as u64, Ordering::Relaxed);
        }
        // A magic number may begin in the previous chunk. Its candidate starts first and receives all of this chunk.
        let old = self.tail.len();
        self.tail.extend_from_slice(&chunk[..chunk.len().min(TAIL)]);
        let is_partial = |at: &usize| *at < old && !is_magic(&self.tail[*at..old]);
        let partial: Vec<usize> = magic_positions(&self.tail).filter(is_partial).collect();
        for at in partial {
            self.begin(self.tail[at..old].to_vec())?;
        }
        // All open files receive the same bytes, up to the next magic number.
        let mut at = 0;
        for magic in magic_positions(chunk) {
            self.feed_open(&chunk[at..magic])?;
            self.begin(Vec::new())?;
            at = magic;
        }
        self.feed_open(&chunk[at..])?;
        if chunk.len() >= TAIL {
            self.tail.clear();
            self.tail.extend_from_slice(&chunk[chunk.len() - TAIL..]);
        } else {
            self.tail.drain(..self.tail.len().saturating_sub(TAIL));
        }
        Ok(())
    }

    fn begin(&mut self, buffer: Vec<u8>) -> Result<(), Unreadable> {
        self.budget.open_file()?;
        self.candidates.push(Candidate { buffer, wanted: FIRST_PARSE, file: None });
        Ok(())
    }

    /// Feeds `chunk` to all open candidates.
    fn feed_open(&mut self, chunk: &[u8]) -> Result<(), Unreadable> {
        let mut at = 0;
        while at < self.candidates.len() {
            let mut candidate = self.candidates.swap_remove(at);
            match candidate.feed(chunk, |decoder| self.open_nested(decoder)) {
                Ok(false) => {
                    self.candidates.push(candidate);
                    let last = self.candidates.len() - 1;
                    self.candidates.swap(at, last);
                    at += 1;
                }
                Ok(true) => self.close(candidate),
                Err(why @ (Unreadable::Bomb | Unreadable::Nested)) => return Err(why),
                // Not a file, or its end.
                Err(_) => self.close(candidate),
            }
        }
        Ok(())
    }

    /// Opens a file and scans its content.
    fn open_nested(&self, decoder: Decoder) -> Result<Box<File>, Unreadable> {
        if self.depth >= MAX_DEPTH {
            return Err(Unreadable::Nested);
        }
        let nested = Self::at_depth(&self.scanner, Arc::clone(&self.budget), self.depth + 1);
        Ok(Box::new(File { decoder, text: self.scanner.stream_owned(), nested }))
    }

    fn close(&mut self, candidate: Candidate) {
        self.budget.close_file();
        if let Some(file) = candidate.file {
            self.keep_findings(file.finish());
        }
    }

    fn keep_findings(&mut self, found: Vec<Finding>) {
        // A few findings suffice; the rest would only cost memory.
        let room = 16_usize.saturating_sub(self.found.len());
        let blocks = found.into_iter().filter(|finding| finding.severity == Severity::Block);
        self.found.extend(blocks.take(room));
    }

    /// Ends the text.
    pub(super) fn finish(mut self) -> Vec<Finding> {
        for mut candidate in std::mem::take(&mut self.candidates) {
            // Parse a header that waits for further bytes.
            candidate.wanted = 0;
            let _ = candidate.feed(&[], |decoder| self.open_nested(decoder));
            self.close(candidate);
        }
        self.found
    }
}

impl Candidate {
    /// Feeds the next chunk; returns whether the candidate has ended.
    fn feed(
        &mut self,
        chunk: &[u8],
        open_nested: impl FnOnce(Decoder) -> Result<Box<File>, Unreadable>,
    ) -> Result<bool, Unreadable> {
        if let Some(file) = &mut self.file {
            return file.feed(chunk);
        }
        self.buffer.extend_from_slice(chunk);
        if self.buffer.len() < self.wanted.min(MAX_HEADER) {
            return Ok(false);
        }
        match parse_header(&self.buffer) {
            Header::File(decoder, head) => {
                let buffer = std::mem::take(&mut self.buffer);
                self.file.insert(open_nested(*decoder)?).feed(&buffer[head..])
            }
            Header::Incomplete if self.buffer.len() < MAX_HEADER => {
                self.wanted = self.buffer.len() * 2;
                Ok(false)
            }
            Header::Incomplete | Header::NotAFile => Ok(true),
        }
    }
}

impl File {
    /// Feeds the next chunk; returns whether the file ends in it.
    fn feed(&mut self, chunk: &[u8]) -> Result<bool, Unreadable> {
        let Self { decoder, text, nested } = self;
        let (_, ended) = decoder.feed_until_end(chunk, &mut |chunk| {
            nested.budget.add_output(chunk.len())?;
            text.feed(chunk);
            nested.feed(chunk)
        })?;
        Ok(ended)
    }

    fn finish(self) -> Vec<Finding> {
        let mut found = self.text.finish().findings;
        found.extend(self.nested.finish());
        found
    }
}

/// The positions of magic numbers, in order.
fn magic_positions(text: &[u8]) -> impl Iterator<Item = usize> {
    // One search each: the first bytes of all three together occur in every text.
    let mut all: Vec<usize> =
        MAGIC_NUMBERS.iter().flat_map(|magic| memchr::memmem::find_iter(text, magic)).collect();
    all.sort_unstable();
    all.into_iter()
}

fn is_magic(text: &[u8]) -> bool {
    MAGIC_NUMBERS.iter().any(|magic| text.starts_with(magic))
}

/// Parses the header at the beginning of `text`.
fn parse_header(text: &[u8]) -> Header {
    let file = |decoder: Decoder, length: usize| Header::File(Box::new(decoder), length);
    if text.starts_with(ZSTD) {
        return file(Decoder::new(Coding::Zstd), 0);
    }
    if text.starts_with(GZIP) {
        return match gzip_header(text) {
            Ok(Some(length)) => file(Decoder::bare_deflate(), length),
            Ok(None) => Header::Incomplete,
            Err(_) => Header::NotAFile,
        };
    }
    if !text.starts_with(ZIP) {
        return if ZIP.starts_with(text) { Header::Incomplete } else { Header::NotAFile };
    }
    let number = |at: usize| text.get(at..at + 2).and_then(<[u8]>::first_chunk::<2>);
    let (Some(method), Some(name), Some(extra)) = (number(8), number(26), number(28)) else {
        return Header::Incomplete;
    };
    if u16::from_le_bytes(*method) != 8 {
        return Header::NotAFile;
    }
    let length = 30 + usize::from(u16::from_le_bytes(*name)) + usize::from(u16::from_le_bytes(*extra));
    if text.len() < length { Header::Incomplete } else { file(Decoder::bare_deflate(), length) }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use bottle_contract::secret::Secret;
    use bottle_scan::KnownSecrets;

    use super::*;

    const SECRET: &str = "Zq7-Kd93vXwpT2mB8ySe4Lh5Rf0Nc";

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        writer.write_all(text).expect("write");
        writer.finish().expect("finish")
    }

    fn zstd(text: &[u8]) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(text, ruzstd::encoding::CompressionLevel::Fastest)
    }

    /// An archive with one deflated entry.
    fn zip(text: &[u8]) -> Vec<u8> {
        let deflated = &gzip(text)[10..];
        let mut archive = b"PK\x03\x04\x14\0\0\0\x08\0".to_vec();
        archive.extend([0; 16]);
        archive.extend([5, 0, 0, 0]);
        archive.extend_from_slice(b"a.txt");
        archive.extend_from_slice(deflated);
        archive
    }

    /// The header of a gzip file with a stored block of `length` bytes.
    fn stored(length: u16) -> Vec<u8> {
        let [low, high] = length.to_le_bytes();
        [&b"\x1f\x8b\x08\0\0\0\0\0\0\x03\x01"[..], &[low, high, !low, !high]].concat()
    }

    fn scan(body: &[u8], size: usize) -> Result<bool, Unreadable> {
        let known = KnownSecrets::new([&Secret::new(SECRET.to_owned())]).expect("secrets");
        let mut nested = NestedFiles::new(&Arc::new(Scanner::outbound(Arc::new(known))));
        for chunk in body.chunks(size) {
            nested.feed(chunk)?;
        }
        Ok(!nested.finish().is_empty())
    }

    #[test]
    fn a_decoy_hides_no_file_behind_it() {
        let mut state = 88_172_645_463_325_252_u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_be_bytes()[0]
        };
        let noise: Vec<u8> = (0..6_000).map(|_| random()).collect();
        // Complete files without a secret, and incomplete ones.
        let gzip_cut = gzip(&noise)[..3000].to_vec();
        let decoys: Vec<(&str, Vec<u8>)> = vec![
            ("a magic number alone", GZIP.to_vec()),
            ("a header alone", b"\x1f\x8b\x08\0\0\0\0\0\0\x03".to_vec()),
            ("a header with an endless name", b"\x1f\x8b\x08\x08\0\0\0\0\0\x03name".to_vec()),
            ("a truncated header", b"\x1f\x8b\x08\x04\0\0\0\0\0\x03\xff\xff".to_vec()),
            ("endless content", stored(60_000)),
            ("short content", stored(20)),
            ("truncated content", gzip_cut),
            ("a file", gzip(b"nothing")),
            ("a file of zeros", gzip(&[0; 100_000])),
            (
                "nested stored blocks",
                [stored(65_000), stored(60_000), stored(55_000), stored(50_000)].concat(),
            ),
            ("zstd", b"\x28\xb5\x2f\xfd\x04\x00\xff\xff\x0f".to_vec()),
            ("endless zstd", b"\x28\xb5\x2f\xfd\xa0\0\0\x10\0\0\0\x08".to_vec()),
            ("zip", b"PK\x03\x04\x14\0\0\0\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\xff\xff\xff\xff".to_vec()),
            ("zip with a password", b"PK\x03\x04\x14\0\x01\0\x63\0".to_vec()),
            ("bzip2", b"BZh91AY&SY".to_vec()),
            ("xz", b"\xfd7zXZ\0\0\x04".to_vec()),
            ("many", [stored(60_000), GZIP.to_vec(), ZSTD.to_vec(), ZIP.to_vec()].concat().repeat(10)),
        ];
        let text = format!("here it is: {SECRET}, keep it");
        for (name, decoy) in &decoys {
            for (kind, real) in [
                ("gzip", gzip(text.as_bytes())),
                ("zstd", zstd(text.as_bytes())),
                ("zip", zip(text.as_bytes())),
            ] {
                for between in [&b""[..], b"\n", &noise] {
                    let body = [decoy, between, &real, b" and more"].concat();
                    for size in [body.len(), 1000, decoy.len(), 3] {
                        let seen = scan(&body, size);
                        // More candidates than occur by chance are denied.
                        let good = seen == Ok(true) || *name == "many" && seen == Err(Unreadable::Nested);
                        assert!(good, "{name} before {kind}, {} between, in {size}: {seen:?}", between.len());
                    }
                }
            }
            assert_ne!(scan(&[&decoy[..], b"nothing", &gzip(b"nothing")].concat(), 50), Ok(true), "{name}");
        }
    }

    #[test]
    fn finds_or_denies_nested_files() {
        let mut body = SECRET.as_bytes().to_vec();
        for depth in 1..10 {
            body = if depth % 2 == 0 { zip(&body) } else { gzip(&body) };
            let seen = scan(&body, 777);
            if depth <= MAX_DEPTH {
                assert_eq!(seen, Ok(true), "{depth}");
            } else {
                assert_eq!(seen, Err(Unreadable::Nested), "{depth}");
            }
        }
        let members = [gzip(b"one"), gzip(b"two"), gzip(SECRET.as_bytes())].concat();
        assert_eq!(scan(&members, members.len()), Ok(true));
    }

    #[test]
    fn many_magic_numbers_cost_linear_time() {
        let bomb = gzip(&vec![0; 8 << 20]);
        for (name, chunk) in [
            ("magic numbers", GZIP.to_vec()),
            ("headers", b"\x1f\x8b\x08\0\0\0\0\0\0\x03".to_vec()),
            ("endless names", b"\x1f\x8b\x08\x08\0\0\0\0\0\x03name".to_vec()),
            ("endless content", stored(65_535)),
            ("zip", b"PK\x03\x04\x14\0\0\0\x08\0".to_vec()),
            ("zstd", ZSTD.to_vec()),
            ("large files", bomb),
        ] {
            let body = chunk.repeat((1 << 18) / chunk.len());
            for size in [body.len(), 1000] {
                let start = std::time::Instant::now();
                let _ = scan(&body, size);
                let elapsed = start.elapsed();
                // A debug build on a busy machine; quadratic cost takes minutes.
                assert!(elapsed.as_secs() < 60, "{name} in {size}: {elapsed:?}");
            }
        }
    }
}
