//! Compressed files inside a text, wherever they begin: uploads, parts of a form, entries of an archive.
//!
//! Found by the marks with which they begin. A mark that begins nothing is text like any other and hides nothing
//! that comes after it; what does not open (a password, a rare method) is looked at as it is, so that entries'
//! names are seen in any case. What is more than anybody looks at is refused, never passed unseen.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bottle_scan::{Finding, Scanner, Severity, Stream};

use super::decode::{Coding, Decoder, FREE, TIMES, gzip_head};
use super::unreadable::Unreadable;

/// Files within files. An archive in an archive in a layer of an image is as deep.
const DEPTH: usize = 6;
/// Files in one body, on all levels. What has more is refused: each costs more than its bytes.
const FILES: usize = 1 << 16;
/// Files that are open at once, on all levels: each byte of a text is given to all of them. Bytes that only look
/// like the beginning of a file are none soon, so that many at once are made to hide one.
const OPEN: usize = 64;
/// Bytes that a mark may be long, less one.
const LAP: usize = 3;
/// The longest head between a mark and what is compressed.
const HEAD: usize = 192 << 10;
/// So many bytes of a head are looked at first, and twice as many each time after.
const FIRST: usize = 32;

const GZIP: &[u8] = b"\x1f\x8b\x08";
const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd";
const ZIP: &[u8] = b"PK\x03\x04";
const MARKS: [&[u8]; 3] = [GZIP, ZSTD, ZIP];

/// Looks for files in a text and into them. Every mark is followed, also one within what an earlier one opened:
/// which of them begins a file is known only at its end.
pub(super) struct Nested {
    scanner: Arc<Scanner>,
    budget: Arc<Budget>,
    depth: usize,
    candidates: Vec<Candidate>,
    /// The last bytes of the text so far, where a mark may begin.
    lap: Vec<u8>,
    found: Vec<Finding>,
}

/// What all files of one body may cost together.
#[derive(Default)]
struct Budget {
    files: AtomicUsize,
    open: AtomicUsize,
    /// Bytes of the body, and bytes that came out of its files.
    came: AtomicU64,
    went: AtomicU64,
}

impl Budget {
    fn begins(&self) -> Result<(), Unreadable> {
        let files = self.files.fetch_add(1, Ordering::Relaxed);
        let open = self.open.fetch_add(1, Ordering::Relaxed);
        if files >= FILES || open >= OPEN { Err(Unreadable::Nested) } else { Ok(()) }
    }

    fn ends(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    fn grows(&self, length: usize) -> Result<(), Unreadable> {
        let went = self.went.fetch_add(length as u64, Ordering::Relaxed) + length as u64;
        let most = FREE.saturating_add(self.came.load(Ordering::Relaxed).saturating_mul(TIMES));
        if went > most { Err(Unreadable::Bomb) } else { Ok(()) }
    }
}

/// What begins at a mark: a head that is not all there yet, then a file.
struct Candidate {
    held: Vec<u8>,
    /// How much has to be there before the head is looked at again.
    wanted: usize,
    file: Option<Box<File>>,
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
        Self::at(scanner, Arc::default(), 0)
    }

    fn at(scanner: &Arc<Scanner>, budget: Arc<Budget>, depth: usize) -> Self {
        Self {
            scanner: Arc::clone(scanner),
            budget,
            depth,
            candidates: Vec::new(),
            lap: Vec::new(),
            found: Vec::new(),
        }
    }

    pub(super) fn scanner(&self) -> &Arc<Scanner> {
        &self.scanner
    }

    /// Takes the next piece of the text.
    ///
    /// # Errors
    /// [`Unreadable::Bomb`] and [`Unreadable::Nested`]: more is packed in it than is looked at.
    pub(super) fn feed(&mut self, piece: &[u8]) -> Result<(), Unreadable> {
        if self.depth == 0 {
            self.budget.came.fetch_add(piece.len() as u64, Ordering::Relaxed);
        }
        // A mark may begin in the piece before. Those that do are opened first, and get all of this one.
        let held = self.lap.len();
        self.lap.extend_from_slice(&piece[..piece.len().min(LAP)]);
        let is_over = |at: &usize| *at < held && !is_mark(&self.lap[*at..held]);
        let over: Vec<usize> = marks(&self.lap).filter(is_over).collect();
        for at in over {
            self.begin(self.lap[at..held].to_vec())?;
        }
        // All that are open get the same bytes, up to where the next begins.
        let mut at = 0;
        for mark in marks(piece) {
            self.give(&piece[at..mark])?;
            self.begin(Vec::new())?;
            at = mark;
        }
        self.give(&piece[at..])?;
        if piece.len() >= LAP {
            self.lap.clear();
            self.lap.extend_from_slice(&piece[piece.len() - LAP..]);
        } else {
            self.lap.drain(..self.lap.len().saturating_sub(LAP));
        }
        Ok(())
    }

