//! Reads a repository that an agent or a project may have written as data.

use std::io;
use std::path::{Path, PathBuf};

use bottle_pack_check::ObjectFormat;
use rustix::fs::Stat;

use crate::attributes::MAX_ATTRIBUTES;
use crate::config::{Config, is_true};
use crate::directory::{Directory, ReadError};
use crate::id::ObjectId;
use crate::index::{Checked, IndexError, IndexFiles, LeftOut};
use crate::locate::{Kind, Located, MAX_CONFIG, OBJECTS};
use crate::objects::{Objects, ObjectsError, open_real};
use crate::pack::NewPack;
use crate::reflog::LogEntry;
use crate::refs::{Head, RefError, Refs, Storage};
use crate::store::StoreKind;

/// The maximum length in bytes of the list of shallow commits: about 100,000 commits.
const MAX_SHALLOW: u64 = 8 << 20;

/// The maximum length of `info/exclude` in bytes. If the file is longer, its rules are not applied.
const MAX_EXCLUDE: u64 = 64 << 10;

/// Format extensions that do not affect the data that this module reads (gitrepository-layout(5), git-config(1)).
const EXTENSIONS: [&str; 5] = ["noop", "noop-v1", "preciousobjects", "relativeworktrees", "worktreeconfig"];

/// A repository, and one of its working trees.
#[derive(Debug)]
pub struct Repository {
    located: Located,
    config: Config,
    kind: StoreKind,
    storage: Storage,
}

