//! Reads and writes sparse files, so that a hole takes no space in an archive, and no disk space after unpacking.
//!
//! Files are written in the POSIX format "GNU.sparse" 1.0, which GNU tar uses since 1.15.91. In this format, a map
//! precedes the data. Files can be read in this format, in the preceding format ("GNU.sparse" 0.1), and in the old GNU
//! format if the map fits into the header.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{SeekFrom as Find, seek};
use rustix::io::Errno;
use tar::{Builder, Entry, GnuHeader, Header};

use super::{about, refused};

/// The maximum number of pieces of one file. Each piece needs 16 bytes of memory. When a file with more pieces is
/// packed, its remaining bytes become one piece, including their holes. An archive that contains a file with more
/// pieces is rejected.
const MAX_PIECES: usize = 100_000;

/// The size of a block in an archive, in bytes.
const BLOCK: usize = 512;

/// The block size of common file systems with sparse files (ext4, XFS, Btrfs), in bytes.
const DISK_BLOCK: u64 = 4096;

/// The maximum number of bytes of a file that are copied in one step.
const BUFFER: usize = 128 * 1024;

/// A contiguous range of data in a sparse file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    at: u64,
    length: u64,
}

impl Piece {
    fn end(&self) -> u64 {
        self.at.saturating_add(self.length)
    }
}

/// The ranges of a file that contain data. All other ranges are holes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Map {
    pieces: Vec<Piece>,
    /// The size of the file, including its holes.
    size: u64,
}

impl Map {
    /// Checks that the pieces are in order and disjoint, lie within the file, and have the same total length as the
    /// stored data.
    fn checked(pieces: Vec<Piece>, size: u64, stored: u64) -> io::Result<Self> {
        let mut end = 0;
        for piece in &pieces {
            let apart = piece.at >= end && piece.at.checked_add(piece.length).is_some_and(|end| end <= size);
            if !apart {
                return Err(damaged());
            }
            end = piece.end();
        }
        let bytes: u64 = pieces.iter().map(|piece| piece.length).sum();
        // An impossible size is rejected before the code seeks to it.
        if bytes != stored || i64::try_from(size).is_err() {
            return Err(damaged());
        }
        Ok(Self { pieces, size })
    }

    /// Parses the map in a header of GNU tar's old format, which has at most four pieces.
    ///
    /// # Errors
    /// Fails if there are more than four pieces, or the header is damaged.
    pub(super) fn of_header(header: &GnuHeader, stored: u64) -> io::Result<Self> {
        if header.is_extended() {
            return Err(refused("a sparse file of more than four pieces is read in the POSIX form only"));
        }
        let used = header.sparse.iter().filter(|piece| !piece.is_empty());
        let pieces = used.map(|piece| Ok(Piece { at: piece.offset()?, length: piece.length()? }));
        Self::checked(pieces.collect::<io::Result<_>>()?, header.real_size()?, stored)
    }

    /// Parses a map of format 0.1, which is the text `AT,LENGTH,AT,LENGTH` in an extended header.
    ///
    /// # Errors
    /// Fails if the map is damaged.
    pub(super) fn of_text(text: &[u8], size: u64, stored: u64) -> io::Result<Self> {
        let numbers = text.split(|byte| *byte == b',').filter(|number| !number.is_empty());
        let numbers: Vec<u64> = numbers.map(number).collect::<io::Result<_>>()?;
        Self::of_numbers(&numbers, size, stored)
    }

