//! Finds the compressed files in a text, at any offset, while the text streams by: gzip, zip and zstd.
//!
//! Every magic number is followed, also one inside another file: only a file's end shows whether it was one,
//! so a decoy header hides nothing behind it. The [`Visitor`] decodes the files and limits them.

/// The longest header between a magic number and the compressed data. A zip header has two fields of up to
/// 64 KiB.
const MAX_HEADER: usize = 192 << 10;

/// Bytes of a header at its first parse; doubled for each further one.
const FIRST_PARSE: usize = 32;

/// Bytes of the fixed part of a zip's local file header.
const ZIP_HEADER: usize = 30;

/// The method of a deflated zip entry.
const DEFLATE: u16 = 8;

/// The magic number of a gzip member.
pub const GZIP: &[u8] = b"\x1f\x8b\x08";
/// The magic number of a zip entry.
pub const ZIP: &[u8] = b"PK\x03\x04";
/// The magic number of a zstd frame.
pub const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd";

/// The longest magic number, less one byte.
const TAIL: usize = 3;

/// The data behind a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// A bare deflate stream.
    Deflated,
    /// A zip entry that is stored, or compressed by another method.
    Stored,
    /// A zstd frame, with its own header.
    Zstd,
}

/// Decodes and limits the files of a text.
pub trait Visitor {
    /// An open file.
    type File;
    /// Ends the search.
    type Error;
    /// Whether it opens zip entries of another method than deflate. Otherwise their names are not parsed.
    const OPENS_STORED: bool;

    /// A magic number was found. [`Self::close`] follows.
    ///
    /// # Errors
    /// If there are too many.
    fn begin(&mut self) -> Result<(), Self::Error>;

    /// Opens the file behind a header, with the name of a zip entry. `None` ignores it.
    ///
    /// # Errors
    /// If the file may not be opened.
    fn open(&mut self, content: Content, name: Option<&[u8]>) -> Result<Option<Self::File>, Self::Error>;

    /// Decodes the next chunk of a file. Returns whether the file continues.
    ///
    /// # Errors
    /// If the file exceeds a limit.
    fn feed(&mut self, file: &mut Self::File, chunk: &[u8]) -> Result<bool, Self::Error>;

    /// Ends a file, or a magic number without one.
    ///
    /// # Errors
    /// If the end of the file exceeds a limit.
    fn close(&mut self, file: Option<Self::File>) -> Result<(), Self::Error>;
}

/// Finds files in a text.
#[derive(Debug)]
pub struct ArchiveFinder<F> {
    magic_numbers: &'static [&'static [u8]],
    candidates: Vec<Candidate<F>>,
    /// The last bytes of the text, where a magic number may begin.
    tail: Vec<u8>,
}

/// A magic number's candidate: an incomplete header, then a file.
#[derive(Debug)]
struct Candidate<F> {
    buffer: Vec<u8>,
    /// Bytes needed before the header is parsed again.
    wanted: usize,
    file: Option<Box<F>>,
}

