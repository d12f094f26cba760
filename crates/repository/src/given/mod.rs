//! The record of the files that the copy of a working tree, or of another directory, received at the start.
//!
//! The agent's changes are the difference between this record and the files of its workspace. A commit cannot replace
//! the record: a copy lacks some tracked files, it has files that are in no commit, and the bytes of a file can differ
//! from those of its blob.
//!
//! ```text
//! record/files             for each file: its mode, the id of its blob, its hash, the place of its content, its path
//!                          for each nested repository: its path
//! record/rules             the ignore rules, and the files that git tracks although these rules ignore them
//! record/packed, shared/   the bytes of files that cannot be derived from a blob ([`contents`])
//! ```
//! If git would see that a file is unchanged, the record needs no content for it, because its bytes can be derived from
//! the blob and its attributes. Only the other files are read while they are copied. If the content of a file exceeds
//! the bounds, only its hash is recorded. The hash shows whether the user's file still has the same content as at the
//! start. If so, the user's file can supply the content.
//!
//! If the bottle works in the working tree itself, each difference from the last commit is the agent's work. The record
//! then contains only the files that git does not compare: files whose changes the user hides from git, and files that
//! a filter produced.

mod contents;
mod files;
mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Take};
use std::path::{Path, PathBuf};

use crate::conversion::Pointer;
use crate::directory::Directory;
use crate::id::ObjectId;

pub use contents::Place;
pub use files::{GivenFiles, Use};
pub use rules::{GivenRules, IgnoredPaths};

/// The maximum size of the list of files in bytes.
const MAX_LIST: u64 = 256 << 20;

/// The maximum size in bytes of a user's file that is read instead of the record to get its content.
const MAX_OWN: u64 = 64 << 20;

/// The name of the list of files.
const FILES: &str = "files";

/// The mode that marks a nested repository in the list.
const NESTED: &str = "040000";

/// The mode that marks a file that is missing although it is in the index.
const MISSING: &str = "000000";

/// The end of the first line of a partial record.
const PARTIAL: &str = " partial";

/// The format version of the list.
const VERSION: &str = "2";

/// The kind of directory from which the given files come.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Origin {
    /// A directory that was not in a repository.
    #[default]
    Directory,
    /// A directory of a repository.
    Repository {
        /// The commit of `HEAD`. `None` if `HEAD` had no commit.
        head: Option<ObjectId>,
    },
}

/// A file that a copy received at the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivenFile {
    /// The mode of the file, as git prints it.
    pub mode: String,
    /// The id of the file's blob. `None` if the file was changed or is not in the index.
    pub blob: Option<ObjectId>,
    /// The hash and the size of the file's content. `None` if the content was not read.
    pub hash: Option<Pointer>,
    /// The place of the file's content in the record. `None` if the record does not have the content.
    pub content: Option<Place>,
}

/// The files that a copy received at the start, by path.
#[derive(Debug, Default)]
pub struct Given {
    directory: PathBuf,
    /// The source of the files.
    pub origin: Origin,
    /// The files.
    pub files: BTreeMap<Vec<u8>, GivenFile>,
    /// The directories that were repositories of their own.
    pub nested: BTreeSet<Vec<u8>>,
    /// The files that were missing, but that the user's git does not report as deleted.
    pub missing: BTreeSet<Vec<u8>>,
    /// Whether the record contains only files that git does not compare. All other files were equal to the last commit
    /// at the start.
    pub is_partial: bool,
}

impl Given {
    /// Reads a record. `None` if there is no record, if it is not complete, or if it has another format version.
    ///
    /// # Errors
    /// Fails if the record cannot be read or is damaged.
    pub fn read(directory: &Path) -> io::Result<Option<Self>> {
        let Some(file) = open_list(directory)? else { return Ok(None) };
        let mut list = Vec::new();
        file.take(MAX_LIST).read_to_end(&mut list)?;
        if is_of_other_version(&list) {
            return Ok(None);
        }
        Self::parse(&list, directory).map(Some).ok_or_else(damaged)
    }

    /// Reads only the source of the files from a record, and not its list of files. `None` if there is no complete
    /// record.
    ///
    /// # Errors
    /// Fails if the record cannot be read.
    pub fn origin(directory: &Path) -> io::Result<Option<Origin>> {
        let Some(file) = open_list(directory)? else { return Ok(None) };
        let mut line = Vec::new();
        file.take(100).read_to_end(&mut line)?;
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
        Ok(std::str::from_utf8(line).ok().and_then(parse_header).map(|(origin, _)| origin))
    }