    /// Parses a map of format 1.0. The map precedes the data. The map has one number on each line: first the number of
    /// pieces, then the offset and the length of each piece. The map is padded to a multiple of the block size.
    ///
    /// # Errors
    /// Fails if the map is damaged or has too many pieces.
    pub(super) fn read(from: &mut impl Read, size: u64, stored: u64) -> io::Result<Self> {
        let (mut numbers, mut line, mut read) = (Vec::new(), Vec::new(), 0);
        let mut wanted = None;
        while wanted.is_none_or(|wanted| numbers.len() < wanted) {
            let mut block = [0; BLOCK];
            from.read_exact(&mut block)?;
            read += BLOCK as u64;
            for byte in block {
                if wanted.is_some_and(|wanted| numbers.len() == wanted) {
                    break;
                }
                if byte != b'\n' {
                    line.push(byte);
                    if line.len() > 20 {
                        return Err(damaged());
                    }
                    continue;
                }
                let value = number(&line)?;
                line.clear();
                if wanted.is_some() {
                    numbers.push(value);
                    continue;
                }
                let count = usize::try_from(value).ok().filter(|count| *count <= MAX_PIECES);
                wanted = Some(2 * count.ok_or_else(too_many)?);
            }
        }
        Self::of_numbers(&numbers, size, stored.checked_sub(read).ok_or_else(damaged)?)
    }

    fn of_numbers(numbers: &[u64], size: u64, stored: u64) -> io::Result<Self> {
        if !numbers.len().is_multiple_of(2) || numbers.len() > 2 * MAX_PIECES {
            return Err(damaged());
        }
        let pieces = numbers.chunks_exact(2).map(|pair| Piece { at: pair[0], length: pair[1] });
        Self::checked(pieces.collect(), size, stored)
    }

    /// Finds the pieces of a file of `size` bytes. Returns `None` if the file has no hole, or if the file system does
    /// not support sparse files.
    fn of_file(file: &File, size: u64) -> io::Result<Option<Self>> {
        let mut pieces: Vec<Piece> = Vec::new();
        let mut at = 0;
        while at < size {
            let start = match seek(file.as_fd(), Find::Data(at)) {
                Ok(start) if start < size => start,
                // The rest of the file is a hole.
                Ok(_) | Err(Errno::NXIO) => break,
                Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            let last = pieces.len() + 1 == MAX_PIECES;
            let end = match seek(file.as_fd(), Find::Hole(start)) {
                Ok(end) if !last => end.min(size),
                Ok(_) | Err(Errno::NXIO) => size,
                Err(error) => return Err(error.into()),
            };
            if end > start {
                pieces.push(Piece { at: start, length: end - start });
            }
            at = end.max(start + 1);
        }
        let whole = size == 0 || pieces == [Piece { at: 0, length: size }];
        Ok((!whole).then_some(Self { pieces, size }))
    }

    fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.length).sum()
    }

    fn taken(&self) -> u64 {
        let (mut taken, mut end) = (0_u64, 0);
        for piece in self.pieces.iter().filter(|piece| piece.length > 0) {
            // Two pieces may be in the same block of the disk. The block is counted once.
            let first = end.max(piece.at / DISK_BLOCK);
            end = piece.end().div_ceil(DISK_BLOCK);
            taken = taken.saturating_add((end - first.min(end)).saturating_mul(DISK_BLOCK));
        }
        taken
    }

    /// Encodes the map as text in format 1.0.
    fn text(&self) -> Vec<u8> {
        use std::fmt::Write;
        let mut text = format!("{}\n", self.pieces.len());
        for Piece { at, length } in &self.pieces {
            // Writing to a string cannot fail.
            let _ = write!(text, "{at}\n{length}\n");
        }
        let mut text = text.into_bytes();
        text.resize(text.len().next_multiple_of(BLOCK), 0);
        text
    }
}

fn number(digits: &[u8]) -> io::Result<u64> {
    std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).ok_or_else(damaged)
}

fn damaged() -> io::Error {
    refused("the map of a sparse file is damaged")
}

fn too_many() -> io::Error {
    refused(format!("a sparse file has more than {MAX_PIECES} pieces"))
}

/// The content of a file in an archive. Reading returns zeros for holes. [`Content::copy_to`] creates holes.
pub struct Content<'a, R: Read> {
    entry: Entry<'a, R>,
    map: Option<Map>,
    /// The index of the piece that is being read.
    next: usize,
    /// The read position in the file. Holes count toward the position.
    at: u64,
}

