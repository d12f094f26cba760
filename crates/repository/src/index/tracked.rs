//! The names of the files that git tracks.

use std::cmp::Ordering;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::FileType;

use super::{IndexError, IndexFiles};
use crate::directory::Directory;

/// The names of the files that git tracks, sorted by their bytes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Index {
    /// All names, one after the other.
    names: Vec<u8>,
    /// The end of each name.
    ends: Vec<usize>,
}

impl Index {
    /// Reads the index of a working tree's git directory. A missing index is treated as empty.
    ///
    /// # Errors
    /// Returns an [`IndexError`] of any kind.
    pub fn read(git_directory: &Directory) -> Result<Self, IndexError> {
        match IndexFiles::read(git_directory, None)? {
            Some((files, _)) => Self::of(&files),
            None => Ok(Self::default()),
        }
    }

    fn of(files: &IndexFiles) -> Result<Self, IndexError> {
        let (mut index, mut is_sorted) = (Self::default(), true);
        files.each(|entry| is_sorted &= index.add(entry.name))?;
        if is_sorted { Ok(index) } else { Err(IndexError::Malformed) }
    }

    /// Whether git tracks the file at this path or, if the path is a directory, a file below it. The path is relative
    /// to the top of the working tree.
    #[must_use]
    pub fn tracks(&self, path: &Path, kind: FileType) -> bool {
        let path = path.as_os_str().as_bytes();
        if kind != FileType::Directory {
            return self.position(path).is_some();
        }
        let below = [path, b"/"].concat();
        let first = self.first_from(&below);
        first < self.ends.len() && self.name(first).starts_with(&below)
    }

    fn position(&self, name: &[u8]) -> Option<usize> {
        let at = self.first_from(name);
        (at < self.ends.len() && self.name(at) == name).then_some(at)
    }

    /// Returns the position of the first name that does not sort before `name`.
    fn first_from(&self, name: &[u8]) -> usize {
        let (mut low, mut high) = (0, self.ends.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.name(middle) < name { low = middle + 1 } else { high = middle }
        }
        low
    }

    fn name(&self, at: usize) -> &[u8] {
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.names[start..self.ends[at]]
    }

    /// Adds a name. Returns false if the name sorts before the last name. The same name may be added again, because a
    /// file with conflicts has several entries.
    fn add(&mut self, name: &[u8]) -> bool {
        let order = self.ends.len().checked_sub(1).map(|last| self.name(last).cmp(name));
        if matches!(order, Some(Ordering::Equal)) {
            return true;
        }
        self.names.extend_from_slice(name);
        self.ends.push(self.names.len());
        order != Some(Ordering::Greater)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use bottle_pack_check::ObjectFormat;

    use super::super::{NAME_LENGTH, STATUS};
    use super::*;

    fn of(bytes: &[u8], format: ObjectFormat) -> Result<Index, IndexError> {
        Index::of(&IndexFiles::of(bytes.to_owned(), None, format)?)
    }

    /// Creates a repository with an index of this version. `None` if no git program supports this format.
    fn repository(version: &str, format: &str) -> Option<tempfile::TempDir> {
        let top = tempfile::tempdir().expect("a directory");
        let git = |arguments: &[&str]| {
            let mut git = Command::new("git");
            git.args(arguments).current_dir(top.path()).env_clear().env("PATH", "/usr/bin:/bin");
            git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
            git.status().is_ok_and(|status| status.success())
        };
        if !git(&["init", "-q", &format!("--object-format={format}")]) {
            return None;
        }
        std::fs::create_dir_all(top.path().join("dir/deep")).expect("made");
        for name in ["a", "dir/deep/file", "dir/other", "dir-x", &"long".repeat(60)] {
            std::fs::write(top.path().join(name), "x").expect("written");
        }
        assert!(git(&["add", "."]) && git(&["update-index", "--index-version", version]));
        if version == "3" {
            assert!(git(&["update-index", "--skip-worktree", "dir/other"]));
        }
        Some(top)
    }

    #[test]
    fn reads_the_names_of_every_version_and_object_format() {
        for (version, format) in
            [("2", "sha1"), ("3", "sha1"), ("4", "sha1"), ("2", "sha256"), ("4", "sha256")]
        {
            let Some(top) = repository(version, format) else { continue };
            let git_directory = Directory::open(&top.path().join(".git")).expect("opened");
            let index = Index::read(&git_directory).expect("read");
            assert_eq!(index.ends.len(), 5, "version {version}, {format}");
            for (path, kind, tracked) in [
                ("a", FileType::RegularFile, true),
                ("dir/deep/file", FileType::RegularFile, true),
                ("dir/deep", FileType::RegularFile, false),
                ("dir/deep", FileType::Directory, true),
                ("dir", FileType::Directory, true),
                ("di", FileType::Directory, false),
                ("dir-x", FileType::Symlink, true),
                ("zzz", FileType::RegularFile, false),
            ] {
                assert_eq!(index.tracks(Path::new(path), kind), tracked, "{path}");
            }
        }
    }

    #[test]
    fn a_damaged_index_is_unknown_and_none_makes_it_panic() {
        let Some(top) = repository("4", "sha1") else { return };
        let path = top.path().join(".git/index");
        let whole = std::fs::read(&path).expect("read");
        for length in 0..whole.len() {
            let read = of(&whole[..length], ObjectFormat::Sha1);
            assert!(matches!(read, Err(IndexError::Malformed)), "{length}");
        }
        for at in 0..whole.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut changed = whole.clone();
                changed[at] = value;
                let _ = [ObjectFormat::Sha1, ObjectFormat::Sha256].map(|format| of(&changed, format).is_ok());
            }
        }
        let git_directory = Directory::open(&top.path().join(".git")).expect("opened");
        std::fs::write(&path, "DIRC").expect("written");
        assert!(matches!(Index::read(&git_directory), Err(IndexError::Malformed)));
        std::fs::remove_file(&path).expect("removed");
        assert_eq!(Index::read(&git_directory).expect("read"), Index::default());
        std::os::unix::fs::symlink("/dev/zero", &path).expect("link");
        assert!(matches!(Index::read(&git_directory), Err(IndexError::Unreadable(_))));
    }

    #[test]
    fn compressed_names_have_a_bound() {
        // Each entry except the first one repeats the 5,000 bytes of the name before it.
        let of_entries = |entries: u32| {
            let mut bytes = [&b"DIRC\0\0\0\x04"[..], &entries.to_be_bytes()].concat();
            let name = vec![b'a'; 5_000];
            for at in 0..entries {
                let end = format!("{at:05}").into_bytes();
                let (removed, added) = if at == 0 { (0, [name.clone(), end].concat()) } else { (5, end) };
                bytes.extend([0; STATUS + 20]);
                bytes.extend(NAME_LENGTH.to_be_bytes());
                bytes.push(removed);
                bytes.extend(added);
                bytes.push(0);
            }
            bytes.extend([0; 20]);
            of(&bytes, ObjectFormat::Sha1)
        };
        assert_eq!(of_entries(10).expect("within the bound").ends.len(), 10);
        assert!(matches!(of_entries(30_000), Err(IndexError::Malformed)));
    }
}
