//! Finds compressed files in a text by their signatures, wherever they begin.
//!
//! Every signature is followed, also inside another file: only a file's end shows whether it was one. A signature
//! without a file is ordinary text and hides nothing behind it. The reader decides what it unpacks, and its bounds.

use std::mem;

/// The signature of a gzip member.
pub const GZIP: &[u8] = b"\x1f\x8b\x08";
/// The signature of a zstd frame.
pub const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd";
/// The signature of a zip entry.
pub const ZIP: &[u8] = b"PK\x03\x04";

/// The longest signature, less one byte.
const TAIL: usize = 3;
/// The longest header between a signature and the compressed data: a zip entry has two fields of up to 64 KiB.
const MAX_HEADER: usize = 192 << 10;
/// Bytes of a header at its first parse; doubled for each further one.
const FIRST_PARSE: usize = 32;
/// Bytes of a zip entry's header before its name.
const ZIP_FIXED: usize = 30;

/// Reads the files that [`EmbeddedFiles`] finds.
pub trait FileReader {
    /// An open file.
    type File;
    /// The text exceeds a bound.
    type Error;

    /// Counts a signature, which may begin a file.
    ///
    /// # Errors
    /// There are too many; the text must not be passed on.
    fn begin(&mut self) -> Result<(), Self::Error>;

    /// Opens the file whose header begins `text`.
    ///
    /// # Errors
    /// It is nested too deeply.
    fn open(&mut self, text: &[u8]) -> Result<Opened<Self::File>, Self::Error>;

    /// Reads the next chunk of a file; returns whether the file continues.
    ///
    /// # Errors
    /// It exceeds a bound.
    fn feed(&mut self, file: &mut Self::File, chunk: &[u8]) -> Result<bool, Self::Error>;

    /// Ends what [`begin`](Self::begin) counted: a file, or a signature without one.
    fn close(&mut self, file: Option<Self::File>);
}

/// What [`FileReader::open`] made of a header.
#[derive(Debug)]
pub enum Opened<File> {
    /// The header is incomplete.
    Incomplete,
    /// It begins no file that can be read.
    NotAFile,
    /// A file, and the length of its header.
    File(File, usize),
}

/// Finds the files in one text.
#[derive(Debug)]
pub struct EmbeddedFiles<File> {
    signatures: &'static [&'static [u8]],
    candidates: Vec<Candidate<File>>,
    /// The last bytes of the text, where a signature may begin.
    tail: Vec<u8>,
}

/// What follows a signature: an incomplete header, then a file.
#[derive(Debug)]
struct Candidate<File> {
    buffer: Vec<u8>,
    /// Bytes needed before the header is parsed again.
    wanted: usize,
    file: Option<File>,
}

