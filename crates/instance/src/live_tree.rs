//! The entries of the user's directory (`--cwd=live`) at the agent's start. When the bottle ends, the directory is
//! compared with this tree.
//!
//! Times alone do not show what an agent did: in a renamed directory, no file is newer. For each entry, the tree has a
//! digest of the path, the inode and the change time. If an entry is created, changed or moved, its digest differs. A
//! directory's digest omits the change time, because each change of a directory is also a change of one of its entries.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bottle_host::directory_walk::{Bounds, Entry, Next, walk};
use bottle_host::{files, plain_file};
use bottle_plan::LiveDirectory;
use rustix::fs::{FileType, Stat};
use sha2::{Digest, Sha256};

use super::live_directory::GIT_DIR;

/// The length of a digest in bytes.
const DIGEST: usize = 16;

type EntryDigest = [u8; DIGEST];

/// The entries of a directory at one time.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LiveTree {
    /// The digests of the entries, sorted.
    entries: Vec<EntryDigest>,
}

impl LiveTree {
    /// Reads the tree of a directory. `None` if the directory exceeds the bounds. The tree omits the entries of
    /// directories that are too deep or unreadable.
    ///
    /// # Errors
    /// Fails if the directory cannot be read.
    pub fn of(live: &LiveDirectory, bounds: Bounds) -> io::Result<Option<Self>> {
        let mut entries = Vec::new();
        let walked = walk(&live.path, bounds, &mut |entry| {
            if is_users_repository(live, entry.path) {
                return Next::Skip;
            }
            entries.extend(entry.stat().map(|stat| digest(entry, &stat)));
            Next::Enter
        })?;
        entries.sort_unstable();
        Ok(walked.bound.is_none().then_some(Self { entries }))
    }

    /// Writes the tree into the state directory of a bottle. If the state directory already contains a tree, that tree
    /// stays: it is from an earlier start, and the changes since then were not reported yet.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn write_once(&self, directory: &Path) -> io::Result<()> {
        let path = path(directory);
        if path.try_exists()? {
            return Ok(());
        }
        files::replace(&path, |file| self.entries.iter().try_for_each(|entry| file.write_all(entry)))
    }

    /// Reads the tree from the state directory of a bottle, and removes its file. `None` if there is no tree, or if the
    /// tree has more than `most` entries.
    ///
    /// # Errors
    /// Fails if the file cannot be read or removed.
    pub fn take(directory: &Path, most: usize) -> io::Result<Option<Self>> {
        let path = path(directory);
        let limit = most.saturating_mul(DIGEST);
        let bytes = match plain_file::read(&path, limit as u64) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            bytes => bytes?,
        };
        std::fs::remove_file(&path)?;
        let (entries, rest) = bytes.as_chunks::<DIGEST>();
        let is_whole = bytes.len() <= limit && rest.is_empty() && entries.is_sorted();
        Ok(is_whole.then(|| Self { entries: entries.to_vec() }))
    }

    /// Whether the tree contains the current digest of the entry.
    pub(super) fn has(&self, entry: &Entry<'_>, stat: &Stat) -> bool {
        self.entries.binary_search(&digest(entry, stat)).is_ok()
    }
}

/// Whether a path is the user's own repository, which the agent does not see.
pub(super) fn is_users_repository(live: &LiveDirectory, path: &Path) -> bool {
    live.repository.is_some() && path == Path::new(GIT_DIR)
}

fn path(directory: &Path) -> PathBuf {
    directory.join("live-tree")
}

fn digest(entry: &Entry<'_>, stat: &Stat) -> EntryDigest {
    let kind = FileType::from_raw_mode(stat.st_mode);
    let time = if kind == FileType::Directory {
        (0, 0)
    } else {
        (i128::from(stat.st_ctime), i128::from(stat.st_ctime_nsec))
    };
    let path = entry.path.as_os_str().as_encoded_bytes();
    let mut hash = Sha256::new();
    hash.update(path);
    // A zero byte ends the path, because no path contains this byte.
    hash.update([0]);
    for number in
        [i128::from(stat.st_dev), i128::from(stat.st_ino), kind.as_raw_mode().into(), time.0, time.1]
    {
        hash.update(number.to_be_bytes());
    }
    let mut digest = EntryDigest::default();
    digest.copy_from_slice(&hash.finalize()[..DIGEST]);
    digest
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;

    const BOUNDS: Bounds = Bounds { entries: 100, time: Duration::from_secs(60) };

    #[test]
    fn is_written_once_and_taken_once() {
        let top = tempfile::tempdir().expect("directory");
        let state = tempfile::tempdir().expect("directory");
        fs::create_dir(top.path().join("a")).expect("directory");
        fs::write(top.path().join("a/file"), "x").expect("file");
        let live = LiveDirectory {
            path: top.path().to_owned(),
            device: 0,
            inode: 0,
            uid: 0,
            gid: 0,
            repository: None,
        };
        let tree = LiveTree::of(&live, BOUNDS).expect("read").expect("small");
        assert_eq!(tree.entries.len(), 2);
        assert_eq!(LiveTree::of(&live, Bounds { entries: 1, ..BOUNDS }).expect("read"), None);
        tree.write_once(state.path()).expect("written");
        LiveTree::default().write_once(state.path()).expect("the first one stays");
        assert_eq!(LiveTree::take(state.path(), 2).expect("read"), Some(tree));
        assert_eq!(LiveTree::take(state.path(), 2).expect("taken before"), None);
        for (bytes, most) in [(vec![1; DIGEST + 1], 9), (vec![1; 2 * DIGEST], 1)] {
            fs::write(path(state.path()), bytes).expect("written");
            assert_eq!(LiveTree::take(state.path(), most).expect("read"), None);
        }
    }
}
