//! The file of an index, and the shared index that a split index names (gitformat-index(5), "Split index").
//!
//! ```text
//!  sharedindex.ID   entries 0, 1, 2, …
//!  index            for each replaced entry its new entry without a name, then the added entries
//!                   extension "link": ID, which entries are deleted, and which are replaced
//! ```

use std::path::Path;

use bottle_pack_check::ObjectFormat;
use rustix::fs::Stat;

use super::{Entry, IndexError, Rest, STATUS, each_entry, ewah};
use crate::directory::{Directory, ReadError};

/// The name of the index in the git directory of a working tree.
const INDEX: &str = "index";

/// The maximum size of an index file in bytes. An index of a million files needs about 120 MiB.
const MAX_BYTES: u64 = 128 << 20;

/// The bytes of an index.
#[derive(Debug)]
pub struct IndexFiles {
    index: Vec<u8>,
    shared: Option<Shared>,
    pub(super) id_length: usize,
}

/// The shared index, and the changes that the split index makes to its entries.
#[derive(Debug)]
struct Shared {
    bytes: Vec<u8>,
    deleted: Vec<bool>,
    replaced: Vec<bool>,
}

impl IndexFiles {
    /// Reads the index in the git directory of a working tree. Also returns the status of its file. `None` if there is
    /// no index. If `format` is `None`, the format is derived from the entries, which are valid in only one format.
    ///
    /// # Errors
    /// Returns an [`IndexError`] of any kind. Each of the files may have at most 128 MiB.
    pub fn read(git: &Directory, format: Option<ObjectFormat>) -> Result<Option<(Self, Stat)>, IndexError> {
        let unread = |error| ReadError::System { path: git.path().join(INDEX), error };
        let Some(status) = git.stat(Path::new(INDEX)).map_err(unread)? else { return Ok(None) };
        let Some(index) = git.read(Path::new(INDEX), MAX_BYTES)? else { return Ok(None) };
        let format = format.map_or_else(|| format_of(&index), Ok)?;
        let shared = match link(&index, format.width())? {
            Some(link) => {
                let name = link.file_name();
                let bytes = git.read(Path::new(&name), MAX_BYTES)?;
                Some(bytes.ok_or_else(|| IndexError::NotShared(git.path().join(name)))?)
            }
            None => None,
        };
        Self::of(index, shared, format).map(|files| Some((files, status)))
    }

    /// Parses the index in these bytes, for a repository with this format. If the index is split, `shared` must contain
    /// the bytes of the shared index.
    ///
    /// # Errors
    /// Returns [`IndexError::Malformed`].
    pub fn of(index: Vec<u8>, shared: Option<Vec<u8>>, format: ObjectFormat) -> Result<Self, IndexError> {
        let id_length = format.width();
        let shared = match link(&index, id_length)? {
            Some(link) => Some(link.shared(shared.ok_or(IndexError::Malformed)?)?),
            None => None,
        };
        Ok(Self { index, shared, id_length })
    }

    /// Returns the bytes of the index if it is a single file. `None` if it is split.
    pub(crate) fn whole(&self) -> Option<&[u8]> {
        self.shared.is_none().then_some(&self.index)
    }

    /// Calls `take` with each entry, sorted by name and stage.
    ///
    /// # Errors
    /// Returns [`IndexError::Malformed`].
    pub(super) fn each(&self, mut take: impl FnMut(&Entry<'_>)) -> Result<(), IndexError> {
        let Some(shared) = &self.shared else {
            return each_entry(&self.index, self.id_length, take).map(drop);
        };
        for kept in shared.joined(&self.index, self.id_length)? {
            take(&kept.entry());
        }
        Ok(())
    }
}

/// Finds the format in which the entries are valid.
fn format_of(index: &[u8]) -> Result<ObjectFormat, IndexError> {
    let [sha1, sha256] = [ObjectFormat::Sha1, ObjectFormat::Sha256];
    let matches = |format: ObjectFormat| each_entry(index, format.width(), |_| {}).is_ok();
    [sha1, sha256].into_iter().find(|format| matches(*format)).ok_or(IndexError::Malformed)
}

/// The extension of a split index that names the shared index.
struct Link<'a> {
    id: &'a [u8],
    bitmaps: &'a [u8],
}

