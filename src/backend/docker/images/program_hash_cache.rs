//! The program's hash, kept by what the system says of its file: reading all of it takes longer than asking an
//! engine everything else.
//!
//! `$BOTTLE_HOME/cache/program.json`. It saves time and nothing else: whatever does not fit is passed over, and
//! what is sent to an engine is hashed again.

use std::fs::{DirBuilder, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::host::files;

/// In the cache's folder.
const NAME: &str = "program.json";
/// Much more than it takes.
const MAX: u64 = 16 << 10;
/// A file that was changed less than this ago may change once more under the same time.
const SETTLED: Duration = Duration::from_secs(2);

/// What is known of a program, and of which file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProgramHashCache {
    path: PathBuf,
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    /// Cannot be set back, unlike the one before.
    changed: (i64, i64),
    architecture: String,
    hash: String,
}

impl ProgramHashCache {
    /// What was found in this file, which had these facts before it was read.
    pub(super) fn of(path: &Path, facts: &Metadata, architecture: &str, hash: &str) -> Self {
        Self {
            path: path.to_owned(),
            device: facts.dev(),
            inode: facts.ino(),
            size: facts.size(),
            modified: (facts.mtime(), facts.mtime_nsec()),
            changed: (facts.ctime(), facts.ctime_nsec()),
            architecture: architecture.to_owned(),
            hash: hash.to_owned(),
        }
    }

    /// The hash, when it is of this very file, which is for this architecture.
    pub(super) fn hash(&self, path: &Path, facts: &Metadata, architecture: &str) -> Option<&str> {
        let whole = self.hash.len() == 64 && self.hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        let same = *self == Self::of(path, facts, architecture, &self.hash);
        (whole && same).then_some(&self.hash)
    }

    /// What was kept; none when there is nothing, or nothing that can be read.
    pub(super) fn read(home: &Path) -> Option<Self> {
        let mut text = Vec::new();
        File::open(folder(home).join(NAME)).ok()?.take(MAX).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Keeps it, unless the file is too new to be told from what it may become.
    ///
    /// # Errors
    /// When it cannot be written, which costs time and no more.
    pub(super) fn write(&self, home: &Path) -> io::Result<()> {
        let changed = u64::try_from(self.changed.0).unwrap_or_default();
        let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(changed);
        if SystemTime::now().duration_since(changed).is_ok_and(|age| age <= SETTLED) {
            return Ok(());
        }
        let folder = folder(home);
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        files::replace(&folder.join(NAME), |file| Ok(serde_json::to_writer(file, self)?))
    }
}

fn folder(home: &Path) -> PathBuf {
    home.join("cache")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(of: char) -> String {
        of.to_string().repeat(64)
    }

    #[test]
    fn a_hash_is_of_one_file_as_it_was() {
        let folder = tempfile::tempdir().expect("folder");
        let (path, other) = (folder.path().join("program"), folder.path().join("other"));
        std::fs::write(&path, "one").expect("written");
        std::fs::copy(&path, &other).expect("copied");
        let facts = || std::fs::metadata(&path).expect("facts");
        let known = ProgramHashCache::of(&path, &facts(), "amd64", &hash('a'));
        assert_eq!(known.hash(&path, &facts(), "amd64"), Some(&*hash('a')));
        assert_eq!(known.hash(&path, &facts(), "arm64"), None);
        assert_eq!(known.hash(&other, &facts(), "amd64"), None);
        assert_eq!(known.hash(&path, &std::fs::metadata(&other).expect("facts"), "amd64"), None);
        let cut = ProgramHashCache { hash: "a".to_owned(), ..known.clone() };
        assert_eq!(cut.hash(&path, &facts(), "amd64"), None);
        // The same size, and its time set back: it changed all the same.
        let before = facts().modified().expect("time");
        std::thread::sleep(Duration::from_millis(20));
        std::fs::write(&path, "two").expect("written");
        File::options().write(true).open(&path).expect("open").set_modified(before).expect("set back");
        assert_eq!(known.hash(&path, &facts(), "amd64"), None);
    }

    #[test]
    fn what_settled_is_kept_and_what_is_damaged_passed_over() {
        let home = tempfile::tempdir().expect("folder");
        let path = home.path().join("program");
        std::fs::write(&path, "one").expect("written");
        let fresh =
            ProgramHashCache::of(&path, &std::fs::metadata(&path).expect("facts"), "amd64", &hash('a'));
        fresh.write(home.path()).expect("nothing to write");
        assert_eq!(ProgramHashCache::read(home.path()), None);
        let settled = ProgramHashCache { changed: (fresh.changed.0 - 60, 0), ..fresh };
        settled.write(home.path()).expect("written");
        assert_eq!(ProgramHashCache::read(home.path()), Some(settled));
        for damaged in ["", "{", "[1]"] {
            std::fs::write(folder(home.path()).join(NAME), damaged).expect("written");
            assert_eq!(ProgramHashCache::read(home.path()), None, "{damaged}");
        }
    }
}
