//! Caches the program's hash together with the file's metadata, because reading the program takes longer than all
//! queries to an engine.
//!
//! The cache is the file `$BOTTLE_HOME/cache/program.json`. It only saves time: an entry that does not match is
//! ignored, and a program is hashed again before it is sent to an engine.

use std::fs::{DirBuilder, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::host::files;

/// The file's name in the cache folder.
const NAME: &str = "program.json";
/// The maximum number of bytes read from the cache file. The file is much shorter; a longer one is ignored as invalid.
const MAX: u64 = 16 << 10;
/// The age of the program file's last change from which the hash is cached. A file that changed more recently may
/// change again without a new timestamp.
const SETTLED: Duration = Duration::from_secs(2);

/// The hash of a program and the metadata of its file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProgramHashCache {
    path: PathBuf,
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    /// The file's change time. Unlike the modification time, it cannot be set back.
    changed: (i64, i64),
    architecture: String,
    hash: String,
}

impl ProgramHashCache {
    /// The cache entry for this file. `facts` is the file's metadata from before its content was read.
    pub(super) fn new(path: &Path, facts: &Metadata, architecture: &str, hash: &str) -> Self {
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

    /// The hash, if the entry matches this file and architecture.
    pub(super) fn hash(&self, path: &Path, facts: &Metadata, architecture: &str) -> Option<&str> {
        let whole = self.hash.len() == 64 && self.hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        let same = *self == Self::new(path, facts, architecture, &self.hash);
        (whole && same).then_some(&self.hash)
    }

    /// Reads the entry. `None` if it is missing or invalid.
    pub(super) fn read(home: &Path) -> Option<Self> {
        let mut text = Vec::new();
        File::open(folder(home).join(NAME)).ok()?.take(MAX).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Writes the entry, unless the file changed so recently that its timestamps might not show another change.
    ///
    /// # Errors
    /// When the entry cannot be written.
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
    fn a_hash_is_valid_only_for_the_unchanged_file() {
        let folder = tempfile::tempdir().expect("folder");
        let (path, other) = (folder.path().join("program"), folder.path().join("other"));
        std::fs::write(&path, "one").expect("written");
        std::fs::copy(&path, &other).expect("copied");
        let facts = || std::fs::metadata(&path).expect("facts");
        let known = ProgramHashCache::new(&path, &facts(), "amd64", &hash('a'));
        assert_eq!(known.hash(&path, &facts(), "amd64"), Some(&*hash('a')));
        assert_eq!(known.hash(&path, &facts(), "arm64"), None);
        assert_eq!(known.hash(&other, &facts(), "amd64"), None);
        assert_eq!(known.hash(&path, &std::fs::metadata(&other).expect("facts"), "amd64"), None);
        let cut = ProgramHashCache { hash: "a".to_owned(), ..known.clone() };
        assert_eq!(cut.hash(&path, &facts(), "amd64"), None);
        // The file has the same size and its modification time is set back, but it has changed.
        let before = facts().modified().expect("time");
        std::thread::sleep(Duration::from_millis(20));
        std::fs::write(&path, "two").expect("written");
        File::options().write(true).open(&path).expect("open").set_modified(before).expect("set back");
        assert_eq!(known.hash(&path, &facts(), "amd64"), None);
    }

    #[test]
    fn stores_settled_files_and_ignores_damaged_entries() {
        let home = tempfile::tempdir().expect("folder");
        let path = home.path().join("program");
        std::fs::write(&path, "one").expect("written");
        let fresh =
            ProgramHashCache::new(&path, &std::fs::metadata(&path).expect("facts"), "amd64", &hash('a'));
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