    fn begin(&mut self, held: Vec<u8>) -> Result<(), Unreadable> {
        self.budget.begins()?;
        self.candidates.push(Candidate { held, wanted: FIRST, file: None });
        Ok(())
    }

    /// `piece` to everything that is open.
    fn give(&mut self, piece: &[u8]) -> Result<(), Unreadable> {
        let mut at = 0;
        while at < self.candidates.len() {
            let mut candidate = self.candidates.swap_remove(at);
            match candidate.feed(piece, |decoder| self.enter(decoder)) {
                Ok(false) => {
                    self.candidates.push(candidate);
                    let last = self.candidates.len() - 1;
                    self.candidates.swap(at, last);
                    at += 1;
                }
                Ok(true) => self.close(candidate),
                Err(why @ (Unreadable::Bomb | Unreadable::Nested)) => return Err(why),
                // No file after all, or its end.
                Err(_) => self.close(candidate),
            }
        }
        Ok(())
    }

    /// A file in which its content is looked at.
    fn enter(&self, decoder: Decoder) -> Result<Box<File>, Unreadable> {
        if self.depth >= DEPTH {
            return Err(Unreadable::Nested);
        }
        let nested = Self::at(&self.scanner, Arc::clone(&self.budget), self.depth + 1);
        Ok(Box::new(File { decoder, text: self.scanner.stream_owned(), nested }))
    }

    fn close(&mut self, candidate: Candidate) {
        self.budget.ends();
        if let Some(file) = candidate.file {
            self.keep(file.finish());
        }
    }

    fn keep(&mut self, found: Vec<Finding>) {
        // A few of them say enough; the rest would only be memory.
        let room = 16_usize.saturating_sub(self.found.len());
        let blocks = found.into_iter().filter(|finding| finding.severity == Severity::Block);
        self.found.extend(blocks.take(room));
    }

    /// The text has ended.
    pub(super) fn finish(mut self) -> Vec<Finding> {
        for mut candidate in std::mem::take(&mut self.candidates) {
            // A head that waits for more than there is.
            candidate.wanted = 0;
            let _ = candidate.feed(&[], |decoder| self.enter(decoder));
            self.close(candidate);
        }
        self.found
    }
}

impl Candidate {
    /// Takes the next piece; whether it has ended.
    fn feed(
        &mut self,
        piece: &[u8],
        enter: impl FnOnce(Decoder) -> Result<Box<File>, Unreadable>,
    ) -> Result<bool, Unreadable> {
        if let Some(file) = &mut self.file {
            return file.feed(piece);
        }
        self.held.extend_from_slice(piece);
        if self.held.len() < self.wanted.min(HEAD) {
            return Ok(false);
        }
        match opened(&self.held) {
            Opened::File(decoder, head) => {
                let held = std::mem::take(&mut self.held);
                self.file.insert(enter(*decoder)?).feed(&held[head..])
            }
            Opened::Not if self.held.len() < HEAD => {
                self.wanted = self.held.len() * 2;
                Ok(false)
            }
            Opened::Not | Opened::Nothing => Ok(true),
        }
    }
}

impl File {
    /// Whether it ends in this piece.
    fn feed(&mut self, piece: &[u8]) -> Result<bool, Unreadable> {
        let Self { decoder, text, nested } = self;
        let (_, ended) = decoder.feed_until_end(piece, &mut |piece| {
            nested.budget.grows(piece.len())?;
            text.feed(piece);
            nested.feed(piece)
        })?;
        Ok(ended)
    }

    fn finish(self) -> Vec<Finding> {
        let mut found = self.text.finish().findings;
        found.extend(self.nested.finish());
        found
    }
}

/// Where marks begin, in order.
fn marks(text: &[u8]) -> impl Iterator<Item = usize> {
    // Each by itself: their first bytes are in every text, together they are in hardly any.
    let mut all: Vec<usize> = MARKS.iter().flat_map(|mark| memchr::memmem::find_iter(text, mark)).collect();
    all.sort_unstable();
    all.into_iter()
}

