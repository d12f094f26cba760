//! Reads the index of a working tree as data (gitformat-index(5), versions 2 to 4).
//!
//! The index of a hostile repository can name any path and have any size. So the size of its names is bounded, and a name
//! is only compared with those of files that were found otherwise.
//!
//! - `tracked`: which files git tracks
//! - `left_out`: which of them a sparse checkout leaves out of the working tree

mod left_out;
mod tracked;

pub use left_out::LeftOut;
pub use tracked::{Index, TrackedError};

/// The maximum size of all names in bytes, because version 4 compresses them.
const MAX_NAMES: usize = 128 << 20;

/// The size of an entry's status in bytes. The object id follows.
const STATUS: usize = 40;

/// The place of the mode in the status.
const MODE: std::ops::Range<usize> = 24..28;

/// The flag of an entry that has more flags.
const EXTENDED: u16 = 0x4000;

/// The one of these further flags that marks an entry which is not in the working tree.
const SKIP_WORKTREE: u16 = 0x4000;

/// The length of a name in the flags; the largest one stands for longer names.
const NAME_LENGTH: u16 = 0xfff;

/// The mode of a directory of which a sparse index has no entries.
const DIRECTORY: u32 = 0o040_000;

/// Why an index has no known content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// It has another format, or is damaged.
    #[error("the index is malformed")]
    Malformed,
    /// It has entries in another file (`core.splitIndex`).
    #[error("the index is split; `git update-index --no-split-index` joins it")]
    Split,
}

/// An entry. A sparse index has one for a whole directory, whose name ends with a slash.
struct Entry<'a> {
    name: &'a [u8],
    is_directory: bool,
    is_left_out: bool,
}

/// Calls `take_entry` with each entry of an index whose object ids have this length, in order.
fn each_entry(
    index: &[u8],
    id_length: usize,
    mut take_entry: impl FnMut(&Entry<'_>),
) -> Result<(), IndexError> {
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
        let mode = rest.take(STATUS)?[MODE].try_into().map_err(|_| IndexError::Malformed)?;
        rest.take(id_length)?;
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
            is_directory: u32::from_be_bytes(mode) == DIRECTORY,
            is_left_out: further & SKIP_WORKTREE != 0,
        });
    }
    rest.check_extensions()
}

/// The bytes that were not read yet.
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

    /// A number of variable length, as in offsets of packs (gitformat-pack(5)).
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

    /// Whether the extensions after the entries say that all names are in this file.
    fn check_extensions(&mut self) -> Result<(), IndexError> {
        while !self.0.is_empty() {
            let is_link = self.take(4)? == b"link";
            let length = self.u32()?;
            if is_link {
                return Err(IndexError::Split);
            }
            self.take(usize::try_from(length).map_err(|_| IndexError::Malformed)?)?;
        }
        Ok(())
    }
}