    fn parse(list: &[u8], directory: &Path) -> Option<Self> {
        let line = list.iter().position(|byte| *byte == b'\n')?;
        let (origin, is_partial) = std::str::from_utf8(&list[..line]).ok().and_then(parse_header)?;
        let (files, nested, missing) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        let mut given = Self { directory: directory.to_owned(), origin, files, nested, missing, is_partial };
        let list = list[line + 1..].strip_suffix(b"\0").unwrap_or_default();
        for entry in list.split(|byte| *byte == 0).filter(|entry| !entry.is_empty()) {
            let tab = entry.iter().position(|byte| *byte == b'\t')?;
            let file = std::str::from_utf8(&entry[..tab]).ok().and_then(GivenFile::parse)?;
            let path = entry[tab + 1..].to_owned();
            match file.mode.as_str() {
                NESTED => drop(given.nested.insert(path)),
                MISSING => drop(given.missing.insert(path)),
                _ => drop(given.files.insert(path, file)),
            }
        }
        Some(given)
    }

    /// Returns the commit of `HEAD` at the start. `None` if `HEAD` had no commit.
    #[must_use]
    pub fn head(&self) -> Option<&ObjectId> {
        match &self.origin {
            Origin::Directory => None,
            Origin::Repository { head } => head.as_ref(),
        }
    }

    /// Opens a content in the record.
    ///
    /// # Errors
    /// Fails if the content cannot be read.
    pub fn content(&self, place: Place) -> io::Result<Take<File>> {
        place.open(&self.directory)
    }

    /// Returns the hash and the size of a file's content at the start. `None` if the record has neither the hash nor
    /// the content.
    ///
    /// # Errors
    /// Fails if a content of the record cannot be read.
    pub fn hash(&self, file: &GivenFile) -> io::Result<Option<Pointer>> {
        match (&file.hash, file.content) {
            (Some(hash), _) => Ok(Some(hash.clone())),
            (None, Some(place)) => Pointer::of(&mut self.content(place)?).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// Returns the content of a file at the start. The content comes from the record, or from the user's file in
    /// `directory` if that file still has the same hash. `None` if the content is unknown, or if it is larger than 64
    /// MiB and not in the record.
    ///
    /// # Errors
    /// Fails if a content of the record cannot be read.
    pub fn content_of(
        &self,
        path: &Path,
        file: &GivenFile,
        directory: Option<&Directory>,
    ) -> io::Result<Option<Vec<u8>>> {
        if let Some(place) = file.content {
            let mut content = Vec::new();
            self.content(place)?.read_to_end(&mut content)?;
            return Ok(Some(content));
        }
        let Some(hash) = file.hash.as_ref().filter(|hash| hash.size <= MAX_OWN) else { return Ok(None) };
        // If the user's file cannot be read, its content is treated as unknown.
        match directory.and_then(|directory| directory.read(path, MAX_OWN).ok().flatten()) {
            Some(own) if Pointer::of(&mut &own[..])? == *hash => Ok(Some(own)),
            _ => Ok(None),
        }
    }

    /// Copies a complete record for a bottle that is forked from this bottle.
    ///
    /// # Errors
    /// Fails if the record cannot be read or written.
    pub fn copy(from: &Path, to: &Path) -> io::Result<()> {
        let Some(list) = open_list(from)? else { return Ok(()) };
        if Self::origin(from)?.is_none() {
            return Ok(());
        }
        contents::copy(from, to)?;
        rules::copy(from, to)?;
        io::copy(&mut list.take(MAX_LIST), &mut contents::create(&to.join(FILES))?).map(drop)
    }
}

impl GivenFile {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let mode = words.next()?.to_owned();
        let [blob, hash, content] =
            [words.next()?, words.next()?, words.next()?].map(|word| (word != "-").then_some(word));
        let blob = blob.map(|blob| ObjectId::parse(blob).ok_or(())).transpose().ok()?;
        let hash = hash.map(|hash| parse_hash(hash).ok_or(())).transpose().ok()?;
        let content = content.map(|content| Place::parse(content).ok_or(())).transpose().ok()?;
        words.next().is_none().then_some(Self { mode, blob, hash, content })
    }
}

impl fmt::Display for GivenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |word: Option<String>| word.unwrap_or_else(|| "-".to_owned());
        let Self { mode, blob, hash, content } = self;
        let blob = word(blob.as_ref().map(ObjectId::to_string));
        let hash = word(hash.as_ref().map(|Pointer { id, size }| format!("{id}:{size}")));
        write!(f, "{mode} {blob} {hash} {}", word(content.map(|place| place.to_string())))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Directory => "directory",
            Self::Repository { head } => head.as_ref().map_or("-", ObjectId::as_str),
        })
    }
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the record of the given files is damaged")
}

