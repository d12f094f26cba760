//! Stores the contents of files in a record of given files.
//!
//! ```text
//! packed      small contents, one after another
//! shared/N    a content that shares its blocks with the user's file, where the file system can do that
//! ```

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Take, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::conversion::Pointer;

const PACKED: &str = "packed";
const SHARED: &str = "shared";

/// The maximum size in bytes of a content that shares blocks. Larger files are not compared.
const MAX_SHARED: u64 = 64 << 20;

/// The minimum size in bytes of a content that shares blocks. Copying a smaller content is cheaper than sharing its
/// blocks.
const MIN_SHARED: u64 = 64 << 10;

/// The maximum number of contents that share blocks, each in a file of its own.
const MAX_SHARED_COUNT: usize = 100_000;

/// The maximum total number of bytes that are hashed in files whose content is not stored.
const MAX_HASHED: u64 = 4 << 30;

const BUFFER: usize = 64 << 10;

/// The limits for contents that are copied into a record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// The maximum size of a content in bytes.
    pub(super) each: u64,
    /// The maximum size of all contents in bytes.
    pub(super) all: u64,
}

/// The position of a content in its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The content is among the packed contents, in the file `packed`.
    Packed {
        /// The offset in bytes at which the content begins.
        offset: u64,
        /// The size of the content in bytes.
        size: u64,
    },
    /// The content is in the file with this number in the directory `shared`.
    Shared(usize),
}

/// The facts about a content that are recorded. If the content exceeds the bounds, neither fact is known.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) place: Option<Place>,
    /// The hash of the content, if the content was read.
    pub(super) hash: Option<Pointer>,
}

impl Place {
    /// Parses the text that [`fmt::Display`](std::fmt::Display) writes.
    pub(super) fn parse(text: &str) -> Option<Self> {
        if let Some(number) = text.strip_prefix('=') {
            return number.parse().ok().map(Self::Shared);
        }
        let (offset, size) = text.split_once('+')?;
        Some(Self::Packed { offset: offset.parse().ok()?, size: size.parse().ok()? })
    }

    /// Opens the content. `record` is the directory of the record.
    pub(super) fn open(self, record: &Path) -> io::Result<Take<File>> {
        match self {
            Self::Packed { offset, size } => {
                let mut file = File::open(record.join(PACKED))?;
                file.seek(SeekFrom::Start(offset))?;
                Ok(file.take(size))
            }
            Self::Shared(number) => {
                let file = File::open(record.join(SHARED).join(number.to_string()))?;
                let size = file.metadata()?.len();
                Ok(file.take(size))
            }
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Packed { offset, size } => write!(f, "{offset}+{size}"),
            Self::Shared(number) => write!(f, "={number}"),
        }
    }
}

/// Copies the contents of a record into another record.
pub(super) fn copy(from: &Path, to: &Path) -> io::Result<()> {
    make_directories(to)?;
    for content in fs::read_dir(from.join(SHARED))? {
        let content = content?;
        fs::copy(content.path(), to.join(SHARED).join(content.file_name()))?;
    }
    fs::copy(from.join(PACKED), to.join(PACKED)).map(drop)
}

pub(super) fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

fn make_directories(record: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(record.join(SHARED))
}

/// Adds contents to a new record.
pub(super) struct Contents {
    directory: PathBuf,
    bounds: Bounds,
    packed: BufWriter<File>,
    size: u64,
    shared: usize,
    /// Whether files of the record can share blocks with files of the user, as far as known.
    can_share: bool,
    hashed: u64,
    buffer: Vec<u8>,
}

impl Contents {
    /// Begins a record in a directory that does not exist yet.
    pub(super) fn begin(directory: &Path, bounds: Bounds) -> io::Result<Self> {
        make_directories(directory)?;
        let packed = BufWriter::with_capacity(1 << 20, create(&directory.join(PACKED))?);
        let (directory, buffer) = (directory.to_owned(), vec![0; BUFFER]);
        let (size, shared, hashed) = (0, 0, 0);
        Ok(Self { directory, bounds, packed, size, shared, can_share: true, hashed, buffer })
    }

    /// Adds `text` as a content.
    pub(super) fn add_text(&mut self, text: &[u8]) -> io::Result<Known> {
        if text.len() as u64 > self.room() {
            return Ok(Known::default());
        }
        self.add_packed(&mut { text }).map(|known| known.unwrap_or_default())
    }

    /// Adds a file of this size. Its content is stored if the content can share blocks or is small. Otherwise only its
    /// hash is recorded.
    pub(super) fn add(&mut self, file: &mut File, size: u64) -> io::Result<Known> {
        if let Some(place) = self.share(file, size)? {
            return Ok(Known { place: Some(place), hash: None });
        }
        if size <= self.room() {
            let known = self.add_packed(file)?;
            if let Some(known) = known {
                return Ok(known);
            }
            // The file has grown since its size was read.
            file.rewind()?;
        }
        let left = MAX_HASHED.saturating_sub(self.hashed);
        if size > left {
            return Ok(Known::default());
        }
        let hash = Pointer::of(&mut file.take(left))?;
        self.hashed += hash.size;
        Ok(Known { place: None, hash: (hash.size < left).then_some(hash) })
    }

    /// Writes the buffered contents to disk.
    pub(super) fn end(mut self) -> io::Result<()> {
        self.packed.flush()
    }

    fn room(&self) -> u64 {
        self.bounds.all.saturating_sub(self.size).min(self.bounds.each)
    }

    /// Copies and hashes a content. `None` if the content exceeds the bounds.
    fn add_packed(&mut self, from: &mut impl Read) -> io::Result<Option<Known>> {
        let (offset, room) = (self.size, self.room());
        let (mut hash, mut size) = (Sha256::new(), 0);
        loop {
            let length = from.read(&mut self.buffer)?;
            if length == 0 {
                break;
            }
            self.packed.write_all(&self.buffer[..length])?;
            hash.update(&self.buffer[..length]);
            size += length as u64;
            self.size += length as u64;
            if size > room {
                return Ok(None);
            }
        }
        let hash = Pointer::new(hash.finalize().as_slice(), size);
        Ok(Some(Known { place: Some(Place::Packed { offset, size }), hash: Some(hash) }))
    }

    /// Makes a file that shares its blocks with `file`. `None` if the file system does not support sharing, or if the
    /// file is too small or too large.
    fn share(&mut self, file: &File, size: u64) -> io::Result<Option<Place>> {
        let is_worth = (MIN_SHARED..=MAX_SHARED).contains(&size) && self.shared < MAX_SHARED_COUNT;
        if !self.can_share || !is_worth {
            return Ok(None);
        }
        let path = self.directory.join(SHARED).join(self.shared.to_string());
        if !shares_blocks(&create(&path)?, file) {
            self.can_share = false;
            fs::remove_file(path)?;
            return Ok(None);
        }
        self.shared += 1;
        Ok(Some(Place::Shared(self.shared - 1)))
    }
}

/// Makes the empty file `to` share the blocks of `from`. Returns whether that succeeded.
#[cfg(target_os = "linux")]
fn shares_blocks(to: &File, from: &File) -> bool {
    rustix::fs::ioctl_ficlone(to, from).is_ok()
}

#[cfg(not(target_os = "linux"))]
fn shares_blocks(_: &File, _: &File) -> bool {
    false
}
