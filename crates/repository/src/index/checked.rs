//! The files in the index, with the status that they had when git last compared them.

use rustix::fs::{FileType, Stat};

use super::{IndexError, IndexFiles};

/// The files of an index, sorted by path.
#[derive(Debug, Default)]
pub struct Checked {
    files: Vec<File>,
    /// When the index was written. If a file changed at this time or later, its status can still be the same.
    written: Option<(i64, i64)>,
}

/// The entry of a file in the index.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) name: Vec<u8>,
    pub(crate) mode: u32,
    /// The modification time in seconds and nanoseconds.
    pub(super) modified: (u32, u32),
    size: u32,
    pub(crate) id: String,
    /// Whether the user hides changes of the file from git (`assume-unchanged`, `skip-worktree`).
    pub(crate) is_hidden: bool,
    /// The position of the entry's status in the index file.
    pub(super) at: usize,
}

impl File {
    /// Whether git would read the file to see whether it has changed. Git does so if the file was modified in the same
    /// second in which the index was written, or later.
    #[allow(clippy::unnecessary_cast, reason = "the types differ between systems")]
    pub(super) fn is_as_old_as(&self, written: &Stat) -> bool {
        i64::from(self.modified.0) >= written.st_mtime as i64
    }
}

impl Checked {
    /// Reads an index. `written` is the status of the index file.
    ///
    /// # Errors
    /// Returns [`IndexError::Malformed`].
    #[allow(clippy::unnecessary_cast, reason = "the types differ between systems")]
    pub fn of(index: &IndexFiles, written: &Stat) -> Result<Self, IndexError> {
        let mut files: Vec<File> = Vec::new();
        index.each(|entry| {
            let number = |at: usize| {
                u32::from_be_bytes([
                    entry.status[at],
                    entry.status[at + 1],
                    entry.status[at + 2],
                    entry.status[at + 3],
                ])
            };
            // A file with conflicts, or which the user only intends to add, has no content in the index.
            if entry.stage == 0 && !entry.is_intent {
                let digit = |number: u8| char::from_digit(u32::from(number), 16).unwrap_or('0');
                let id = entry.id.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect();
                files.push(File {
                    name: entry.name.to_owned(),
                    mode: number(24),
                    modified: (number(8), number(12)),
                    size: number(36),
                    id,
                    is_hidden: entry.is_left_out || entry.is_assumed,
                    at: entry.at,
                });
            }
        })?;
        if !files.is_sorted_by(|one, other| one.name < other.name) {
            return Err(IndexError::Malformed);
        }
        Ok(Self { files, written: Some((written.st_mtime as i64, written.st_mtime_nsec as i64)) })
    }

    /// Whether the index contains a file.
    #[must_use]
    pub fn has(&self, path: &[u8]) -> bool {
        self.files.binary_search_by(|file| file.name.as_slice().cmp(path)).is_ok()
    }

    /// Whether the index contains a file below a directory.
    pub(crate) fn has_below(&self, directory: &[u8]) -> bool {
        let below = [directory, b"/"].concat();
        let first = self.files.partition_point(|file| file.name < below);
        self.files.get(first).is_some_and(|file| file.name.starts_with(&below))
    }

    /// Returns the files, sorted by path. In a sparse index, some entries are directories.
    pub(crate) fn files(&self) -> &[File] {
        &self.files
    }

    /// Returns the object id of a file's content if git would conclude from the file's status that the file has not
    /// changed.
    #[must_use]
    #[allow(
        clippy::unnecessary_cast,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the types differ between systems, and git keeps the last 32 bits"
    )]
    pub fn unchanged(&self, path: &[u8], status: &Stat) -> Option<&str> {
        let at = self.files.binary_search_by(|file| file.name.as_slice().cmp(path)).ok()?;
        let file = &self.files[at];
        let modified = (status.st_mtime as i64, status.st_mtime_nsec as i64);
        let is_same_time = file.modified.0 == modified.0 as u32
            && (file.modified.1 == 0 || file.modified.1 == modified.1 as u32);
        let is_old = self.written.is_some_and(|written| modified < written);
        let is_same = file.size == status.st_size as u32 && file.mode == mode(status)?;
        (is_same_time && is_old && is_same).then_some(file.id.as_str())
    }
}

/// Returns the mode of a file or link in git. `None` for other types of entries.
pub(crate) fn mode(status: &Stat) -> Option<u32> {
    match FileType::from_raw_mode(status.st_mode) {
        FileType::RegularFile if status.st_mode & 0o100 == 0 => Some(0o100_644),
        FileType::RegularFile => Some(0o100_755),
        FileType::Symlink => Some(0o120_000),
        _ => None,
    }
}
