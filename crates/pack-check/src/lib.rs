//! Checks the sizes in a git pack before git unpacks it.
//!
//! git allocates as much memory as a pack announces. A delta of one kilobyte can describe an object of gigabytes, and
//! git holds the base, the instructions and the result of a delta in memory. A program that passes an untrusted pack to
//! git therefore first feeds each part of the pack to a [`PackChecker`]. The program passes the part to git only if the
//! checker accepts the part:
//!
//! ```text
//! untrusted pack ──► PackChecker::feed ── Ok ──► git index-pack
//!                          └── PackError: git does not see this part
//! ```
//! The checker reads the headers of all objects, and the two sizes at the start of each delta. The checker inflates
//! every object to find the next header, and discards the contents. The checker needs about 100 KiB of memory, and 16
//! bytes for each blob that is too large to be the base of a delta.
//!
//! The checker does not compute the object ids or the pack's checksum, and does not apply deltas. git does all of this.
//! A delta that names its base by id can therefore name a large object, and announce a small size for it. git then
//! reads the large object before it notices the difference. A process that unpacks a checked pack still needs a memory
//! limit.
//!
//! This crate opens no file and depends on no other crate of this workspace. gitformat-pack(5) describes the format of
//! packs.

mod checker;
mod varint;

#[cfg(test)]
mod tests;

use std::io::Read;

pub use checker::PackChecker;

/// The bounds of a pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackLimits {
    /// The maximum number of objects.
    pub objects: u32,
    /// The maximum size of a blob that the pack contains completely, in bytes. git streams such a blob if it is larger
    /// than `core.bigFileThreshold` (by default 512 MiB), and holds a smaller blob in memory.
    pub blob: u64,
    /// The maximum size in bytes of each piece of data that git holds in memory: a commit, a tree, a tag, or the base,
    /// the instructions or the result of a delta. `git index-pack` holds up to three of these pieces at once, in
    /// addition to `core.deltaBaseCacheLimit` (by default 96 MiB).
    pub buffered: u64,
    /// The maximum sum of the sizes of all objects after unpacking, in bytes. This limit bounds the processor time.
    pub total: u64,
}

/// The hash function of a repository's object ids, which determines the length of the ids in a pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ObjectFormat {
    /// SHA-1: 20 bytes.
    #[default]
    Sha1,
    /// SHA-256: 32 bytes.
    Sha256,
}

impl ObjectFormat {
    /// The length of an object id in bytes.
    #[must_use]
    pub fn width(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha256 => 32,
        }
    }
}

/// The sizes of a pack that a checker has seen so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PackSummary {
    /// The number of objects that the pack announces.
    pub objects: u32,
    /// The sum of the sizes of the objects that have begun, after unpacking, in bytes.
    pub total: u64,
    /// The largest size that git holds in memory for one object ([`PackLimits::buffered`]), in bytes.
    pub buffered: u64,
}

/// The part of a pack to which a size refers. The displayed text is a part of a sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// A blob that is not a delta.
    Blob,
    /// A commit, tree or tag that is not a delta.
    Other,
    /// The object to which a delta applies.
    DeltaBase,
    /// The instructions of a delta.
    DeltaText,
    /// The object that results from a delta.
    DeltaResult,
}

impl Part {
    /// Whether the size belongs to a delta. The sender of the pack could avoid deltas by sending complete objects.
    #[must_use]
    pub fn is_of_delta(self) -> bool {
        matches!(self, Self::DeltaBase | Self::DeltaText | Self::DeltaResult)
    }
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Blob => "a file",
            Self::Other => "a commit, tree or tag",
            Self::DeltaBase => "the base of a delta",
            Self::DeltaText => "the instructions of a delta",
            Self::DeltaResult => "the result of a delta",
        })
    }
}

/// Why a pack is not passed to git. The displayed text is a part of a sentence that refers to the pack as `it`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PackError {
    /// The data does not begin with the header of a pack of version 2 or 3.
    #[error("it is not a pack of git")]
    NotAPack,
    /// The pack announces more than [`PackLimits::objects`] objects.
    #[error("it has {count} objects, and at most {most} are allowed")]
    Objects {
        /// The announced number of objects.
        count: u32,
        /// The maximum number of objects.
        most: u32,
    },
    /// A size exceeds [`PackLimits::blob`] or [`PackLimits::buffered`].
    #[error("{part} has {size} bytes, and at most {most} are allowed")]
    Size {
        /// The part that has this size.
        part: Part,
        /// The size in bytes.
        size: u64,
        /// The limit in bytes.
        most: u64,
    },
    /// The total size of the objects exceeds [`PackLimits::total`].
    #[error("its objects have more than {most} bytes when unpacked")]
    Total {
        /// The limit in bytes.
        most: u64,
    },
    /// The pack violates the format of packs.
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
    /// The pack ended before the end of its last object or of its checksum.
    #[error("it is incomplete")]
    Incomplete,
    /// The pack could not be read.
    #[error("it cannot be read: {0}")]
    Read(std::io::ErrorKind),
}

/// Checks a complete pack, which `reader` yields from its first byte to its last.
///
/// # Errors
/// Fails with [`PackError`] at the first part that exceeds `limits` or is malformed, and does not read the rest.
pub fn check(
    mut reader: impl Read,
    limits: PackLimits,
    format: ObjectFormat,
) -> Result<PackSummary, PackError> {
    let mut checker = PackChecker::new(limits, format);
    let mut piece = vec![0; 64 << 10];
    loop {
        match reader.read(&mut piece) {
            Ok(0) => return checker.finish(),
            Ok(count) => checker.feed(&piece[..count])?,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(PackError::Read(error.kind())),
        }
    }
}