/// Parses the name of the shared index to which an index refers. `None` if the index is not split.
fn link(index: &[u8], id_length: usize) -> Result<Option<Link<'_>>, IndexError> {
    let Some(extension) = each_entry(index, id_length, |_| {})? else { return Ok(None) };
    let (id, bitmaps) = extension.split_at_checked(id_length).ok_or(IndexError::Malformed)?;
    // If a split index has no shared index, Git writes an id of zeros.
    Ok(id.iter().any(|byte| *byte != 0).then_some(Link { id, bitmaps }))
}

impl Link<'_> {
    fn file_name(&self) -> String {
        let id: String = self.id.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("sharedindex.{id}")
    }

    /// Parses the shared index in these bytes, and the changes to its entries.
    fn shared(&self, bytes: Vec<u8>) -> Result<Shared, IndexError> {
        let mut count = 0;
        let link = each_entry(&bytes, self.id.len(), |_| count += 1)?;
        // The hash at the end of a shared index is also its id.
        if link.is_some() || !bytes.ends_with(self.id) {
            return Err(IndexError::Malformed);
        }
        let mut rest = Rest(self.bitmaps);
        let none = || vec![false; count];
        let (deleted, replaced) = match self.bitmaps.is_empty() {
            true => (none(), none()),
            false => (ewah::bits(&mut rest, count)?, ewah::bits(&mut rest, count)?),
        };
        if !rest.0.is_empty() {
            return Err(IndexError::Malformed);
        }
        Ok(Shared { bytes, deleted, replaced })
    }
}

impl Shared {
    /// Joins the entries of the shared index and of the split index. An entry of the split index replaces the entry of
    /// the shared index for which it was written.
    fn joined(&self, index: &[u8], id_length: usize) -> Result<Vec<Kept>, IndexError> {
        let (mut own, mut shared) = (Vec::new(), Vec::new());
        each_entry(index, id_length, |entry| own.push(Kept::of(entry)))?;
        each_entry(&self.bytes, id_length, |entry| shared.push(Kept::of(entry)))?;
        let mut own = own.into_iter();
        let mut joined = Vec::new();
        for (at, entry) in shared.into_iter().enumerate() {
            let replacement =
                if self.replaced[at] { Some(own.next().ok_or(IndexError::Malformed)?) } else { None };
            if replacement.as_ref().is_some_and(|replacement| !replacement.name.is_empty()) {
                return Err(IndexError::Malformed);
            }
            if !self.deleted[at] {
                let name = entry.name.clone();
                joined.push(replacement.map_or(entry, |replacement| Kept { name, ..replacement }));
            }
        }
        // An added entry overrides a shared entry of the same name and stage.
        let mut added: Vec<Kept> = own.collect();
        if added.iter().any(|entry| entry.name.is_empty()) {
            return Err(IndexError::Malformed);
        }
        added.append(&mut joined);
        added.sort_by(|one, other| (&one.name, one.stage).cmp(&(&other.name, other.stage)));
        added.dedup_by(|second, first| (&second.name, second.stage) == (&first.name, first.stage));
        Ok(added)
    }
}

/// An entry that owns its bytes.
struct Kept {
    name: Vec<u8>,
    status: [u8; STATUS],
    id: Vec<u8>,
    stage: u16,
    is_intent: bool,
    is_directory: bool,
    is_left_out: bool,
    is_assumed: bool,
}

impl Kept {
    fn of(entry: &Entry<'_>) -> Self {
        let Entry { name, id, stage, is_intent, is_directory, is_left_out, is_assumed, .. } = *entry;
        let mut status = [0; STATUS];
        status.copy_from_slice(entry.status);
        let (name, id) = (name.to_owned(), id.to_owned());
        Self { name, status, id, stage, is_intent, is_directory, is_left_out, is_assumed }
    }

    fn entry(&self) -> Entry<'_> {
        let Self { stage, is_intent, is_directory, is_left_out, is_assumed, .. } = *self;
        let (name, status, id) = (&self.name[..], &self.status[..], &self.id[..]);
        Entry { name, status, id, stage, is_intent, is_directory, is_left_out, is_assumed, at: 0 }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;

