//! Maps files of a live tree to their copies in a stored tree, so that unchanged files are not copied again.
//!
//! A file is treated as unchanged if its inode, size, modification time and change time equal those in its stamp. An
//! agent cannot set the change time, and every write, mode change or new link updates the change time. However, the
//! clock of file times advances in ticks. A stamp that was taken in the same tick as the file's last change proves
//! nothing and is discarded, as git does with its index. Writes through a memory mapping update no time while the page
//! is dirty, so dirty pages are written back before the stamp is taken ([`super::content`]).
//!
//! A stamps file begins with a line that names the format, and a line with the stored tree's name. One record for each
//! file follows, sorted by live inode. A record consists of six little-endian numbers.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use bottle_host::files;
use jiff::Timestamp;
use rustix::fs::Stat;

/// The first line of a stamps file.
const FORMAT: &str = "bottle stamps 1\n";

/// How many numbers a record contains.
const NUMBERS: usize = 6;

/// The size of a record in bytes.
const RECORD: usize = NUMBERS * 8;

/// The maximum number of files that are recorded. A tree with more files is copied completely each time.
const MAX_FILES: usize = 2_000_000;

/// The identity and times of a file at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp {
    inode: u64,
    size: u64,
    modified: i64,
    changed: i64,
    changed_fraction: u64,
}

impl Stamp {
    /// Creates the stamp of a file with this status.
    pub(crate) fn from_stat(stat: &Stat) -> Self {
        let nanoseconds = |seconds: i64, fraction: u64| {
            seconds.saturating_mul(1_000_000_000).saturating_add(i64::try_from(fraction).unwrap_or(0))
        };
        Self {
            inode: stat.st_ino,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            modified: nanoseconds(stat.st_mtime, stat.st_mtime_nsec),
            changed: stat.st_ctime,
            changed_fraction: stat.st_ctime_nsec,
        }
    }

    fn was_settled(&self, at: Timestamp) -> bool {
        let nanoseconds = i128::from(self.changed) * 1_000_000_000 + i128::from(self.changed_fraction);
        nanoseconds <= at.as_nanosecond()
    }
}

/// The stamps of files in a live tree, each with the inode of the file's copy in the stored tree `name`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamps {
    name: String,
    files: Vec<(Stamp, u64)>,
}

impl Stamps {
    /// Creates the stamps of the stored tree `name`. Keeps only the stamps of files that last changed before
    /// `unchanged_since` or at that time.
    pub fn new(name: &str, mut files: Vec<(Stamp, u64)>, unchanged_since: Timestamp) -> Self {
        files.retain(|(stamp, _)| stamp.was_settled(unchanged_since));
        files.sort_unstable();
        files.dedup();
        Self { name: name.to_owned(), files }
    }

    /// Returns the inode of the stored copy, if this live file is unchanged.
    pub fn stored(&self, live: &Stamp) -> Option<u64> {
        let at = self.files.binary_search_by(|(stamp, _)| stamp.cmp(live)).ok()?;
        Some(self.files[at].1)
    }

    /// Reads the stamps of the stored tree `name`. Returns `None` if the stamps are missing or unreadable. The next
    /// snapshot then copies all files.
    pub fn read(path: &Path, name: &str) -> Option<Self> {
        let mut bytes = Vec::new();
        let bound = (MAX_FILES * RECORD + 1024) as u64;
        File::open(path).ok()?.take(bound).read_to_end(&mut bytes).ok()?;
        let rest = bytes.strip_prefix(FORMAT.as_bytes())?;
        let rest = rest.strip_prefix(name.as_bytes())?.strip_prefix(b"\n")?;
        let (records, torn) = rest.as_chunks::<RECORD>();
        if !torn.is_empty() {
            return None;
        }
        let files: Vec<_> = records.iter().map(record_of).collect();
        files.is_sorted().then(|| Self { name: name.to_owned(), files })
    }

    /// Writes the stamps file at `path`, and replaces an existing file atomically. If there are too many stamps,
    /// removes the file instead.
    ///
    /// # Errors
    /// When the file can be neither written nor removed. The file may then describe an older stored tree. The second
    /// line of the file names that tree.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        if self.files.len() > MAX_FILES {
            return remove(path);
        }
        files::replace(path, |out| {
            writeln!(out, "{FORMAT}{}", self.name)?;
            for (stamp, stored) in &self.files {
                out.write_all(&stamp.inode.to_le_bytes())?;
                out.write_all(&stamp.size.to_le_bytes())?;
                out.write_all(&stamp.modified.to_le_bytes())?;
                out.write_all(&stamp.changed.to_le_bytes())?;
                out.write_all(&stamp.changed_fraction.to_le_bytes())?;
                out.write_all(&stored.to_le_bytes())?;
            }
            Ok(())
        })
    }
}

/// Removes the stamps file. A missing file is no error.
///
/// # Errors
/// When the file cannot be removed.
pub fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn record_of(bytes: &[u8; RECORD]) -> (Stamp, u64) {
    let mut numbers = [0_u64; NUMBERS];
    for (number, bytes) in numbers.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *number = u64::from_le_bytes(*bytes);
    }
    let [inode, size, modified, changed, changed_fraction, stored] = numbers;
    let (modified, changed) = (modified.cast_signed(), changed.cast_signed());
    (Stamp { inode, size, modified, changed, changed_fraction }, stored)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(inode: u64, changed: i64) -> Stamp {
        Stamp { inode, size: 7, modified: -5, changed, changed_fraction: 9 }
    }

    #[test]
    fn discards_stamps_of_files_changed_within_the_tick_of_the_copy() {
        let unchanged_since = Timestamp::new(100, 8).expect("a time");
        let files = vec![(stamp(3, 101), 30), (stamp(2, 100), 20), (stamp(1, 99), 10)];
        let stamps = Stamps::new("one", files, unchanged_since);
        assert_eq!(stamps.stored(&stamp(1, 99)), Some(10));
        assert_eq!(stamps.stored(&stamp(1, 98)), None, "it changed");
        assert_eq!(stamps.stored(&stamp(2, 100)), None);
        assert_eq!(stamps.stored(&stamp(3, 101)), None);
    }

    #[test]
    fn reads_back_only_complete_stamps_of_the_same_tree() {
        let here = tempfile::tempdir().expect("directory");
        let path = here.path().join("stamps");
        let stamps = Stamps::new("one", vec![(stamp(1, 5), 10)], Timestamp::from_second(9).expect("a time"));
        stamps.write(&path).expect("written");
        assert_eq!(Stamps::read(&path, "one"), Some(stamps));
        assert_eq!(Stamps::read(&path, "on"), None);
        assert_eq!(Stamps::read(&path, "two"), None);
        let mut bytes = std::fs::read(&path).expect("read");
        bytes.pop();
        std::fs::write(&path, bytes).expect("written");
        assert_eq!(Stamps::read(&path, "one"), None);
        remove(&path).expect("removed");
        remove(&path).expect("twice is no error");
        assert_eq!(Stamps::read(&path, "one"), None);
    }
}