fn open_list(record: &Path) -> io::Result<Option<File>> {
    match File::open(record.join(FILES)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        file => file.map(Some),
    }
}

fn is_of_other_version(list: &[u8]) -> bool {
    let version = list.split(|byte| *byte == b' ').next().unwrap_or_default();
    version != VERSION.as_bytes() && !version.is_empty() && version.iter().all(u8::is_ascii_digit)
}

/// Parses the first line of the list: the source of the files, and whether the record is partial.
fn parse_header(line: &str) -> Option<(Origin, bool)> {
    let line = line.strip_prefix(VERSION)?.strip_prefix(' ')?;
    let (line, is_partial) = line.strip_suffix(PARTIAL).map_or((line, false), |line| (line, true));
    let origin = match line {
        "directory" => Origin::Directory,
        "-" => Origin::Repository { head: None },
        head => Origin::Repository { head: Some(ObjectId::parse(head)?) },
    };
    Some((origin, is_partial))
}

fn parse_hash(text: &str) -> Option<Pointer> {
    let (id, size) = text.split_once(':')?;
    let is_id = id.len() == 64 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    is_id.then_some(Pointer { id: id.to_owned(), size: size.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::repository::Repository;
    use crate::walk::Walk;

    pub(super) fn git(top: &Path, arguments: &[&str]) -> String {
        let mut git = Command::new("git");
        git.current_dir(top).env("GIT_CONFIG_GLOBAL", "/dev/null");
        git.args(["-c", "user.name=a", "-c", "user.email=a@example.com"]).args(arguments);
        let output = git.output().expect("git");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    #[test]
    fn records_only_what_does_not_follow_from_a_blob() {
        let scene = tempfile::tempdir().expect("a directory");
        let top = scene.path().join("top");
        let write = |name: &str, text: &str| {
            let path = top.join(name);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            std::fs::write(path, text).expect("written");
        };
        write(".gitattributes", "*.secret filter=crypt\n*.lfs filter=lfs\n");
        for name in ["same", "changed", "sub/a.secret", "sub/a.lfs", "gone"] {
            write(name, name);
        }
        git(&top, &["init", "-q", "."]);
        std::os::unix::fs::symlink("same", top.join("link")).expect("link");
        git(&top, &["add", "-A"]);
        git(&top, &["commit", "-qm", "one"]);
        // If the index is as old as a file, git cannot see whether the file changed.
        std::thread::sleep(std::time::Duration::from_millis(30));
        git(&top, &["update-index", "--force-write-index"]);
        write("changed", "changed since");
        write("new", "new");
        std::fs::remove_file(top.join("gone")).expect("removed");
        let located = crate::locate::at(&top).expect("read").expect("found");
        let repository = Repository::open(located).expect("opened");
        let record = scene.path().join("record");
        let mut given = GivenFiles::begin(&repository, Path::new(""), true, None, &record).expect("begun");
        assert!(Given::read(&record).expect("read").is_none(), "it is not complete");
        for entry in Walk::content(Directory::open(&top).expect("opened")) {
            given.add(&entry.expect("walked")).expect("added");
        }
        given.end().expect("written");
        let given = Given::read(&record).expect("read").expect("complete");
        assert_eq!(given.head().map(ObjectId::as_str), Some(git(&top, &["rev-parse", "HEAD"]).as_str()));
        let content = |path: &str| {
            let place = given.files[path.as_bytes()].content?;
            let mut text = String::new();
            given.content(place).expect("opened").read_to_string(&mut text).expect("read");
            Some(text)
        };
        for (path, has_blob, kept) in [
            (".gitattributes", true, None),
            ("same", true, None),
            ("link", true, None),
            ("sub/a.lfs", true, None),
            ("sub/a.secret", true, Some("sub/a.secret")),
            ("changed", false, Some("changed since")),
            ("new", false, Some("new")),
        ] {
            let file = &given.files[path.as_bytes()];
            assert_eq!((file.blob.is_some(), content(path).as_deref()), (has_blob, kept), "{path}");
        }
        assert_eq!((given.files.len(), given.files[&b"link"[..]].mode.as_str()), (7, "120000"));
        let copy = scene.path().join("copy");
        Given::copy(&record, &copy).expect("copied");
        assert_eq!(Given::read(&copy).expect("read").expect("complete").files, given.files);
    }

    /// Creates a repository whose index is younger than its files.
    fn repository(top: &Path, files: &[(&str, &str)]) -> Repository {
        for (name, text) in files {
            let path = top.join(name);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            std::fs::write(path, text).expect("written");
        }
        git(top, &["init", "-q", "."]);
        git(top, &["add", "-A"]);
        git(top, &["commit", "-qm", "one"]);
        std::thread::sleep(std::time::Duration::from_millis(30));
        git(top, &["update-index", "--force-write-index"]);
        Repository::open(crate::locate::at(top).expect("read").expect("found")).expect("opened")
    }

    #[test]
    fn files_of_a_nested_repository_are_not_recorded_unless_the_outer_one_has_them() {
        let scene = tempfile::tempdir().expect("a directory");
        let top = scene.path().join("top");
        let repository =
            repository(&top, &[("known/file", "x"), ("vendor/beside", "x"), ("empty/file", "x")]);
        for name in ["known", "vendor/inner"] {
            std::fs::create_dir_all(top.join(name)).expect("made");
            git(&top.join(name), &["init", "-q", "."]);
            std::fs::write(top.join(name).join("new"), "x").expect("written");
        }
        // The files beside a directory `.git` that git would not use are recorded.
        for name in ["empty", "other"] {
            std::fs::create_dir_all(top.join(name).join(".git")).expect("made");
            std::fs::write(top.join(name).join("new"), "x").expect("written");
        }
        let record = scene.path().join("record");
        let mut given = GivenFiles::begin(&repository, Path::new(""), true, None, &record).expect("begun");
        for entry in Walk::content(Directory::open(&top).expect("opened")) {
            given.add(&entry.expect("walked")).expect("added");
        }
        given.end().expect("written");
        let given = Given::read(&record).expect("read").expect("complete");
        assert_eq!(given.nested, [b"vendor/inner".to_vec()].into());
        let files: Vec<_> = given.files.keys().map(|path| String::from_utf8_lossy(path)).collect();
        assert_eq!(
            files,
            ["empty/file", "empty/new", "known/file", "known/new", "other/new", "vendor/beside"]
        );
    }

    /// A partial record contains only the files that git does not compare: hidden files, whether missing or not, and
    /// unchanged files that a filter produced.
    #[test]
    fn a_partial_record_has_what_git_does_not_compare() {
        let scene = tempfile::tempdir().expect("a directory");
        let top = scene.path().join("top");
        let files = [
            ("sub/.gitattributes", "*.secret filter=crypt\n"),
            ("sub/a.secret", "clear"),
            ("sub/changed.secret", "clear"),
            ("plain", "x"),
            ("assumed", "x"),
            ("skipped", "x"),
            ("missing", "x"),
        ];
        let repository = repository(&top, &files);
        git(&top, &["update-index", "--assume-unchanged", "assumed"]);
        git(&top, &["update-index", "--skip-worktree", "skipped", "missing"]);
        for name in ["assumed", "skipped", "plain", "sub/changed.secret"] {
            std::fs::write(top.join(name), "changed").expect("written");
        }
        std::fs::remove_file(top.join("missing")).expect("removed");
        let record = scene.path().join("record");
        GivenFiles::record_not_compared(&repository, &record).expect("recorded");
        let given = Given::read(&record).expect("read").expect("complete");
        assert!(given.is_partial && given.head().is_some());
        assert_eq!(given.missing, [b"missing".to_vec()].into());
        let content = |path: &[u8]| {
            let mut text = String::new();
            let number = given.files[path].content.expect("a content");
            given.content(number).expect("opened").read_to_string(&mut text).expect("read");
            (String::from_utf8_lossy(path).into_owned(), given.files[path].blob.is_some(), text)
        };
        let found: Vec<_> = given.files.keys().map(|path| content(path)).collect();
        let expected = [("assumed", "changed"), ("skipped", "changed"), ("sub/a.secret", "clear")];
        assert_eq!(found, expected.map(|(path, text)| (path.to_owned(), true, text.to_owned())));
    }

    /// Records a directory that is not in a repository.
    fn record(top: &Path, record: &Path, used: Use) -> Given {
        let mut given = GivenFiles::begin_without_repository(record, used).expect("begun");
        for entry in Walk::content(Directory::open(top).expect("opened")) {
            given.add(&entry.expect("walked")).expect("added");
        }
        given.end().expect("written");
        Given::read(record).expect("read").expect("complete")
    }

    #[test]
    fn a_file_beyond_the_bounds_is_its_own_content_until_it_changes() {
        let scene = tempfile::tempdir().expect("a directory");
        let (top, place) = (scene.path().join("top"), scene.path().join("record"));
        std::fs::create_dir(&top).expect("made");
        let large = vec![b'x'; (1 << 20) + 1];
        std::fs::write(top.join("large"), &large).expect("written");
        std::fs::write(top.join("small"), "small").expect("written");
        std::os::unix::fs::symlink("small", top.join("link")).expect("link");
        let changed = record(&top, &scene.path().join("changed"), Use::Changed);
        assert!(changed.files[&b"large"[..]].content.is_some(), "the agent changes the user's file");
        let given = record(&top, &place, Use::Copied);
        assert_eq!(given.origin, Origin::Directory);
        assert_eq!(Given::origin(&place).expect("read"), Some(Origin::Directory));
        let directory = Directory::open(&top).expect("opened");
        let content = |path: &str| {
            given.content_of(Path::new(path), &given.files[path.as_bytes()], Some(&directory)).expect("read")
        };
        let hash = |path: &str| given.hash(&given.files[path.as_bytes()]).expect("read");
        assert_eq!(hash("large"), Some(Pointer::of(&mut &large[..]).expect("hashed")));
        assert_eq!(hash("small"), Some(Pointer::of(&mut &b"small"[..]).expect("hashed")));
        assert_eq!(content("large").as_deref(), Some(&large[..]));
        for path in ["large", "small"] {
            std::fs::write(top.join(path), "changed").expect("written");
        }
        assert_eq!(content("small").as_deref(), Some(&b"small"[..]));
        assert_eq!(content("link").as_deref(), Some(&b"small"[..]));
        // If the file system can share blocks, the record also has the large content.
        let shares = matches!(given.files[&b"large"[..]].content, Some(Place::Shared(_)));
        assert_eq!(content("large").is_some(), shares);
        std::fs::remove_file(top.join("large")).expect("removed");
        std::os::unix::fs::symlink("small", top.join("large")).expect("link");
        assert_eq!(content("large").is_some(), shares, "no link is followed");
    }

    #[test]
    fn only_the_user_can_read_a_record() {
        use std::os::unix::fs::PermissionsExt;
        let scene = tempfile::tempdir().expect("a directory");
        let (top, place) = (scene.path().join("top"), scene.path().join("record"));
        std::fs::create_dir(&top).expect("made");
        std::fs::write(top.join("file"), "x").expect("written");
        let _ = record(&top, &place, Use::Copied);
        let copy = scene.path().join("copy");
        Given::copy(&place, &copy).expect("copied");
        for record in [&place, &copy] {
            for (name, expected) in [("", 0o700), ("shared", 0o700), ("packed", 0o600), ("files", 0o600)] {
                let mode = record.join(name).metadata().expect("there").permissions().mode() & 0o777;
                assert_eq!(mode, expected, "{}/{name}", record.display());
            }
        }
    }

    #[test]
    fn a_file_has_one_form_in_the_list() {
        let hash = Pointer { id: "a".repeat(64), size: 5 };
        let blob = ObjectId::parse(&"b".repeat(40));
        for (blob, hash, content, text) in [
            (None, None, None, "100644 - - -".to_owned()),
            (blob.clone(), None, None, format!("100644 {} - -", "b".repeat(40))),
            (
                None,
                Some(hash),
                Some(Place::Packed { offset: 7, size: 5 }),
                format!("100644 - {}:5 7+5", "a".repeat(64)),
            ),
            (None, None, Some(Place::Shared(3)), "100644 - - =3".to_owned()),
        ] {
            let file = GivenFile { mode: "100644".to_owned(), blob, hash, content };
            assert_eq!(file.to_string(), text);
            assert_eq!(GivenFile::parse(&text), Some(file));
        }
    }

    #[test]
    fn refuses_a_damaged_record() {
        for damaged in [
            "",
            "2 x\n",
            "2 -",
            "2 -\n100644 - -\0",
            "2 -\n100644 - - -\0",
            "2 -\n100644 x - -\tpath\0",
            "2 -\n100644 - x:1 -\tpath\0",
            "2 -\n100644 - - 1\tpath\0",
            "2 -\n100644 - - - -\tpath\0",
        ] {
            assert!(Given::parse(damaged.as_bytes(), Path::new("")).is_none(), "{damaged:?}");
        }
        assert!(Given::parse(b"2 -\n", Path::new("")).is_some_and(|given| given.files.is_empty()));
        let scene = tempfile::tempdir().expect("a directory");
        for (list, is_damaged) in [("1 -\n100644 - 0\tpath\0", false), ("2 x\n", true)] {
            std::fs::write(scene.path().join(FILES), list).expect("written");
            let read = Given::read(scene.path());
            assert!(
                if is_damaged { read.is_err() } else { read.is_ok_and(|given| given.is_none()) },
                "{list:?}"
            );
        }
    }
}
