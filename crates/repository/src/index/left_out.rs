//! The paths that a sparse checkout leaves out of a working tree.

use super::{IndexError, IndexFiles};

/// The paths that a sparse checkout leaves out of a working tree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// The files that are left out.
    pub files: Vec<Vec<u8>>,
    /// The whole directories that are left out. Each path ends with a slash.
    pub directories: Vec<Vec<u8>>,
}

impl LeftOut {
    /// Reads the paths from an index.
    ///
    /// # Errors
    /// Returns [`IndexError::Malformed`].
    pub fn of(index: &IndexFiles) -> Result<Self, IndexError> {
        let mut found = Self::default();
        index.each(|entry| {
            if entry.is_left_out {
                let paths = if entry.is_directory { &mut found.directories } else { &mut found.files };
                paths.push(entry.name.to_owned());
            }
        })?;
        Ok(found)
    }

    /// Whether no path is left out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.directories.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use bottle_pack_check::ObjectFormat;

    use super::*;
    use crate::directory::Directory;

    fn of(bytes: &[u8]) -> Result<LeftOut, IndexError> {
        LeftOut::of(&IndexFiles::of(bytes.to_owned(), None, ObjectFormat::Sha1)?)
    }

    fn git(directory: &Path, arguments: &[&str]) {
        let mut git = Command::new("git");
        git.current_dir(directory).env("GIT_CONFIG_GLOBAL", "/dev/null");
        git.args(["-c", "user.name=a", "-c", "user.email=a@example.com"]).args(arguments);
        let output = git.output().expect("git");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    #[test]
    fn finds_what_a_sparse_checkout_leaves_out() {
        for (format, width) in [("sha1", ObjectFormat::Sha1), ("sha256", ObjectFormat::Sha256)] {
            let top = tempfile::tempdir().expect("a directory");
            git(top.path(), &["init", "-q", "--object-format", format, "."]);
            for name in ["left/a", "left/longer-name", "out/a", "out/deep/b", "top"] {
                let path = top.path().join(name);
                std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
                std::fs::write(path, name).expect("written");
            }
            git(top.path(), &["add", "-A"]);
            git(top.path(), &["commit", "-qm", "one"]);
            let git_directory = Directory::open(&top.path().join(".git")).expect("opened");
            let read = || {
                let read = IndexFiles::read(&git_directory, Some(width)).expect("read");
                LeftOut::of(&read.expect("there").0)
            };
            assert!(read().expect("parsed").is_empty());
            git(top.path(), &["sparse-checkout", "set", "--no-sparse-index", "left"]);
            let files = vec![b"out/a".to_vec(), b"out/deep/b".to_vec()];
            let expected = LeftOut { files, directories: Vec::new() };
            assert_eq!(read().expect("parsed"), expected);
            git(top.path(), &["update-index", "--index-version", "4"]);
            assert_eq!(read().expect("parsed"), expected);
            git(top.path(), &["sparse-checkout", "set", "--sparse-index", "left"]);
            let directories = vec![b"out/".to_vec()];
            assert_eq!(read().expect("parsed"), LeftOut { files: Vec::new(), directories });
            git(top.path(), &["sparse-checkout", "set", "--no-sparse-index", "left"]);
            git(top.path(), &["update-index", "--split-index"]);
            assert_eq!(read().expect("parsed"), expected);
        }
    }

    #[test]
    fn refuses_what_is_malformed_in_bounded_time() {
        let top = tempfile::tempdir().expect("a directory");
        git(top.path(), &["init", "-q", "."]);
        std::fs::write(top.path().join("a"), "a").expect("written");
        git(top.path(), &["add", "a"]);
        let index = std::fs::read(top.path().join(".git/index")).expect("read");
        for length in 0..index.len() - 20 {
            assert!(of(&index[..length]).is_err(), "{length}");
        }
        let mut many = index;
        many[8..12].copy_from_slice(&u32::MAX.to_be_bytes());
        assert!(matches!(of(&many), Err(IndexError::Malformed)));
        assert!(matches!(of(&[0; 100]), Err(IndexError::Malformed)));
    }
}