impl<'a, R: Read> Content<'a, R> {
    pub(super) fn new(entry: Entry<'a, R>, map: Option<Map>) -> Self {
        Self { entry, map, next: 0, at: 0 }
    }

    /// Returns the size of the file in bytes, including holes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.map.as_ref().map_or(self.entry.size(), |map| map.size)
    }

    /// Returns the number of the file's bytes that are stored in the archive, without holes.
    #[must_use]
    pub fn stored(&self) -> u64 {
        self.map.as_ref().map_or(self.entry.size(), Map::bytes)
    }

    /// Returns the disk space in bytes that the file needs on a file system with sparse files. Each piece occupies
    /// complete blocks ([`DISK_BLOCK`]).
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.map.as_ref().map_or(self.entry.size(), Map::taken)
    }

    /// Returns the offset of the file's data in the archive. Returns `None` for a file with holes, because its data has
    /// several pieces.
    #[must_use]
    pub fn position(&self) -> Option<u64> {
        self.map.is_none().then(|| self.entry.raw_file_position())
    }

    /// Writes the content to a new file, with holes where the original has holes.
    ///
    /// # Errors
    /// Fails if the archive is truncated, or the file cannot be written.
    pub fn copy_to(&mut self, file: &mut File) -> io::Result<()> {
        let whole = [Piece { at: 0, length: self.size() }];
        let pieces = self.map.as_ref().map_or(&whole[..], |map| &map.pieces);
        let mut buffer = vec![0; usize::try_from(self.stored()).unwrap_or(BUFFER).min(BUFFER)];
        for piece in pieces {
            file.seek(SeekFrom::Start(piece.at))?;
            let mut left = piece.length;
            while left > 0 {
                let most = usize::try_from(left).unwrap_or(BUFFER).min(buffer.len());
                let read = match self.entry.read(&mut buffer[..most]) {
                    Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    read => read?,
                };
                file.write_all(&buffer[..read])?;
                left -= read as u64;
            }
        }
        file.set_len(self.map.as_ref().map_or(whole[0].length, |map| map.size))
    }
}

impl<R: Read> Read for Content<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(map) = &self.map else { return self.entry.read(buffer) };
        while map.pieces.get(self.next).is_some_and(|piece| piece.end() <= self.at) {
            self.next += 1;
        }
        let piece = map.pieces.get(self.next);
        let inside = piece.is_some_and(|piece| piece.at <= self.at);
        let end = piece.map_or(map.size, |piece| if inside { piece.end() } else { piece.at });
        let left = usize::try_from(end - self.at).unwrap_or(usize::MAX).min(buffer.len());
        let buffer = &mut buffer[..left];
        let read = if inside {
            self.entry.read(buffer)?
        } else {
            buffer.fill(0);
            left
        };
        if read == 0 && left > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.at += read as u64;
        Ok(read)
    }
}

/// Adds a file with the size and attributes in `header` to an archive, without the holes of the file. If the file grows
/// in the meantime, the additional bytes are left out. If the file shrinks, the missing bytes are replaced by zeros.
///
/// # Errors
/// Fails if the file cannot be read, or the archive cannot be written.
pub fn append_file<W: Write>(
    archive: &mut Builder<W>,
    header: &mut Header,
    name: &Path,
    file: File,
) -> io::Result<()> {
    append_extended_file(archive, header, name, file, &[])
}