/// Why a repository was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum RepositoryError {
    /// A file could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A configuration file has invalid syntax.
    #[error("{} is malformed", .0.display())]
    Configuration(PathBuf),
    /// The format of the repository is not supported.
    #[error("{} has a format that is not supported: {what}", path.display())]
    Unsupported {
        /// The path of the git directory.
        path: PathBuf,
        /// The setting that is not supported.
        what: String,
    },
    /// A reference could not be read or written.
    #[error(transparent)]
    Ref(#[from] RefError),
    /// The objects of the repository cannot be read.
    #[error(transparent)]
    Objects(#[from] ObjectsError),
    /// The index of the repository could not be read.
    #[error("{}: {error}", path.display())]
    Index {
        /// The path of the git directory.
        path: PathBuf,
        /// The error of the index.
        error: IndexError,
    },
    /// A pack could not be written.
    #[error("cannot write in {}: {error}", path.display())]
    Write {
        /// The path of the directory.
        path: PathBuf,
        /// The I/O error.
        error: io::Error,
    },
}

impl Repository {
    /// Reads the format of a repository and opens the repository.
    ///
    /// # Errors
    /// Returns [`RepositoryError::Read`], [`RepositoryError::Configuration`] or [`RepositoryError::Unsupported`].
    pub fn open(located: Located) -> Result<Self, RepositoryError> {
        let mut config = read(&located.common, "config")?;
        let (kind, storage) = kind(&config, located.common.path())?;
        if flag(&config, "extensions", "worktreeconfig") {
            let own = read(&located.git, "config.worktree")?;
            config = joined(config, &own);
        }
        Ok(Self { located, config, kind, storage })
    }

    /// Returns the location of the repository.
    #[must_use]
    pub fn located(&self) -> &Located {
        &self.located
    }

    /// Returns the kind that a [`crate::store::Store`] needs to have for the objects of this repository.
    #[must_use]
    pub fn kind(&self) -> StoreKind {
        self.kind
    }

    /// Returns the references of the repository.
    #[must_use]
    pub fn refs(&self) -> Refs<'_> {
        Refs { git: &self.located.git, common: &self.located.common, storage: self.storage }
    }

    /// Returns the commit that `HEAD` points to. `None` if there is no commit yet.
    ///
    /// # Errors
    /// Returns [`RepositoryError::Ref`].
    pub fn head(&self) -> Result<Option<ObjectId>, RepositoryError> {
        Ok(match self.refs().head()? {
            Head::Detached(id) => Some(id),
            Head::Reference(name) => self.refs().find(&name)?,
        })
    }

    /// Opens the objects of the repository, and the objects that it borrows from other directories. These directories
    /// must be among `lenders`.
    ///
    /// # Errors
    /// Returns [`RepositoryError::Objects`].
    pub fn objects(&self, lenders: &[PathBuf]) -> Result<Objects, RepositoryError> {
        Ok(Objects::open(&self.directory_of_objects(lenders)?, lenders)?)
    }

    /// Returns the real paths of the directories from which the repository borrows objects. If `objects` is a link, the
    /// first path is the target of the link.
    ///
    /// # Errors
    /// Returns [`RepositoryError::Objects`].
    pub fn lenders(&self) -> Result<Vec<PathBuf>, RepositoryError> {
        let target = self.target_of_objects()?;
        let mut lenders = Vec::from_iter(target);
        let objects = self.directory_of_objects(&lenders)?;
        lenders.extend(Objects::lenders(&objects)?);
        Ok(lenders)
    }

    /// Returns the real path of the target of `objects`. `None` if `objects` is not a link.
    fn target_of_objects(&self) -> Result<Option<PathBuf>, RepositoryError> {
        if !self.located.has_linked_objects() {
            return Ok(None);
        }
        let path = self.located.common.path().join(OBJECTS);
        let target = path.canonicalize().map_err(|error| ReadError::System { path, error })?;
        Ok(Some(target))
    }

    fn directory_of_objects(&self, lenders: &[PathBuf]) -> Result<Directory, RepositoryError> {
        let path = || self.located.common.path().join(OBJECTS);
        let found = match self.target_of_objects()?.filter(|target| lenders.contains(target)) {
            Some(target) => open_real(&target).map(Some),
            None => self.located.objects(),
        };
        let found = found.and_then(|found| found.ok_or_else(|| io::ErrorKind::NotFound.into()));
        Ok(found.map_err(|error| ReadError::System { path: path(), error })?)
    }

    /// Returns the commits whose parents the repository does not have, because it is a shallow clone.
    ///
    /// # Errors
    /// Returns [`RepositoryError::Read`], or [`RepositoryError::Configuration`] if the list is malformed.
    pub fn shallow(&self) -> Result<Vec<ObjectId>, RepositoryError> {
        let text = self.located.common.read(Path::new("shallow"), MAX_SHALLOW)?.unwrap_or_default();
        let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let malformed = || RepositoryError::Configuration(self.located.common.path().join("shallow"));
        lines.map(|line| ObjectId::from_bytes(line).ok_or_else(malformed)).collect()
    }

    /// Returns the ignore rules of `info/exclude`. `None` if the file does not exist, is not a regular file, or has
    /// more than 64 KiB.
    #[must_use]
    pub fn exclude(&self) -> Option<String> {
        let text = self.located.common.read(Path::new("info/exclude"), MAX_EXCLUDE).ok().flatten()?;
        String::from_utf8(text).ok()
    }

    /// Returns the paths that a sparse checkout leaves out of the working tree.
    ///
    /// # Errors
    /// Returns [`RepositoryError::Index`].
    pub fn left_out_by_sparse_checkout(&self) -> Result<LeftOut, RepositoryError> {
        if !flag(&self.config, "core", "sparsecheckout") {
            return Ok(LeftOut::default());
        }
        let failed = |error| RepositoryError::Index { path: self.located.git.path().to_owned(), error };
        match self.index().map_err(failed)? {
            Some((index, _)) => LeftOut::of(&index).map_err(failed),
            None => Ok(LeftOut::default()),
        }
    }

    fn index(&self) -> Result<Option<(IndexFiles, Stat)>, IndexError> {
        IndexFiles::read(&self.located.git, Some(self.kind.format))
    }

    /// Returns the files in the index. `None` if there is no index, or if it cannot be read.
    #[must_use]
    pub fn checked(&self) -> Option<Checked> {
        let (index, written) = self.index().ok()??;
        Checked::of(&index, &written).ok()
    }

    /// Whether the repository has a working tree at its location. A bare repository with linked worktrees has none
    /// there.
    #[must_use]
    pub fn has_working_tree(&self) -> bool {
        match self.located.kind {
            Kind::Bare => false,
            Kind::Worktree => true,
            _ => !flag(&self.config, "core", "bare"),
        }
    }

    /// Returns the configuration of the repository.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the attributes of `info/attributes`. `None` if the file does not exist, is not a regular file, or is too
    /// large.
    #[must_use]
    pub fn info_attributes(&self) -> Option<Vec<u8>> {
        self.located.common.read(Path::new("info/attributes"), MAX_ATTRIBUTES as u64).ok()?
    }

    /// Returns the value of a variable in a section without a subsection, as text. `section` and `name` are in lower
    /// case.
    #[must_use]
    pub fn setting(&self, section: &str, name: &str) -> Option<String> {
        self.config.last(section, name).map(|value| String::from_utf8_lossy(value).into_owned())
    }

    /// Adds a pack to the objects of the repository. If `objects` is a link, its target must be among `lenders`.
    ///
    /// # Errors
    /// Returns [`RepositoryError::Write`].
    pub fn add_pack(&self, pack: &mut NewPack, lenders: &[PathBuf]) -> Result<(), RepositoryError> {
        let objects = self.directory_of_objects(lenders)?;
        let path = || objects.path().join("pack");
        pack.add_to(&objects).map_err(|error| RepositoryError::Write { path: path(), error })
    }

    /// Points the branch with this full name at a commit. The branch's reflog gets an entry if git would write one.
    ///
    /// # Errors
    /// Returns [`RepositoryError::Ref`]. The branch then has its old value.
    pub fn write_branch(
        &self,
        name: &str,
        before: Option<&ObjectId>,
        after: &ObjectId,
        log: LogEntry<'_>,
    ) -> Result<(), RepositoryError> {
        let begins_log = match self.setting("core", "logallrefupdates").map(|value| value.to_lowercase()) {
            Some(value) if value == "always" => true,
            Some(_) => flag(&self.config, "core", "logallrefupdates"),
            None => !flag(&self.config, "core", "bare"),
        };
        Ok(self.refs().write(name, before, after, log, begins_log)?)
    }
}

