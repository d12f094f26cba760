//! Scans compressed files inside a text, for example uploads, form parts and archive entries. A file may begin at any
//! position of the text.
//!
//! The scan finds files by their magic numbers. A magic number that does not begin a valid file is ordinary text, and
//! the text after it is still scanned. A file that cannot be decoded (because of a password or a rare method) is
//! scanned without decoding, so the names of archive entries are always scanned. If a text exceeds the limits on files,
//! the proxy denies the text and never forwards it unscanned.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bottle_scan::archive_finder::{ArchiveFinder, Content, GZIP, Visitor, ZIP, ZSTD};
use bottle_scan::{Finding, Scanner, Severity, Stream};

use super::decode::{ALWAYS_ALLOWED, Coding, Decoder, MAX_RATIO};
use super::decoded_memory::DecodedMemory;
use super::unreadable::Unreadable;

/// Maximum nesting depth of files. A text with a deeper file is denied. An archive in an archive in an image layer
/// needs three levels.
const MAX_DEPTH: usize = 6;
/// Maximum number of files in one body, on all levels. A body with more files is denied, because each file has a cost
/// in addition to the cost of its bytes.
const MAX_FILES: usize = 1 << 16;
/// Maximum number of files that are decoded at the same time, on all levels. A body with more such files is denied,
/// because the decoder of each of these files receives every byte of the text. Bytes that only resemble the beginning
/// of a file soon fail to decode, so many candidates at the same time are an attempt to hide a file.
const MAX_OPEN: usize = 64;
/// Maximum number of findings in all files on one level. Further findings are dropped, because a few suffice for the
/// verdict and more would only cost memory.
const MAX_FINDINGS: usize = 16;

/// Finds and scans files in a text.
pub(super) struct NestedFiles {
    finder: ArchiveFinder<File>,
    unpacker: Unpacker,
}

/// Decodes and scans the files on one level.
struct Unpacker {
    scanner: Arc<Scanner>,
    budget: Arc<Budget>,
    depth: usize,
    found: Vec<Finding>,
}

/// The resources that all files in one body use together.
#[derive(Default)]
struct Budget {
    files: AtomicUsize,
    open: AtomicUsize,
    /// Bytes of the body. `output_bytes` counts the bytes that were decoded from the body's files.
    input_bytes: AtomicU64,
    output_bytes: AtomicU64,
    memory: DecodedMemory,
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

struct File {
    decoder: Decoder,
    text: Stream<Arc<Scanner>>,
    nested: NestedFiles,
}

impl NestedFiles {
    /// Starts a scan. The decoders' windows count towards `memory`.
    pub(super) fn new(scanner: &Arc<Scanner>, memory: &DecodedMemory) -> Self {
        let budget = Budget { memory: memory.clone(), ..Budget::default() };
        Self::at_depth(scanner, Arc::new(budget), 0)
    }

    fn at_depth(scanner: &Arc<Scanner>, budget: Arc<Budget>, depth: usize) -> Self {
        let unpacker = Unpacker { scanner: Arc::clone(scanner), budget, depth, found: Vec::new() };
        Self { finder: ArchiveFinder::new(&[GZIP, ZSTD, ZIP]), unpacker }
    }

    pub(super) fn scanner(&self) -> &Arc<Scanner> {
        &self.unpacker.scanner
    }

    /// Scans the next chunk of the text.
    ///
    /// # Errors
    /// [`Unreadable::Bomb`] or [`Unreadable::Nested`] if the files exceed the limits.
    pub(super) fn feed(&mut self, chunk: &[u8]) -> Result<(), Unreadable> {
        if self.unpacker.depth == 0 {
            self.unpacker.budget.input_bytes.fetch_add(chunk.len() as u64, Ordering::Relaxed);
        }
        self.finder.feed(chunk, &mut self.unpacker)
    }

    /// Ends the text and returns the blocking findings in its files.
    ///
    /// # Errors
    /// The errors of [`Self::feed`].
    pub(super) fn finish(mut self) -> Result<Vec<Finding>, Unreadable> {
        self.finder.finish(&mut self.unpacker)?;
        Ok(self.unpacker.found)
    }
}

impl Visitor for Unpacker {
    type File = File;
    type Error = Unreadable;
    const OPENS_STORED: bool = false;

    fn begin(&mut self) -> Result<(), Unreadable> {
        self.budget.open_file()
    }