/// Works like [`append_file`], but adds more records to the file's extended header. Each record is a pair of key and
/// value.
///
/// # Errors
/// Fails in the same cases as [`append_file`].
pub fn append_extended_file<W: Write>(
    archive: &mut Builder<W>,
    header: &mut Header,
    name: &Path,
    file: File,
    records: &[(String, Vec<u8>)],
) -> io::Result<()> {
    let size = header.size()?;
    let records = records.iter().map(|(key, value)| (key.as_str(), value.as_slice()));
    let Some(map) = Map::of_file(&file, size).map_err(|error| about(name, error))? else {
        let mut file = file;
        file.rewind()?;
        archive.append_pax_extensions(records)?;
        return archive.append_data(header, name, file.chain(io::repeat(0)).take(size));
    };
    let length = size.to_string();
    let sparse = [
        ("GNU.sparse.major", &b"1"[..]),
        ("GNU.sparse.minor", b"0"),
        ("GNU.sparse.realsize", length.as_bytes()),
    ];
    // All records are in one extended header, because a reader may use only the last extended header of a file.
    archive.append_pax_extensions(records.chain(sparse))?;
    let text = map.text();
    header.set_size(text.len() as u64 + map.bytes());
    let bytes = Pieces { file, left: map.pieces.into_iter(), length: 0 };
    archive.append_data(header, name, io::Cursor::new(text).chain(bytes))
}