impl<F> ArchiveFinder<F> {
    /// Finds the files with these magic numbers, of [`GZIP`], [`ZIP`] and [`ZSTD`].
    #[must_use]
    pub fn new(magic_numbers: &'static [&'static [u8]]) -> Self {
        Self { magic_numbers, candidates: Vec::new(), tail: Vec::new() }
    }

    /// Searches the next chunk of the text.
    ///
    /// # Errors
    /// The first error of `visitor`; the finder must not be fed again.
    pub fn feed<V: Visitor<File = F>>(&mut self, chunk: &[u8], visitor: &mut V) -> Result<(), V::Error> {
        // A magic number may begin in the previous chunk. Its candidate starts first and gets all of this chunk.
        let old = self.tail.len();
        self.tail.extend_from_slice(&chunk[..chunk.len().min(TAIL)]);
        for at in self.positions(&self.tail) {
            let head = self.tail.get(at..old).unwrap_or_default();
            if !head.is_empty() && !self.magic_numbers.iter().any(|magic| head.starts_with(magic)) {
                self.begin(head.to_vec(), visitor)?;
            }
        }
        // All open files get the same bytes, up to the next magic number.
        let mut at = 0;
        for magic in self.positions(chunk) {
            self.feed_open(&chunk[at..magic], visitor)?;
            self.begin(Vec::new(), visitor)?;
            at = magic;
        }
        self.feed_open(&chunk[at..], visitor)?;
        if chunk.len() >= TAIL {
            self.tail.clear();
            self.tail.extend_from_slice(&chunk[chunk.len() - TAIL..]);
        } else {
            self.tail.drain(..self.tail.len().saturating_sub(TAIL));
        }
        Ok(())
    }

    /// Ends the text and all open files.
    ///
    /// # Errors
    /// As [`Self::feed`]; the files that are still open are closed all the same.
    pub fn finish<V: Visitor<File = F>>(&mut self, visitor: &mut V) -> Result<(), V::Error> {
        let mut ended = Ok(());
        for mut candidate in std::mem::take(&mut self.candidates) {
            // Parse a header that waits for more bytes than exist.
            candidate.wanted = 0;
            ended = ended.and(candidate.feed(&[], visitor).map(drop));
            ended = ended.and(visitor.close(candidate.file.map(|file| *file)));
        }
        ended
    }

    fn begin<V: Visitor<File = F>>(&mut self, buffer: Vec<u8>, visitor: &mut V) -> Result<(), V::Error> {
        visitor.begin()?;
        self.candidates.push(Candidate { buffer, wanted: FIRST_PARSE, file: None });
        Ok(())
    }

    /// Feeds `chunk` to every candidate.
    fn feed_open<V: Visitor<File = F>>(&mut self, chunk: &[u8], visitor: &mut V) -> Result<(), V::Error> {
        let mut at = 0;
        while let Some(candidate) = self.candidates.get_mut(at) {
            if candidate.feed(chunk, visitor)? {
                at += 1;
            } else {
                visitor.close(self.candidates.remove(at).file.map(|file| *file))?;
            }
        }
        Ok(())
    }

    /// Positions of magic numbers, in order.
    fn positions(&self, text: &[u8]) -> Vec<usize> {
        // One search each: the first bytes of all together occur in every text.
        let found = self.magic_numbers.iter().flat_map(|magic| memchr::memmem::find_iter(text, magic));
        let mut all: Vec<usize> = found.collect();
        all.sort_unstable();
        all
    }
}

impl<F> Candidate<F> {
    /// Feeds the next chunk. Returns whether the candidate continues.
    fn feed<V: Visitor<File = F>>(&mut self, chunk: &[u8], visitor: &mut V) -> Result<bool, V::Error> {
        if let Some(file) = &mut self.file {
            return visitor.feed(file, chunk);
        }
        self.buffer.extend_from_slice(chunk);
        if self.buffer.len() < self.wanted.min(MAX_HEADER) {
            return Ok(true);
        }
        let (length, content, name) = match header(&self.buffer, V::OPENS_STORED) {
            Header::Incomplete if self.buffer.len() < MAX_HEADER => {
                self.wanted = self.buffer.len() * 2;
                return Ok(true);
            }
            Header::Incomplete | Header::NotAFile => return Ok(false),
            Header::File { length, content, name } => (length, content, name),
        };
        let Some(file) = visitor.open(content, name)? else { return Ok(false) };
        let buffer = std::mem::take(&mut self.buffer);
        visitor.feed(self.file.insert(Box::new(file)), &buffer[length..])
    }
}

/// A parsed header.
enum Header<'h> {
    Incomplete,
    NotAFile,
    File { length: usize, content: Content, name: Option<&'h [u8]> },
}

/// Parses the header of the magic number at the start of `text`.
fn header(text: &[u8], opens_stored: bool) -> Header<'_> {
    if text.starts_with(ZSTD) {
        return Header::File { length: 0, content: Content::Zstd, name: None };
    }
    if text.starts_with(GZIP) {
        let file = |length| Header::File { length, content: Content::Deflated, name: None };
        return gzip_header(text).map_or(Header::Incomplete, file);
    }
    let (Some(method), Some(name), Some(extra)) = (number(text, 8), number(text, 26), number(text, 28))
    else {
        return Header::Incomplete;
    };
    if method != DEFLATE && !opens_stored {
        return Header::NotAFile;
    }
    let name_end = ZIP_HEADER + usize::from(name);
    let length = name_end + usize::from(extra);
    if text.len() < length {
        return Header::Incomplete;
    }
    let content = if method == DEFLATE { Content::Deflated } else { Content::Stored };
    Header::File { length, content, name: text.get(ZIP_HEADER..name_end) }
}

/// The length of a gzip header (RFC 1952, 2.3); `None` if it is incomplete.
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

fn number(text: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*text.get(at..at + 2)?.first_chunk()?))
}
