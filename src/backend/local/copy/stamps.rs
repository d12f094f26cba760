//! Which file of a live tree is which file of a stored one, so that what did not change is not copied again.
//!
//! A file is unchanged when inode, size, modification and change time are what they were. The change time
//! cannot be set by an agent, and any write, new mode or new link moves it; but its clock ticks, so a stamp
//! taken within the tick of its file's last change proves nothing and is left out, as git does with its
//! index. A page that is mapped writable changes no time while it is dirty: it is written back before the
//! stamp is taken ([`super::content`]), and then the next change is seen.
//!
//! On disk: a line that names the format, a line with the stored tree's name, then records of six
//! little-endian numbers, by live inode.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use jiff::Timestamp;
use rustix::fs::Stat;

use crate::host::files;

/// First line.
const FORMAT: &str = "bottle stamps 1\n";

/// Numbers of a record.
const NUMBERS: usize = 6;

/// Bytes of a record.
const RECORD: usize = NUMBERS * 8;

/// The most files that are remembered; a larger tree is copied whole each time.
const MAX_FILES: usize = 2_000_000;

/// A file at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stamp {
    inode: u64,
    size: u64,
    modified: i64,
    changed: i64,
    changed_fraction: u64,
}

impl Stamp {
    /// Of this file.
    pub(crate) fn of(stat: &Stat) -> Self {
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

/// Files of a live tree and the inodes of their copies in the stored tree of this name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stamps {
    name: String,
    files: Vec<(Stamp, u64)>,
}

impl Stamps {
    /// What was remembered, of which only what was not touched after `settled` counts.
    pub(crate) fn new(name: &str, mut files: Vec<(Stamp, u64)>, settled: Timestamp) -> Self {
        files.retain(|(stamp, _)| stamp.was_settled(settled));
        files.sort_unstable();
        files.dedup();
        Self { name: name.to_owned(), files }
    }

    /// The stored file that is a copy of this live one, by its inode.
    pub(crate) fn stored(&self, live: &Stamp) -> Option<u64> {
        let at = self.files.binary_search_by(|(stamp, _)| stamp.cmp(live)).ok()?;
        Some(self.files[at].1)
    }

    /// Those of the stored tree `name`; absent when there are none, or none that can be read: then
    /// everything is copied.
    pub(crate) fn read(path: &Path, name: &str) -> Option<Self> {
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

    /// Writes them in one step, in place of those there. Too many are not written, and the file is removed.
    ///
    /// # Errors
    /// When neither can be done; then what is there may describe another tree, by its name.
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        if self.files.len() > MAX_FILES {
            return forget(path);
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

/// Removes the stamps; none there is no error.
///
/// # Errors
/// When they are there and cannot be removed.
pub(crate) fn forget(path: &Path) -> io::Result<()> {
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
    fn what_was_touched_within_the_tick_of_its_copy_proves_nothing() {
        let settled = Timestamp::new(100, 8).expect("a time");
        let files = vec![(stamp(3, 101), 30), (stamp(2, 100), 20), (stamp(1, 99), 10)];
        let stamps = Stamps::new("one", files, settled);
        assert_eq!(stamps.stored(&stamp(1, 99)), Some(10));
        assert_eq!(stamps.stored(&stamp(1, 98)), None, "it changed");
        assert_eq!(stamps.stored(&stamp(2, 100)), None);
        assert_eq!(stamps.stored(&stamp(3, 101)), None);
    }

    #[test]
    fn they_are_read_back_for_their_own_tree_only_and_never_torn() {
        let here = tempfile::tempdir().expect("folder");
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
        forget(&path).expect("removed");
        forget(&path).expect("twice is no error");
        assert_eq!(Stamps::read(&path, "one"), None);
    }
}
