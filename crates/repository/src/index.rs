//! Reads the index of a working tree as data, for the files that a sparse checkout leaves out.
//!
//! The format is that of gitformat-index(5), versions 2 to 4.

use bottle_pack_check::ObjectFormat;

/// The bit of the extended flags that marks an entry which is not in the working tree.
const SKIP_WORKTREE: u16 = 0x4000;

/// The bit of the flags that announces extended flags.
const EXTENDED: u16 = 0x4000;

/// The number of bytes of an entry before the id of its object.
const STAT: usize = 40;

/// The mode of a directory of which a sparse index has no entries.
const DIRECTORY: u32 = 0o040_000;

/// Why an index was not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// Its content has another form.
    #[error("the index is malformed")]
    Malformed,
    /// Its entries are in another file too.
    #[error("the index is split; `git update-index --no-split-index` joins it")]
    Split,
}

/// The paths that a sparse checkout leaves out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Files.
    pub files: Vec<Vec<u8>>,
    /// Whole directories, each with a slash at its end.
    pub directories: Vec<Vec<u8>>,
}

impl LeftOut {
    /// Reads the index of a repository with this format.
    ///
    /// # Errors
    /// Every [`IndexError`].
    pub fn of(index: &[u8], format: ObjectFormat) -> Result<Self, IndexError> {
        let mut reader = Reader { rest: index };
        let is_index = reader.take(4)? == b"DIRC";
        let (version, count) = (reader.u32()?, reader.u32()?);
        if !is_index || !(2..=4).contains(&version) {
            return Err(IndexError::Malformed);
        }
        let mut found = Self::default();
        let mut path = Vec::new();
        for _ in 0..count {
            let start = reader.rest.len();
            let stat = reader.take(STAT)?;
            let mode = u32::from_be_bytes([stat[24], stat[25], stat[26], stat[27]]);
            reader.take(format.width())?;
            let flags = reader.u16()?;
            let extended = if version >= 3 && flags & EXTENDED != 0 { reader.u16()? } else { 0 };
            if version == 4 {
                let dropped = reader.offset()?;
                let kept = path.len().checked_sub(dropped).ok_or(IndexError::Malformed)?;
                path.truncate(kept);
                path.extend_from_slice(reader.text()?);
            } else {
                path = reader.text()?.to_owned();
                // An entry is padded to a multiple of eight bytes, of which the end of the path is one.
                let used = start - reader.rest.len() - 1;
                reader.take((8 - used % 8) - 1)?;
            }
            if extended & SKIP_WORKTREE != 0 {
                if mode == DIRECTORY { &mut found.directories } else { &mut found.files }.push(path.clone());
            }
        }
        while reader.rest.len() > format.width() {
            let name: [u8; 4] = reader.take(4)?.try_into().map_err(|_| IndexError::Malformed)?;
            let length = reader.u32()? as usize;
            if &name == b"link" {
                return Err(IndexError::Split);
            }
            reader.take(length)?;
        }
        Ok(found)
    }

    /// Whether nothing is left out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.directories.is_empty()
    }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], IndexError> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(IndexError::Malformed)?;
        self.rest = rest;
        Ok(taken)
    }

    fn u16(&mut self) -> Result<u16, IndexError> {
        self.take(2)?.try_into().map(u16::from_be_bytes).map_err(|_| IndexError::Malformed)
    }

    fn u32(&mut self) -> Result<u32, IndexError> {
        self.take(4)?.try_into().map(u32::from_be_bytes).map_err(|_| IndexError::Malformed)
    }

    /// The bytes before the next zero byte.
    fn text(&mut self) -> Result<&'a [u8], IndexError> {
        let end = self.rest.iter().position(|byte| *byte == 0).ok_or(IndexError::Malformed)?;
        let text = self.take(end)?;
        self.take(1)?;
        Ok(text)
    }

    /// A number in the encoding of the offsets in a pack.
    fn offset(&mut self) -> Result<usize, IndexError> {
        let mut byte = self.take(1)?[0];
        let mut number = usize::from(byte & 0x7f);
        while byte & 0x80 != 0 {
            byte = self.take(1)?[0];
            number = number
                .checked_add(1)
                .and_then(|number| number.checked_mul(128))
                .ok_or(IndexError::Malformed)?;
            number += usize::from(byte & 0x7f);
        }
        Ok(number)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;

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
            let read = || LeftOut::of(&std::fs::read(top.path().join(".git/index")).expect("read"), width);
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
            git(top.path(), &["sparse-checkout", "disable"]);
            git(top.path(), &["update-index", "--split-index"]);
            assert_eq!(read(), Err(IndexError::Split));
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
            assert!(LeftOut::of(&index[..length], ObjectFormat::Sha1).is_err(), "{length}");
        }
        let mut many = index;
        many[8..12].copy_from_slice(&u32::MAX.to_be_bytes());
        assert_eq!(LeftOut::of(&many, ObjectFormat::Sha1), Err(IndexError::Malformed));
        assert_eq!(LeftOut::of(&[0; 100], ObjectFormat::Sha1), Err(IndexError::Malformed));
    }
}