/// Reads the pieces of a file one after another.
struct Pieces {
    file: File,
    left: std::vec::IntoIter<Piece>,
    /// The number of unread bytes in the current piece.
    length: u64,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.length == 0 {
            let Some(piece) = self.left.next() else { return Ok(0) };
            self.file.seek(SeekFrom::Start(piece.at))?;
            self.length = piece.length;
        }
        let length = usize::try_from(self.length).unwrap_or(BUFFER).min(buffer.len());
        let buffer = &mut buffer[..length];
        let mut read = self.file.read(buffer)?;
        if read == 0 {
            // The file was truncated in the meantime, so zeros replace the missing bytes.
            buffer.fill(0);
            read = length;
        }
        self.length -= read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Members, What};
    use super::*;

    /// Creates a sparse file with the given bytes at the given offsets.
    fn file(pieces: &[(u64, &[u8])], size: u64) -> File {
        let mut file = tempfile::tempfile().expect("file");
        for (at, bytes) in pieces {
            file.seek(SeekFrom::Start(*at)).expect("seek");
            file.write_all(bytes).expect("write");
        }
        file.set_len(size).expect("length");
        file
    }

    fn archived(file: File) -> Vec<u8> {
        let mut builder = Builder::new(Vec::new());
        let mut header = Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(file.metadata().expect("metadata").len());
        append_file(&mut builder, &mut header, Path::new("file"), file).expect("archived");
        builder.into_inner().expect("archive")
    }

    fn whole(mut file: File) -> Vec<u8> {
        let mut bytes = Vec::new();
        file.rewind().expect("rewind");
        file.read_to_end(&mut bytes).expect("read");
        bytes
    }

    fn first<T>(
        archive: &[u8],
        take: impl FnOnce(&mut Content<'_, &[u8]>) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut archive = tar::Archive::new(archive);
        let mut members = Members::new(archive.entries()?);
        let mut member = members.next()?.ok_or(io::ErrorKind::UnexpectedEof)?;
        assert_eq!(member.what, What::File);
        take(&mut member.content)
    }

    #[test]
    fn a_sparse_file_of_a_tebibyte_takes_few_blocks() {
        let archive = archived(file(&[(1 << 39, b"middle")], 1 << 40));
        assert!(archive.len() < 64 << 10, "{}", archive.len());
        let mut copy = tempfile::tempfile().expect("file");
        first(&archive, |content| {
            assert_eq!(content.size(), 1 << 40);
            assert!(content.stored() < 64 << 10);
            assert_eq!(content.position(), None);
            content.copy_to(&mut copy)
        })
        .expect("copied");
        let metadata = copy.metadata().expect("metadata");
        assert_eq!(metadata.len(), 1 << 40);
        assert!(std::os::unix::fs::MetadataExt::blocks(&metadata) < 1000, "its holes are holes");
        let mut middle = [0; 6];
        std::os::unix::fs::FileExt::read_exact_at(&copy, &mut middle, 1 << 39).expect("read");
        assert_eq!(&middle, b"middle");
    }

    #[test]
    fn refuses_inconsistent_maps() {
        for (text, size, stored, good) in [
            ("0,5,10,5", 20, 10, true),
            ("", 20, 0, true),
            ("0,5,10,5", 20, 11, false),
            ("10,5,0,5", 20, 10, false),
            ("0,5,3,5", 20, 10, false),
            ("0,5,18,5", 20, 10, false),
            ("0,5,10", 20, 5, false),
            ("0,-5", 20, 5, false),
            ("18446744073709551615,5", u64::MAX, 5, false),
            ("0,5", u64::MAX, 5, false),
        ] {
            assert_eq!(Map::of_text(text.as_bytes(), size, stored).is_ok(), good, "{text}");
        }
        for map in
            ["1\n0\n5\n", "100001\n", "x\n", "1\n0\n99999999999999999999999\n", "18446744073709551615\n"]
        {
            let mut block = map.as_bytes().to_vec();
            block.resize(BLOCK, 0);
            let good = map.starts_with("1\n0\n5");
            assert_eq!(
                Map::read(&mut block.as_slice(), 10, BLOCK as u64 + 5).is_ok(),
                good && block.len() == BLOCK,
                "{map}"
            );
        }
        assert!(Map::read(&mut &b"1\n0\n"[..], 10, 5).is_err(), "cut short");
    }

    #[test]
    fn counts_whole_blocks_for_a_piece() {
        for (text, size, stored, taken) in [
            ("", 1 << 40, 0, 0),
            ("0,1", 1, 1, 4096),
            ("0,4097", 9000, 4097, 8192),
            ("0,1,100,1,4095,2", 9000, 4, 8192),
            ("4096,1,8192,1,1000000,1", 2_000_000, 3, 3 * 4096),
            ("5,0,9223372036854775806,1", i64::MAX.unsigned_abs(), 1, 4096),
        ] {
            let map = Map::of_text(text.as_bytes(), size, stored).expect("a map");
            assert_eq!(map.taken(), taken, "{text}");
        }
        let torn: Vec<String> = (0..50_000).map(|piece| format!("{},1", piece * 4096)).collect();
        let map = Map::of_text(torn.join(",").as_bytes(), 1 << 40, 50_000).expect("a map");
        assert_eq!(map.taken(), 50_000 * 4096);
    }

    /// GNU tar and the library write the old format. Files with up to four pieces can be read. Files with more pieces
    /// are rejected.
    #[test]
    fn reads_the_old_format_if_its_map_fits_into_the_header() {
        for (count, good) in [(2_u64, true), (9, false)] {
            let pieces: Vec<(u64, &[u8])> = (0..count).map(|at| (at << 20, &b"bytes"[..])).collect();
            let mut sparse = file(&pieces, count << 20);
            let mut builder = Builder::new(Vec::new());
            builder.append_file("file", &mut sparse).expect("archived");
            let archive = builder.into_inner().expect("archive");
            let mut read = Vec::new();
            let came = first(&archive, |content| content.read_to_end(&mut read));
            assert_eq!(came.is_ok(), good, "{count}: {came:?}");
            if good {
                assert_eq!(read, whole(sparse));
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_read_and_what_is_written_is_the_file(
            pieces in proptest::collection::vec((0_u64..300_000, proptest::collection::vec(any::<u8>(), 1..200)), 0..6),
            rest in 0_u64..100_000,
        ) {
            let end = pieces.iter().map(|(at, bytes)| at + bytes.len() as u64).max().unwrap_or(0);
            let pieces: Vec<(u64, &[u8])> = pieces.iter().map(|(at, bytes)| (*at, bytes.as_slice())).collect();
            let own = file(&pieces, end + rest);
            let archive = archived(own.try_clone().expect("clone"));
            let own = whole(own);
            let mut read = Vec::new();
            first(&archive, |content| content.read_to_end(&mut read)).expect("read");
            prop_assert_eq!(&read, &own);
            let mut copy = tempfile::tempfile().expect("file");
            first(&archive, |content| content.copy_to(&mut copy)).expect("copied");
            prop_assert_eq!(whole(copy), own);
        }
    }
}