    fn git(top: &Path, arguments: &[&str]) -> String {
        let mut git = Command::new("git");
        git.current_dir(top).env("GIT_CONFIG_GLOBAL", "/dev/null");
        // With this setting, git does not write a new shared index, however many entries have changed.
        git.args(["-c", "splitIndex.maxPercentChange=100"]).args(arguments);
        let output = git.output().expect("git");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Creates a repository whose split index has added, deleted and replaced entries.
    fn split(format: &str, version: &str) -> tempfile::TempDir {
        let top = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| std::fs::write(top.path().join(name), text).expect("written");
        git(top.path(), &["init", "-q", "--object-format", format, "."]);
        git(top.path(), &["update-index", "--index-version", version]);
        for number in 0..200 {
            write(&format!("file-{number:03}"), "one");
        }
        git(top.path(), &["add", "."]);
        git(top.path(), &["update-index", "--split-index"]);
        for name in ["added", "file-0995", "zz"] {
            write(name, "new");
        }
        write("file-007", "changed");
        write("file-150", "changed too");
        git(top.path(), &["rm", "-q", "--cached", "file-000", "file-120", "file-121"]);
        git(top.path(), &["add", "added", "file-0995", "zz", "file-007", "file-150"]);
        git(top.path(), &["update-index", "--assume-unchanged", "file-033"]);
        top
    }

    fn directory(top: &Path) -> Directory {
        Directory::open(&top.join(".git")).expect("opened")
    }

    /// The output of git is the expected value.
    #[test]
    fn joins_a_split_index_as_git_does() {
        for (format, version) in [("sha1", "2"), ("sha1", "4"), ("sha256", "2")] {
            let top = split(format, version);
            let (files, _) = IndexFiles::read(&directory(top.path()), None).expect("read").expect("there");
            assert!(files.whole().is_none(), "it is split");
            let (mut entries, mut assumed) = (Vec::new(), Vec::new());
            let each = files.each(|entry| {
                let id: String = entry.id.iter().map(|byte| format!("{byte:02x}")).collect();
                let name = String::from_utf8_lossy(entry.name).into_owned();
                entries.push(format!("100644 {id} {}\t{name}\n", entry.stage));
                assumed.extend(entry.is_assumed.then_some(name));
            });
            each.expect("well-formed");
            assert_eq!(entries.concat(), git(top.path(), &["ls-files", "-s"]), "{format}, {version}");
            assert_eq!(assumed, ["file-033"]);
        }
    }

    #[test]
    fn a_split_index_needs_its_shared_one() {
        let top = split("sha1", "2");
        let shared = std::fs::read_dir(top.path().join(".git")).expect("listed");
        let is_shared = |name: &std::ffi::OsString| name.to_string_lossy().starts_with("sharedindex.");
        let names: Vec<_> =
            shared.map(|entry| entry.expect("an entry").file_name()).filter(is_shared).collect();
        let git_directory = directory(top.path());
        let read = || IndexFiles::read(&git_directory, Some(ObjectFormat::Sha1));
        for name in &names {
            let path = top.path().join(".git").join(name);
            let whole = std::fs::read(&path).expect("read");
            std::fs::write(&path, [&whole[..whole.len() - 1], &[whole[whole.len() - 1] ^ 1]].concat())
                .expect("written");
        }
        assert!(matches!(read(), Err(IndexError::Malformed)), "it has another id");
        for name in &names {
            std::fs::remove_file(top.path().join(".git").join(name)).expect("removed");
        }
        let error = read().expect_err("it is missing").to_string();
        assert!(error.contains("--no-split-index") && error.contains("sharedindex."), "{error}");
    }

    #[test]
    fn no_bytes_of_a_split_index_make_it_panic() {
        let top = split("sha1", "2");
        let git_directory = directory(top.path());
        let (files, _) = IndexFiles::read(&git_directory, None).expect("read").expect("there");
        let shared = files.shared.expect("split").bytes;
        let begin = files.index.windows(4).position(|window| window == b"link").expect("an extension");
        for at in begin..files.index.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut changed = files.index.clone();
                changed[at] = value;
                if let Ok(files) = IndexFiles::of(changed, Some(shared.clone()), ObjectFormat::Sha1) {
                    let _ = files.each(|_| {}).is_ok();
                }
            }
        }
    }
}