impl<File> EmbeddedFiles<File> {
    /// Follows these signatures, of at most four bytes.
    #[must_use]
    pub fn new(signatures: &'static [&'static [u8]]) -> Self {
        Self { signatures, candidates: Vec::new(), tail: Vec::new() }
    }

    /// Reads the next chunk of the text.
    ///
    /// # Errors
    /// The reader's.
    pub fn feed<R: FileReader<File = File>>(&mut self, chunk: &[u8], reader: &mut R) -> Result<(), R::Error> {
        // A signature may begin in the previous chunk. Its candidate starts first and receives all of this chunk.
        let old = self.tail.len();
        self.tail.extend_from_slice(&chunk[..chunk.len().min(TAIL)]);
        let is_whole =
            |at: usize| self.signatures.iter().any(|signature| self.tail[at..old].starts_with(signature));
        let partial: Vec<usize> = positions(self.signatures, &self.tail)
            .into_iter()
            .filter(|at| *at < old && !is_whole(*at))
            .collect();
        for at in partial {
            self.begin(self.tail[at..old].to_vec(), reader)?;
        }
        // All open files receive the same bytes, up to the next signature.
        let mut at = 0;
        for signature in positions(self.signatures, chunk) {
            self.feed_open(&chunk[at..signature], reader)?;
            self.begin(Vec::new(), reader)?;
            at = signature;
        }
        self.feed_open(&chunk[at..], reader)?;
        if chunk.len() >= TAIL {
            self.tail.clear();
            self.tail.extend_from_slice(&chunk[chunk.len() - TAIL..]);
        } else {
            self.tail.drain(..self.tail.len().saturating_sub(TAIL));
        }
        Ok(())
    }

    fn begin<R: FileReader<File = File>>(&mut self, buffer: Vec<u8>, reader: &mut R) -> Result<(), R::Error> {
        reader.begin()?;
        self.candidates.push(Candidate { buffer, wanted: FIRST_PARSE, file: None });
        Ok(())
    }

    fn feed_open<R: FileReader<File = File>>(
        &mut self,
        chunk: &[u8],
        reader: &mut R,
    ) -> Result<(), R::Error> {
        let mut outcome = Ok(());
        self.candidates.retain_mut(|candidate| {
            if outcome.is_err() {
                return true;
            }
            match candidate.feed(chunk, reader) {
                Ok(true) => return true,
                Ok(false) => reader.close(candidate.file.take()),
                Err(error) => outcome = Err(error),
            }
            outcome.is_err()
        });
        outcome
    }

    /// Ends the text: closes all files.
    pub fn finish<R: FileReader<File = File>>(&mut self, reader: &mut R) {
        for mut candidate in mem::take(&mut self.candidates) {
            // Parse a header that waits for further bytes.
            candidate.wanted = 0;
            let _ = candidate.feed(&[], reader);
            reader.close(candidate.file);
        }
    }
}

impl<File> Candidate<File> {
    /// Reads the next chunk; returns whether the candidate continues.
    fn feed<R: FileReader<File = File>>(&mut self, chunk: &[u8], reader: &mut R) -> Result<bool, R::Error> {
        if let Some(file) = &mut self.file {
            return reader.feed(file, chunk);
        }
        self.buffer.extend_from_slice(chunk);
        if self.buffer.len() < self.wanted.min(MAX_HEADER) {
            return Ok(true);
        }
        match reader.open(&self.buffer)? {
            Opened::File(file, header) => {
                let buffer = mem::take(&mut self.buffer);
                reader.feed(self.file.insert(file), &buffer[header..])
            }
            Opened::Incomplete if self.buffer.len() < MAX_HEADER => {
                self.wanted = self.buffer.len() * 2;
                Ok(true)
            }
            Opened::Incomplete | Opened::NotAFile => Ok(false),
        }
    }
}

/// The positions of signatures in `text`, in order.
fn positions(signatures: &[&[u8]], text: &[u8]) -> Vec<usize> {
    // One search each: the first bytes of all together occur in every text.
    let mut all: Vec<usize> =
        signatures.iter().flat_map(|signature| memchr::memmem::find_iter(text, signature)).collect();
    all.sort_unstable();
    all
}

/// The length of a gzip member's header (RFC 1952, 2.3); `None` while it is incomplete.
#[must_use]
pub fn gzip_header(text: &[u8]) -> Option<usize> {
    let flags = text.get(3)?;
    let mut at = 10;
    if flags & 4 != 0 {
        at += 2 + usize::from(number(text, at)?);
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

/// The header of a zip entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZipHeader {
    /// Whether the content is deflated.
    pub deflated: bool,
    /// Bytes of the name.
    name: usize,
    /// Bytes of the whole header.
    pub length: usize,
}

impl ZipHeader {
    /// Parses the header at the beginning of `text`; `None` while its fixed part is incomplete.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let (method, name, extra) = (number(text, 8)?, number(text, 26)?, number(text, 28)?);
        let (name, extra) = (usize::from(name), usize::from(extra));
        Some(Self { deflated: method == 8, name, length: ZIP_FIXED + name + extra })
    }

    /// The entry's name, from the text that begins with this header; `None` while it is incomplete.
    #[must_use]
    pub fn name(self, text: &[u8]) -> Option<&[u8]> {
        text.get(ZIP_FIXED..ZIP_FIXED + self.name)
    }
}

fn number(text: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*text.get(at..at + 2)?.first_chunk()?))
}
