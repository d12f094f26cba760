//! The index for the copy of a working tree.
//!
//! A copy keeps the sizes and the modification times of files, so git sees which files have not changed. If a file is
//! as old as the index, git does not rely on the status and reads the file. The copy has no filter, so git would then
//! report the output of a filter as changed. The index of the copy is therefore younger than all of its files. The
//! entries of files that may have changed are marked, so that git reads these files.

use std::ops::Range;

use rustix::fs::Stat;
use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::{Checked, IndexFiles};

/// The position of the size in the status of an entry.
const SIZE: Range<usize> = 36..40;

/// The length of a SHA-1 id in bytes.
const SHA1: usize = 20;

/// The content of an index, and the modification time that its file gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CopiedIndex {
    pub(crate) bytes: Vec<u8>,
    /// The modification time in seconds.
    pub(crate) modified: u64,
}

impl CopiedIndex {
    /// Creates the index for a copy of the files that `status` describes. `None` if the index can be copied unchanged,
    /// or if it is split.
    pub(crate) fn of(
        index: &IndexFiles,
        checked: &Checked,
        written: &Stat,
        status: impl Fn(&[u8]) -> Option<Stat>,
    ) -> Option<Self> {
        let mut bytes = index.whole()?.to_owned();
        let mut youngest = None;
        for file in checked.files().iter().filter(|file| file.is_as_old_as(written)) {
            let unchanged =
                status(&file.name).is_some_and(|status| checked.unchanged(&file.name, &status).is_some());
            if unchanged {
                youngest = youngest.max(Some(u64::from(file.modified.0)));
            } else {
                // A size of zero makes git read the file. Git marks such entries in the same way when it writes an
                // index.
                bytes.get_mut(file.at..)?.get_mut(SIZE)?.fill(0);
            }
        }
        let modified = youngest?.checked_add(1)?;
        let end = bytes.len().checked_sub(index.id_length)?;
        let (content, hash) = bytes.split_at_mut(end);
        match hash.len() {
            SHA1 => hash.copy_from_slice(&Sha1::digest(content)),
            _ => hash.copy_from_slice(&Sha256::digest(content)),
        }
        Some(Self { bytes, modified })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::path::Path;
    use std::process::Command;
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::directory::Directory;

    fn git(top: &Path, arguments: &[&str]) -> String {
        let mut git = Command::new("git");
        git.current_dir(top).env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_OPTIONAL_LOCKS", "0");
        git.args(["-c", "user.name=a", "-c", "user.email=a@example.com"]).args(arguments);
        let output = git.output().expect("git");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn set_time(path: &Path, time: SystemTime) {
        File::options().write(true).open(path).and_then(|file| file.set_modified(time)).expect("set");
    }

    /// In a copy whose configuration names no filter, git does not report a file as changed that a filter produced. Git
    /// reports a file that has changed since then with the same length and in the same second.
    #[test]
    fn git_trusts_a_file_of_a_filter_in_a_copy_and_reads_a_changed_one() {
        for format in ["sha1", "sha256"] {
            let scene = tempfile::tempdir().expect("a directory");
            let (top, copy) = (scene.path().join("top"), scene.path().join("copy"));
            let write = |name: &str, text: &str| fs::write(top.join(name), text).expect("written");
            git(scene.path(), &["init", "-q", "--object-format", format, "top"]);
            git(&top, &["config", "filter.crypt.clean", "tr a-z n-za-m"]);
            write(".gitattributes", "secret* filter=crypt\n");
            for name in ["secret", "secret-changed", "plain", "plain-changed"] {
                write(name, "hello");
            }
            // The modification times of all files and of the index are in the same second.
            let second = SystemTime::now() - Duration::from_secs(10);
            let at = |nanoseconds| {
                let since = second.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs();
                SystemTime::UNIX_EPOCH + Duration::new(since, nanoseconds)
            };
            for name in [".gitattributes", "secret", "secret-changed", "plain", "plain-changed"] {
                set_time(&top.join(name), at(1000));
            }
            git(&top, &["add", "-A"]);
            git(&top, &["commit", "-qm", "one"]);
            for name in ["secret-changed", "plain-changed"] {
                write(name, "HELLO");
                set_time(&top.join(name), at(3000));
            }
            set_time(&top.join(".git/index"), at(2000));

            let directory = Directory::open(&top.join(".git")).expect("opened");
            let (index, written) = IndexFiles::read(&directory, None).expect("read").expect("there");
            let checked = Checked::of(&index, &written).expect("well-formed");
            let working = Directory::open(&top).expect("opened");
            let status = |name: &[u8]| {
                working.stat(Path::new(std::str::from_utf8(name).expect("text"))).expect("looked at")
            };
            let copied = CopiedIndex::of(&index, &checked, &written, status).expect("another index");

            assert!(Command::new("cp").arg("-a").arg(&top).arg(&copy).status().expect("cp").success());
            git(&copy, &["config", "--remove-section", "filter.crypt"]);
            git(&copy, &["config", "core.checkStat", "minimal"]);
            let status = || git(&copy, &["status", "--porcelain"]);
            assert!(status().contains(" M secret\n"), "with the index as it is");
            fs::write(copy.join(".git/index"), &copied.bytes).expect("written");
            set_time(&copy.join(".git/index"), SystemTime::UNIX_EPOCH + Duration::from_secs(copied.modified));
            assert_eq!(status(), " M plain-changed\n M secret-changed\n", "{format}");
            git(&copy, &["-c", "index.skipHash=false", "fsck"]);
        }
    }

    #[test]
    fn an_older_file_needs_no_other_index() {
        let scene = tempfile::tempdir().expect("a directory");
        let top = scene.path();
        git(top, &["init", "-q", "."]);
        fs::write(top.join("old"), "x").expect("written");
        set_time(&top.join("old"), SystemTime::now() - Duration::from_secs(100));
        git(top, &["add", "old"]);
        let directory = Directory::open(&top.join(".git")).expect("opened");
        let (index, written) = IndexFiles::read(&directory, None).expect("read").expect("there");
        let checked = Checked::of(&index, &written).expect("well-formed");
        assert_eq!(CopiedIndex::of(&index, &checked, &written, |_| None), None);
    }
}
