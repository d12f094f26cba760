//! Finds gzip, zip and zstd files at any offset of a text that is streamed.
//!
//! Every magic number is treated as the start of a file, even within another file, because only the data after a magic
//! number shows whether a file begins there. A decoy header therefore cannot hide a later file. The [`Visitor`] decodes
//! the files, and limits their number and size.

/// The maximum length in bytes of a file's header before the compressed data. A file with a longer header is
/// ignored. The header of a zip entry has two fields of up to 64 KiB.
const MAX_HEADER: usize = 192 << 10;

/// The number of bytes after which a header is first parsed. If the header is incomplete, it is parsed again each time
/// the number of bytes has doubled.
const FIRST_PARSE: usize = 32;

/// The length in bytes of the fixed part of a zip entry's local file header.
const ZIP_HEADER: usize = 30;

/// The number of the compression method of a deflated zip entry.
const DEFLATE: u16 = 8;

/// The magic number of a gzip member.
pub const GZIP: &[u8] = b"\x1f\x8b\x08";
/// The magic number of a zip entry.
pub const ZIP: &[u8] = b"PK\x03\x04";
/// The magic number of a zstd frame.
pub const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd";

/// The maximum length in bytes of a truncated magic number at the end of a chunk: one byte less than the
/// longest magic number.
const TAIL: usize = 3;

/// The format of a file's data, which the visitor decodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// A raw deflate stream, as in gzip files and most zip entries.
    Deflated,
    /// A zip entry that is not compressed, or that is compressed by another method than deflate.
    Stored,
    /// A zstd frame, including its header.
    Zstd,
}

/// Decodes the files that an [`ArchiveFinder`] finds, and limits their number and size.
pub trait Visitor {
    /// The state of a file that is being decoded.
    type File;
    /// The error that ends the search, for example that a limit is exceeded.
    type Error;
    /// Whether the visitor opens zip entries that are not deflated. If false, the finder ignores these entries.
    const OPENS_STORED: bool;

    /// Called for each magic number that is found. Each call of `begin` is followed by a later call of [`Self::close`].
    ///
    /// # Errors
    /// Fails if there are too many magic numbers or open files.
    fn begin(&mut self) -> Result<(), Self::Error>;

    /// Opens the file that follows a header. `name` is the name of a zip entry, and `None` for other formats. If the
    /// result is `None`, the file is ignored.
    ///
    /// # Errors
    /// Fails if opening the file would exceed a limit.
    fn open(&mut self, content: Content, name: Option<&[u8]>) -> Result<Option<Self::File>, Self::Error>;

    /// Decodes the next chunk of a file. Returns false if the file has ended or is damaged.
    ///
    /// # Errors
    /// Fails if the file exceeds a limit.
    fn feed(&mut self, file: &mut Self::File, chunk: &[u8]) -> Result<bool, Self::Error>;

    /// Ends a file. `file` is `None` if no file was opened for the magic number.
    ///
    /// # Errors
    /// Fails if the last data of the file exceeds a limit.
    fn close(&mut self, file: Option<Self::File>) -> Result<(), Self::Error>;
}

/// Finds the compressed files in a text.
#[derive(Debug)]
pub struct ArchiveFinder<F> {
    magic_numbers: &'static [&'static [u8]],
    candidates: Vec<Candidate<F>>,
    /// The last bytes of the previous chunks, in which a magic number may begin.
    tail: Vec<u8>,
}

/// A possible file that begins at a magic number. `buffer` collects the header of the file. `file` is set when the
/// header is complete.
#[derive(Debug)]
struct Candidate<F> {
    buffer: Vec<u8>,
    /// The length of `buffer` at which the header is parsed again.
    wanted: usize,
    file: Option<Box<F>>,
}

impl<F> ArchiveFinder<F> {
    /// Creates a finder for files that begin with one of `magic_numbers`. The supported magic numbers are [`GZIP`],
    /// [`ZIP`] and [`ZSTD`].
    #[must_use]
    pub fn new(magic_numbers: &'static [&'static [u8]]) -> Self {
        Self { magic_numbers, candidates: Vec::new(), tail: Vec::new() }
    }

    /// Searches the next chunk of the text.
    ///
    /// # Errors
    /// Fails with the first error of `visitor`. After an error, the finder must not be fed again.
    pub fn feed<V: Visitor<File = F>>(&mut self, chunk: &[u8], visitor: &mut V) -> Result<(), V::Error> {
        // A magic number may begin in the previous chunk and end in this one. Its candidate is added first and gets all
        // of this chunk.
        let old = self.tail.len();
        self.tail.extend_from_slice(&chunk[..chunk.len().min(TAIL)]);
        for at in self.positions(&self.tail) {
            let head = self.tail.get(at..old).unwrap_or_default();
            if !head.is_empty() && !self.magic_numbers.iter().any(|magic| head.starts_with(magic)) {
                self.begin(head.to_vec(), visitor)?;
            }
        }
        // All existing candidates get the bytes before the next magic number. Only then is a candidate added for that
        // magic number.
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

    /// Ends the text, and closes all open files.
    ///
    /// # Errors
    /// Fails with the first error of `visitor`. All open files are closed even after an error.
    pub fn finish<V: Visitor<File = F>>(&mut self, visitor: &mut V) -> Result<(), V::Error> {
        let mut ended = Ok(());
        for mut candidate in std::mem::take(&mut self.candidates) {
            // A short header may be complete although `buffer` has not reached the length `wanted`.
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

    /// Feeds `chunk` to every candidate, and closes the candidates that end.
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

    /// Returns the positions of the magic numbers in `text`, in ascending order.
    fn positions(&self, text: &[u8]) -> Vec<usize> {
        // Searches for each magic number separately. A joint search would often stop, because every text contains the
        // first byte of some magic number.
        let found = self.magic_numbers.iter().flat_map(|magic| memchr::memmem::find_iter(text, magic));
        let mut all: Vec<usize> = found.collect();
        all.sort_unstable();
        all
    }
}

impl<F> Candidate<F> {
    /// Adds the next chunk to the incomplete header, or decodes the chunk as a part of the open file. Returns false if
    /// the candidate has ended.
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

/// The result of parsing a header.
enum Header<'h> {
    Incomplete,
    NotAFile,
    File { length: usize, content: Content, name: Option<&'h [u8]> },
}

/// Parses the file header at the start of `text`. `text` must begin with a magic number.
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

/// Returns the length of the gzip header (RFC 1952, section 2.3) at the start of `text`. Returns `None` if the header
/// is incomplete.
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