    fn open(&mut self, content: Content, _name: Option<&[u8]>) -> Result<Option<File>, Unreadable> {
        let decoder = match content {
            Content::Deflated => Decoder::bare_deflate(),
            Content::Zstd => Decoder::new(Coding::Zstd, &self.budget.memory),
            Content::Stored => return Ok(None),
        };
        if self.depth >= MAX_DEPTH {
            return Err(Unreadable::Nested);
        }
        let nested = NestedFiles::at_depth(&self.scanner, Arc::clone(&self.budget), self.depth + 1);
        Ok(Some(File { decoder, text: self.scanner.stream_owned(), nested }))
    }

    fn feed(&mut self, file: &mut File, chunk: &[u8]) -> Result<bool, Unreadable> {
        let File { decoder, text, nested } = file;
        let fed = decoder.feed_until_end(chunk, &mut |chunk| {
            nested.unpacker.budget.add_output(chunk.len())?;
            text.feed(chunk);
            nested.feed(chunk)
        });
        match fed {
            Ok((_, ended)) => Ok(!ended),
            Err(error @ (Unreadable::Bomb | Unreadable::Nested | Unreadable::MemoryFull)) => Err(error),
            // The text is not a file of this kind, or the file has ended.
            Err(Unreadable::Broken | Unreadable::Coding) => Ok(false),
        }
    }

    fn close(&mut self, file: Option<File>) -> Result<(), Unreadable> {
        self.budget.close_file();
        let Some(file) = file else { return Ok(()) };
        let found = file.text.finish().findings.into_iter().chain(file.nested.finish()?);
        let blocks = found.filter(|finding| finding.severity == Severity::Block);
        self.found.extend(blocks.take(MAX_FINDINGS.saturating_sub(self.found.len())));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use bottle_policy::secret::Secret;
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

    /// Returns a zip archive with one deflated entry.
    fn zip(text: &[u8]) -> Vec<u8> {
        let deflated = &gzip(text)[10..];
        let mut archive = b"PK\x03\x04\x14\0\0\0\x08\0".to_vec();
        archive.extend([0; 16]);
        archive.extend([5, 0, 0, 0]);
        archive.extend_from_slice(b"a.txt");
        archive.extend_from_slice(deflated);
        archive
    }

    /// Returns the header of a gzip file, and the header of a stored block of `length` bytes.
    fn stored(length: u16) -> Vec<u8> {
        let [low, high] = length.to_le_bytes();
        [&b"\x1f\x8b\x08\0\0\0\0\0\0\x03\x01"[..], &[low, high, !low, !high]].concat()
    }

    fn scan(body: &[u8], size: usize) -> Result<bool, Unreadable> {
        let known = KnownSecrets::new([&Secret::new(SECRET.to_owned())]).expect("secrets");
        let scanner = Arc::new(Scanner::outbound(Arc::new(known)));
        let mut nested = NestedFiles::new(&scanner, &DecodedMemory::default());
        for chunk in body.chunks(size) {
            nested.feed(chunk)?;
        }
        Ok(!nested.finish()?.is_empty())
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
        // Complete files without a secret, and incomplete files.
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
                        // The scan denies a text with more beginnings of files than occur by chance.
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

    /// Returns a gzip file with a file name of `length` bytes. The zero byte after the name ends the header.
    fn gzip_named(length: usize, text: &[u8]) -> Vec<u8> {
        [b"\x1f\x8b\x08\x08\0\0\0\0\0\x03", &vec![b'n'; length][..], b"\0", &gzip(text)[10..]].concat()
    }

    #[test]
    fn denies_a_file_beyond_the_limits_that_ends_with_its_text() {
        let mut body = gzip_named(150, SECRET.as_bytes());
        assert_eq!(scan(&body, 777), Ok(true));
        for _ in 0..MAX_DEPTH {
            body = gzip(&body);
        }
        assert_eq!(scan(&body, 777), Err(Unreadable::Nested));
        let mut zeros = vec![0; 40 << 20];
        zeros.extend_from_slice(SECRET.as_bytes());
        assert_eq!(scan(&gzip_named(66_000, &zeros), 777), Err(Unreadable::Bomb));
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
                // The time limit allows for a debug build on a busy machine. A scan with quadratic cost would take
                // minutes.
                assert!(elapsed.as_secs() < 60, "{name} in {size}: {elapsed:?}");
            }
        }
    }
}