fn is_mark(text: &[u8]) -> bool {
    MARKS.iter().any(|mark| text.starts_with(mark))
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

    /// An archive of one deflated entry.
    fn zip(text: &[u8]) -> Vec<u8> {
        let deflated = &gzip(text)[10..];
        let mut made = b"PK\x03\x04\x14\0\0\0\x08\0".to_vec();
        made.extend([0; 16]);
        made.extend([5, 0, 0, 0]);
        made.extend_from_slice(b"a.txt");
        made.extend_from_slice(deflated);
        made
    }

    /// The head of a gzip whose content is stored as it is: so many bytes of what follows belong to it.
    fn stored(length: u16) -> Vec<u8> {
        let [low, high] = length.to_le_bytes();
        [&b"\x1f\x8b\x08\0\0\0\0\0\0\x03\x01"[..], &[low, high, !low, !high]].concat()
    }

    fn look(body: &[u8], size: usize) -> Result<bool, Unreadable> {
        let known = KnownSecrets::new([&Secret::new(SECRET.to_owned())]).expect("secrets");
        let mut nested = Nested::in_scanner(&Arc::new(Scanner::outbound(Arc::new(known))));
        for piece in body.chunks(size) {
            nested.feed(piece)?;
        }
        Ok(!nested.finish().is_empty())
    }

    #[test]
    fn a_decoy_hides_nothing_that_comes_after_it() {
        let mut state = 88_172_645_463_325_252_u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_be_bytes()[0]
        };
        let noise: Vec<u8> = (0..6_000).map(|_| random()).collect();
        // Whole files with nothing in them, and beginnings of none.
        let gzip_cut = gzip(&noise)[..3000].to_vec();
        let decoys: Vec<(&str, Vec<u8>)> = vec![
            ("a mark alone", GZIP.to_vec()),
            ("a head alone", b"\x1f\x8b\x08\0\0\0\0\0\0\x03".to_vec()),
            ("a head with a name that does not end", b"\x1f\x8b\x08\x08\0\0\0\0\0\x03name".to_vec()),
            ("a head with more than there is", b"\x1f\x8b\x08\x04\0\0\0\0\0\x03\xff\xff".to_vec()),
            ("content that goes on", stored(60_000)),
            ("content that goes on a little", stored(20)),
            ("content that ends within", gzip_cut),
            ("a file", gzip(b"nothing")),
            ("a file of zeros", gzip(&[0; 100_000])),
            (
                "three of them in one another",
                [stored(65_000), stored(60_000), stored(55_000), stored(50_000)].concat(),
            ),
            ("zstd", b"\x28\xb5\x2f\xfd\x04\x00\xff\xff\x0f".to_vec()),
            ("zstd that goes on", b"\x28\xb5\x2f\xfd\xa0\0\0\x10\0\0\0\x08".to_vec()),
            ("zip", b"PK\x03\x04\x14\0\0\0\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\xff\xff\xff\xff".to_vec()),
            ("zip with a password", b"PK\x03\x04\x14\0\x01\0\x63\0".to_vec()),
            ("bzip2", b"BZh91AY&SY".to_vec()),
            ("xz", b"\xfd7zXZ\0\0\x04".to_vec()),
            ("many", [stored(60_000), GZIP.to_vec(), ZSTD.to_vec(), ZIP.to_vec()].concat().repeat(10)),
        ];
        let said = format!("here it is: {SECRET}, keep it");
        for (name, decoy) in &decoys {
            for (kind, real) in [
                ("gzip", gzip(said.as_bytes())),
                ("zstd", zstd(said.as_bytes())),
                ("zip", zip(said.as_bytes())),
            ] {
                for between in [&b""[..], b"\n", &noise] {
                    let body = [decoy, between, &real, b" and more"].concat();
                    for size in [body.len(), 1000, decoy.len(), 3] {
                        let seen = look(&body, size);
                        // More of them than anybody makes by chance are refused.
                        let good = seen == Ok(true) || *name == "many" && seen == Err(Unreadable::Nested);
                        assert!(good, "{name} before {kind}, {} between, in {size}: {seen:?}", between.len());
                    }
                }
            }
            assert_ne!(look(&[&decoy[..], b"nothing", &gzip(b"nothing")].concat(), 50), Ok(true), "{name}");
        }
    }

    #[test]
    fn files_in_files_are_found_or_refused() {
        let mut body = SECRET.as_bytes().to_vec();
        for depth in 1..10 {
            body = if depth % 2 == 0 { zip(&body) } else { gzip(&body) };
            let seen = look(&body, 777);
            if depth <= DEPTH {
                assert_eq!(seen, Ok(true), "{depth}");
            } else {
                assert_eq!(seen, Err(Unreadable::Nested), "{depth}");
            }
        }
        let members = [gzip(b"one"), gzip(b"two"), gzip(SECRET.as_bytes())].concat();
        assert_eq!(look(&members, members.len()), Ok(true));
    }

    #[test]
    fn what_is_made_of_marks_costs_no_more_than_its_bytes() {
        let bomb = gzip(&vec![0; 8 << 20]);
        for (name, piece) in [
            ("marks", GZIP.to_vec()),
            ("heads", b"\x1f\x8b\x08\0\0\0\0\0\0\x03".to_vec()),
            ("names that do not end", b"\x1f\x8b\x08\x08\0\0\0\0\0\x03name".to_vec()),
            ("content that goes on", stored(65_535)),
            ("zip", b"PK\x03\x04\x14\0\0\0\x08\0".to_vec()),
            ("zstd", ZSTD.to_vec()),
            ("large files", bomb),
        ] {
            let body = piece.repeat((1 << 18) / piece.len());
            for size in [body.len(), 1000] {
                let start = std::time::Instant::now();
                let _ = look(&body, size);
                let took = start.elapsed();
                // A debug build on a busy machine; what is quadratic takes minutes.
                assert!(took.as_secs() < 60, "{name} in {size}: {took:?}");
            }
        }
    }
}
