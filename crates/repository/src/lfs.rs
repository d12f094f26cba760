//! Adds the content of a Git LFS pointer to a repository, at the path where Git LFS finds the content.

use std::ffi::OsString;
use std::io::{self, Read, Seek};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::conversion::Pointer;
use crate::repository::Repository;

/// The mode of a file with a content, as in Git LFS.
const MODE: u32 = 0o444;

/// The number that distinguishes the temporary files of this process.
static NUMBER: AtomicU32 = AtomicU32::new(0);

impl Repository {
    /// Adds a content to the directory `lfs/objects`. If the directory already has the content, writes nothing.
    ///
    /// # Errors
    /// Fails if the content does not belong to the pointer, the repository stores such contents in another directory,
    /// or the content cannot be written.
    pub fn add_lfs_content(&self, pointer: &Pointer, content: &mut (impl Read + Seek)) -> io::Result<()> {
        if self.setting("lfs", "storage").is_some() {
            return Err(io::Error::other("`lfs.storage` is set"));
        }
        content.rewind()?;
        if Pointer::of(content)? != *pointer {
            return Err(io::Error::other("the content does not belong to its pointer"));
        }
        let place: PathBuf = ["lfs", "objects", &pointer.id[..2], &pointer.id[2..4]].iter().collect();
        let directory = self.located().common.directory_or_new(&place)?;
        let name = OsString::from(&pointer.id);
        if directory.entry_stat(&name)?.is_some() {
            return Ok(());
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let temporary = OsString::from(format!("{}-bottle-{}-{number}", pointer.id, std::process::id()));
        let mut file = directory.create(&temporary, MODE)?;
        file.copy_from(content)?;
        file.rename(&name)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn adds_a_content_once_and_follows_no_link() {
        let top = tempfile::tempdir().expect("a directory");
        let git = std::process::Command::new("git").args(["init", "-q"]).arg(top.path()).status();
        assert!(git.expect("git").success());
        let open = || {
            let located = crate::locate::at(top.path()).expect("read").expect("found");
            Repository::open(located).expect("opened")
        };
        let pointer = Pointer::of(&mut &b"abc"[..]).expect("read");
        let path = top.path().join(".git/lfs/objects/ba/78").join(&pointer.id);
        let add = |content: &[u8]| open().add_lfs_content(&pointer, &mut Cursor::new(content));
        assert!(add(b"abd").is_err() && !path.exists());
        for _ in 0..2 {
            add(b"abc").expect("added");
            assert_eq!(std::fs::read(&path).expect("read"), b"abc");
        }
        std::fs::remove_dir_all(top.path().join(".git/lfs")).expect("removed");
        let outside = tempfile::tempdir().expect("a directory");
        std::os::unix::fs::symlink(outside.path(), top.path().join(".git/lfs")).expect("link");
        assert!(add(b"abc").is_err());
        assert_eq!(std::fs::read_dir(outside.path()).expect("read").count(), 0);
        std::fs::remove_file(top.path().join(".git/lfs")).expect("removed");
        std::fs::write(top.path().join(".git/config"), "[lfs]\nstorage = /elsewhere\n").expect("written");
        assert!(add(b"abc").is_err());
    }
}