fn read(directory: &Directory, name: &str) -> Result<Config, RepositoryError> {
    let Some(text) = directory.read(Path::new(name), MAX_CONFIG)? else { return Ok(Config::default()) };
    Config::parse(&text).ok_or_else(|| RepositoryError::Configuration(directory.path().join(name)))
}

/// Joins the entries of two configuration files. For each name, the last entry applies.
fn joined(one: Config, other: &Config) -> Config {
    Config::of(one.entries().iter().chain(other.entries()).cloned().collect())
}

/// Whether a boolean configuration variable is true.
fn flag(config: &Config, section: &str, name: &str) -> bool {
    let is_it = |entry: &&crate::config::Entry| {
        entry.subsection.is_none() && *entry.section == *section.as_bytes() && entry.name == name.as_bytes()
    };
    config.entries().iter().rfind(is_it).is_some_and(|entry| is_true(entry.value.as_deref()))
}

/// Determines from the configuration the kind of a repository, and how it stores its references.
fn kind(config: &Config, path: &Path) -> Result<(StoreKind, Storage), RepositoryError> {
    let unsupported = |what: String| RepositoryError::Unsupported { path: path.to_owned(), what };
    let version = config.last("core", "repositoryformatversion").unwrap_or(b"0");
    if !matches!(version, b"0" | b"1") {
        let version = String::from_utf8_lossy(version);
        return Err(unsupported(format!("core.repositoryFormatVersion = {version}")));
    }
    let (mut kind, mut storage) = (StoreKind::default(), Storage::Files);
    for entry in config.entries() {
        let value = String::from_utf8_lossy(entry.value.as_deref().unwrap_or_default()).into_owned();
        let is_promisor = *entry.section == *b"remote" && entry.name == b"promisor";
        kind.partial |= is_promisor && is_true(entry.value.as_deref());
        if *entry.section != *b"extensions" || entry.subsection.is_some() {
            continue;
        }
        let name = String::from_utf8_lossy(&entry.name).into_owned();
        match (name.as_str(), value.to_lowercase().as_str()) {
            ("partialclone", _) => kind.partial = true,
            ("objectformat", "sha1") => kind.format = ObjectFormat::Sha1,
            ("objectformat", "sha256") => kind.format = ObjectFormat::Sha256,
            ("refstorage", "files") => storage = Storage::Files,
            ("refstorage", "reftable") if version == b"1" => storage = Storage::Reftable,
            // In version 0 of the repository format, unknown extensions have no effect.
            (name, _) if EXTENSIONS.contains(&name) || version == b"0" => {}
            _ => return Err(unsupported(format!("extensions.{name} = {value}"))),
        }
    }
    Ok((kind, storage))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind_of(text: &str) -> Result<StoreKind, String> {
        let config = Config::parse(text.as_bytes()).expect("parsed");
        let kind = kind(&config, Path::new("/r/.git")).map_err(|error| error.to_string());
        kind.map(|(kind, _)| kind)
    }

    #[test]
    fn refuses_formats_that_are_not_known() {
        let [sha1, sha256] = [ObjectFormat::Sha1, ObjectFormat::Sha256];
        for (text, format, partial) in [
            ("", sha1, false),
            ("[core]\nrepositoryformatversion = 1\n[extensions]\nobjectFormat = SHA256\n", sha256, false),
            (
                "[core]\nrepositoryformatversion = 1\n[extensions]\nworktreeConfig\nrefStorage = files\n",
                sha1,
                false,
            ),
            ("[extensions]\npartialClone = origin\n", sha1, true),
            ("[remote \"a\"]\npromisor = true\n", sha1, true),
            ("[remote \"a\"]\npromisor = false\n", sha1, false),
            ("[extensions]\nodd = true\n", sha1, false),
        ] {
            assert_eq!(kind_of(text), Ok(StoreKind { format, partial }), "{text}");
        }
        for (text, what) in [
            ("[core]\nrepositoryformatversion = 2\n", "core.repositoryFormatVersion = 2"),
            (
                "[core]\nrepositoryformatversion = 1\n[extensions]\nrefStorage = odd\n",
                "extensions.refstorage = odd",
            ),
            ("[core]\nrepositoryformatversion = 1\n[extensions]\nodd\n", "extensions.odd = "),
        ] {
            let expected = format!("/r/.git has a format that is not supported: {what}");
            assert_eq!(kind_of(text), Err(expected));
        }
    }

    #[test]
    fn a_bare_repository_beside_its_worktrees_has_no_working_tree() {
        let scene = tempfile::tempdir().expect("a directory");
        let top = scene.path();
        let write = |path: &str, text: &str| {
            let path = top.join(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            std::fs::write(path, text).expect("written");
        };
        write(".git", "gitdir: .bare\n");
        for (path, text) in [("HEAD", "ref: refs/heads/main\n"), ("objects/x", ""), ("refs/x", "")] {
            write(&format!(".bare/{path}"), text);
        }
        write(".bare/worktrees/main/HEAD", "ref: refs/heads/main\n");
        write(".bare/worktrees/main/commondir", "../..\n");
        write(".bare/worktrees/main/gitdir", "../../../main/.git\n");
        write("main/.git", "gitdir: ../.bare/worktrees/main\n");
        let has = |path: &str| {
            let located = crate::locate::at(&top.join(path)).expect("read").expect("found");
            Repository::open(located).expect("opened").has_working_tree()
        };
        for (config, expected) in [("", true), ("[core]\n\tbare = true\n", false)] {
            write(".bare/config", config);
            assert_eq!((has(""), has("main")), (expected, true), "{config}");
        }
    }

    /// Reads all parts of the repository in a directory. `None` if a part is refused.
    fn read_all(top: &Path) -> Option<()> {
        let repository = Repository::open(crate::locate::at(top).ok()??).ok()?;
        let _ = repository.exclude();
        let refs = repository.refs();
        let read = (repository.head(), refs.all(), refs.checked_out("refs/heads/x"), repository.shallow());
        let (left_out, lenders) = (repository.left_out_by_sparse_checkout(), repository.lenders());
        let objects = repository.objects(&[]);
        let is_read = read.0.is_ok() && read.1.is_ok() && read.2.is_ok() && read.3.is_ok();
        (is_read && left_out.is_ok() && lenders.is_ok() && objects.is_ok()).then_some(())
    }

    /// Each file of a git directory is replaced by a link to an endless file, a named pipe, a directory, a huge file,
    /// and garbage. Each call still returns at once, and every read is bounded.
    #[test]
    fn no_file_of_a_repository_is_awaited_or_endless() {
        use std::fs::{self, File};
        let scene = tempfile::tempdir().expect("a directory");
        let top = scene.path();
        let git = |arguments: &[&str]| {
            let mut git = std::process::Command::new("git");
            git.current_dir(top).env("GIT_CONFIG_GLOBAL", "/dev/null");
            git.args(["-c", "user.name=a", "-c", "user.email=a@example.com"]).args(arguments);
            assert!(git.output().expect("git").status.success(), "{arguments:?}");
        };
        git(&["init", "-q", "-b", "main", "."]);
        fs::write(top.join("file"), "x").expect("written");
        git(&["add", "-A"]);
        git(&["commit", "-qm", "one"]);
        git(&["config", "core.sparseCheckout", "true"]);
        git(&["config", "core.repositoryFormatVersion", "1"]);
        git(&["config", "extensions.worktreeConfig", "true"]);
        git(&["worktree", "add", "-q", "--detach", "tree"]);
        assert!(read_all(top).is_some());
        let files = [
            "HEAD",
            "config",
            "config.worktree",
            "index",
            "shallow",
            "packed-refs",
            "refs/heads/main",
            "info/exclude",
            "info",
            "refs",
            "refs/heads",
            "objects",
            "objects/pack",
            "objects/info/alternates",
            "worktrees/tree/HEAD",
            "worktrees",
            "commondir",
            "objects/pack/pack-1.pack",
            "objects/ab",
        ];
        let started = std::time::Instant::now();
        for name in files {
            let path = top.join(".git").join(name);
            let kept = top.join("kept");
            let existed = fs::rename(&path, &kept).is_ok();
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            for kind in ["link", "pipe", "directory", "huge", "garbage"] {
                match kind {
                    "link" => std::os::unix::fs::symlink("/dev/zero", &path).expect("link"),
                    "pipe" => {
                        let (fifo, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
                        rustix::fs::mknodat(rustix::fs::CWD, &path, fifo, mode, 0).expect("a named pipe");
                    }
                    "directory" => fs::create_dir(&path).expect("made"),
                    "huge" => File::create(&path).and_then(|file| file.set_len(1 << 40)).expect("made"),
                    _ => fs::write(&path, [0xff, b'\n', 0, b'x'].repeat(500)).expect("written"),
                }
                // Whether the repository is refused depends on the file. The test only checks that the call returns.
                let _ = read_all(top);
                if kind == "directory" { fs::remove_dir_all(&path) } else { fs::remove_file(&path) }
                    .expect("removed");
            }
            if existed {
                fs::rename(&kept, &path).expect("moved back");
            }
        }
        assert!(read_all(top).is_some());
        assert!(started.elapsed() < std::time::Duration::from_secs(60), "{:?}", started.elapsed());
    }
}
