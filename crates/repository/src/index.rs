//! Reads the index of a working tree as data (gitformat-index(5), versions 2 to 4, split or not).
//!
//! The index of a hostile repository can contain any path and have any size. The total size of its names is therefore
//! bounded, and a name is only compared with the names of files that were found in another way.
//!
//! - `files`: the file of an index, and the shared index that a split index names
//! - `tracked`: the files that git tracks
//! - `checked`: the files that have not changed since git compared them
//! - `copied`: the index for the copy of a working tree
//! - `left_out`: the tracked files that a sparse checkout leaves out of the working tree

mod checked;
mod copied;
mod ewah;
mod files;
mod left_out;
mod tracked;

pub use checked::Checked;
pub(crate) use checked::mode;
pub(crate) use copied::CopiedIndex;
pub use files::IndexFiles;
pub use left_out::LeftOut;
pub use tracked::Index;

use std::io;
use std::path::PathBuf;

use crate::directory::ReadError;

/// The maximum size of all names in bytes. It is needed because version 4 of the format compresses names.
const MAX_NAMES: usize = 128 << 20;

/// The size of the header in bytes.
const HEADER: usize = 12;

/// The size in bytes of the status in an entry. The object id follows the status.
const STATUS: usize = 40;

/// The position of the mode in the status.
const MODE: std::ops::Range<usize> = 24..28;

/// The flag of an entry whose file git assumes to be unchanged.
const ASSUME_VALID: u16 = 0x8000;

/// The flag of an entry that has extended flags.
const EXTENDED: u16 = 0x4000;

/// The extended flag of an entry that git does not check in the working tree.
const SKIP_WORKTREE: u16 = 0x4000;

/// The extended flag of an entry that has no content, because the user only intends to add the file.
const INTENT_TO_ADD: u16 = 0x2000;

/// The mask for the length of a name in the flags. The largest value marks all longer names.
const NAME_LENGTH: u16 = 0xfff;

/// The mode of an entry in a sparse index that represents a whole directory.
pub(crate) const DIRECTORY: u32 = 0o040_000;

/// Why the content of an index is unknown.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// The index has another format, or is damaged.
    #[error("the index is malformed")]
    Malformed,
    /// The file of the index, or the shared index that it names, cannot be read.
    #[error(transparent)]
    Unreadable(#[from] ReadError),
    /// The shared index that the index names is missing.
    #[error("the index is split, and {} is missing; `git update-index --no-split-index` joins it", .0.display())]
    NotShared(PathBuf),
}

impl From<IndexError> for io::Error {
    fn from(error: IndexError) -> Self {
        Self::other(error)
    }
}

/// An entry of an index. In a sparse index, a single entry can represent a whole directory. The name of such an entry
/// ends with a slash.
struct Entry<'a> {
    name: &'a [u8],
    /// The status of the file when git last compared it.
    status: &'a [u8],
    id: &'a [u8],
    /// The stage: 0, or the number of the side in a conflict.
    stage: u16,
    /// Whether the entry has no content, because the user only intends to add the file.
    is_intent: bool,
    is_directory: bool,
    /// Whether git does not check the file in the working tree (`skip-worktree`).
    is_left_out: bool,
    /// Whether git assumes that the file has not changed (`assume-unchanged`).
    is_assumed: bool,
    /// The position of the status in the index file.
    at: usize,
}

/// Calls `take_entry` with each entry of one index file, in order. `id_length` is the length of the file's object ids.
/// Returns the extension that names a shared index, if there is one.
fn each_entry(
    index: &[u8],
    id_length: usize,
    mut take_entry: impl FnMut(&Entry<'_>),
) -> Result<Option<&[u8]>, IndexError> {
    let mut rest = Rest(index);
    let is_index = rest.take(4)? == b"DIRC";
    let (version, count) = (rest.u32()?, rest.u32()?);
    let end = rest.0.len().checked_sub(id_length).ok_or(IndexError::Malformed)?;
    rest.0 = &rest.0[..end];
    if !is_index || !(2..=4).contains(&version) {
        return Err(IndexError::Malformed);
    }
    let (mut name, mut size_of_names) = (Vec::new(), 0);
    for _ in 0..count {
        let before = rest.0.len();
        let at = HEADER + end - before;
        let status = rest.take(STATUS)?;
        let mode = status[MODE].try_into().map_err(|_| IndexError::Malformed)?;
        let id = rest.take(id_length)?;
        let flags = rest.u16()?;
        let further = if version > 2 && flags & EXTENDED != 0 { rest.u16()? } else { 0 };
        let dropped = if version == 4 { rest.variable_length()? } else { name.len() };
        name.truncate(name.len().checked_sub(dropped).ok_or(IndexError::Malformed)?);
        let end = rest.0.iter().position(|byte| *byte == 0).ok_or(IndexError::Malformed)?;
        name.extend_from_slice(rest.take(end)?);
        let padding = if version == 4 { 1 } else { 8 - (before - rest.0.len()) % 8 };
        let is_padded = rest.take(padding)?.iter().all(|byte| *byte == 0);
        let length = usize::from(flags & NAME_LENGTH);
        let is_length = length == name.len() || length == usize::from(NAME_LENGTH) && name.len() > length;
        size_of_names += name.len();
        if !is_padded || !is_length || size_of_names > MAX_NAMES {
            return Err(IndexError::Malformed);
        }
        take_entry(&Entry {
            name: &name,
            status,
            id,
            stage: flags >> 12 & 3,
            is_intent: further & INTENT_TO_ADD != 0,
            is_directory: u32::from_be_bytes(mode) == DIRECTORY,
            is_left_out: further & SKIP_WORKTREE != 0,
            is_assumed: flags & ASSUME_VALID != 0,
            at,
        });
    }
    rest.link_extension()
}

/// The bytes that were not parsed yet.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], IndexError> {
        let (taken, after) = self.0.split_at_checked(length).ok_or(IndexError::Malformed)?;
        self.0 = after;
        Ok(taken)
    }

    fn u16(&mut self) -> Result<u16, IndexError> {
        self.take(2)?.try_into().map(u16::from_be_bytes).map_err(|_| IndexError::Malformed)
    }

    fn u32(&mut self) -> Result<u32, IndexError> {
        self.take(4)?.try_into().map(u32::from_be_bytes).map_err(|_| IndexError::Malformed)
    }

    fn u64(&mut self) -> Result<u64, IndexError> {
        self.take(8)?.try_into().map(u64::from_be_bytes).map_err(|_| IndexError::Malformed)
    }

    /// Parses a number of variable length, in the encoding of offsets in packs (gitformat-pack(5)).
    fn variable_length(&mut self) -> Result<usize, IndexError> {
        let mut number = 0_usize;
        loop {
            let byte = self.take(1)?[0];
            let sum = number.checked_add(usize::from(byte & 0x7f)).ok_or(IndexError::Malformed)?;
            if byte & 0x80 == 0 {
                return Ok(sum);
            }
            number = sum.checked_add(1).and_then(|sum| sum.checked_mul(128)).ok_or(IndexError::Malformed)?;
        }
    }

    /// Parses the extensions after the entries. Returns the extension that names a shared index.
    fn link_extension(&mut self) -> Result<Option<&'a [u8]>, IndexError> {
        let mut link = None;
        while !self.0.is_empty() {
            let is_link = self.take(4)? == b"link";
            let length = usize::try_from(self.u32()?).map_err(|_| IndexError::Malformed)?;
            let content = self.take(length)?;
            if is_link && link.replace(content).is_some() {
                return Err(IndexError::Malformed);
            }
        }
        Ok(link)
    }
}
