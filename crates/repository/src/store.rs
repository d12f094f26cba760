//! Creates `bottle`'s own git directory, in which git reads the objects of other repositories.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::git::{Git, GitError, Program};
use crate::id::ObjectId;
use crate::objects::Objects;
use crate::pack::NewPack;
use bottle_pack_check::ObjectFormat;

/// The configuration of the git directory. Git reads no other configuration file.
///
/// - From a directory with objects, git uses only packs and the objects of other directories.
/// - Git runs no program to read the references of a directory from which it borrows objects.
/// - The memory that git uses for parts of packs and for deltas is limited.
const CONFIGURATION: &str = "\
[core]
\tbare = true
\tcommitGraph = false
\tmultiPackIndex = false
\talternateRefsCommand = :
\thooksPath = /dev/null
\tfsmonitor = false
\tattributesFile = /dev/null
\texcludesFile = /dev/null
\tlogAllRefUpdates = false
\tcompression = 1
\tbigFileThreshold = 128m
\tpackedGitWindowSize = 64m
\tpackedGitLimit = 1g
\tdeltaBaseCacheLimit = 96m
[pack]
\tthreads = 1
\twindowMemory = 256m
\treadReverseIndex = false
\twriteReverseIndex = false
\tuseBitmaps = false
[fastimport]
\tunpackLimit = 1
[gc]
\tauto = 0
[maintenance]
\tauto = false
[protocol]
\tallow = never
";

/// Attributes for all paths. They override the attributes in trees, so that git compares and writes files without
/// conversion.
const ATTRIBUTES: &str =
    "* !diff !text !crlf !eol !ident !filter !working-tree-encoding !whitespace !merge\n";

/// The name of the remote repository that has the missing objects of a partial clone. This remote has no address, so
/// that git does not fetch the objects.
const PROMISOR: &str = "partial";

/// The kind of a store's git directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreKind {
    /// The hash function of the object ids.
    pub format: ObjectFormat,
    /// Whether objects may be missing, as in a partial clone.
    pub partial: bool,
}

/// A temporary git directory that `bottle` creates. It is removed when the last clone of this value is dropped.
#[derive(Debug, Clone)]
pub struct Store {
    program: Program,
    kind: StoreKind,
    place: Arc<Place>,
}

/// The git directory, and the open directories to which links in it refer.
pub(crate) struct Place {
    directory: Box<Owned>,
    borrowed: Mutex<Vec<Objects>>,
}

/// A directory that is removed when this value is dropped.
type Owned = dyn AsRef<Path> + Send + Sync;

/// Why an operation in the store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file of the store could not be written.
    #[error("cannot write in {}: {error}", path.display())]
    Write {
        /// The path of the git directory.
        path: PathBuf,
        /// The I/O error.
        error: io::Error,
    },
    /// Git could not be run, or ended with an error.
    #[error(transparent)]
    Git(#[from] GitError),
}

impl Store {
    /// Makes an empty git directory in a new directory. Only this user can access the directory, and the directory is
    /// removed when `directory` is dropped.
    ///
    /// # Errors
    /// Returns [`StoreError::Write`].
    pub fn create(
        program: &Program,
        directory: impl AsRef<Path> + Send + Sync + 'static,
        kind: StoreKind,
    ) -> Result<Self, StoreError> {
        let path = directory.as_ref();
        fill(path, kind).map_err(|error| StoreError::Write { path: path.to_owned(), error })?;
        let place = Arc::new(Place { directory: Box::new(directory), borrowed: Mutex::new(Vec::new()) });
        Ok(Self { program: program.clone(), kind, place })
    }

    /// Returns a handle that runs git in this directory.
    #[must_use]
    pub fn git(&self) -> Git {
        Git::in_store(self.program.clone(), Arc::clone(&self.place))
    }

    /// Returns the path of the git directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.place.path()
    }

    /// Returns the kind of the git directory.
    #[must_use]
    pub fn kind(&self) -> StoreKind {
        self.kind
    }

    /// Makes git read these objects too.
    ///
    /// # Errors
    /// Returns [`StoreError::Write`].
    pub fn borrow(&self, objects: Objects) -> Result<(), StoreError> {
        let mut borrowed = self.place.borrowed.lock().unwrap_or_else(PoisonError::into_inner);
        let views = self.path().join("views");
        let name = borrowed.len().to_string();
        let made = objects.view(&views, &name).and_then(|names| {
            let lines: String = names.iter().map(|name| format!("../views/{name}\n")).collect();
            append(&self.path().join("objects/info/alternates"), lines.as_bytes())
        });
        borrowed.push(objects);
        made.map_err(|error| self.unwritten(error))
    }

    /// Makes git read the packs in the directory `packs` too, which `bottle` has created.
    ///
    /// # Errors
    /// Returns [`StoreError::Write`].
    pub fn borrow_packs(&self, packs: &Path) -> Result<(), StoreError> {
        let mut borrowed = self.place.borrowed.lock().unwrap_or_else(PoisonError::into_inner);
        let name = borrowed.len().to_string();
        let view = self.path().join("views").join(&name);
        let made = fs::create_dir(&view)
            .and_then(|()| std::os::unix::fs::symlink(packs, view.join("pack")))
            .and_then(|()| {
                append(&self.path().join("objects/info/alternates"), format!("../views/{name}\n").as_bytes())
            });
        borrowed.push(Objects::none());
        made.map_err(|error| self.unwritten(error))
    }

    /// Moves the packs of another store into this store.
    ///
    /// # Errors
    /// Returns [`StoreError::Write`].
    pub fn take_packs(&self, from: &Self) -> Result<(), StoreError> {
        let packs = |store: &Self| store.path().join("objects/pack");
        let moved = fs::read_dir(packs(from)).and_then(|mut entries| {
            entries.try_for_each(|entry| {
                let entry = entry?;
                fs::rename(entry.path(), packs(self).join(entry.file_name()))
            })
        });
        moved.map_err(|error| self.unwritten(error))
    }

    /// Sets the list of the commits whose parents are missing, as in a shallow clone.
    ///
    /// # Errors
    /// Returns [`StoreError::Write`].
    pub fn set_shallow<'a>(&self, ids: impl IntoIterator<Item = &'a ObjectId>) -> Result<(), StoreError> {
        let text: String = ids.into_iter().map(|id| format!("{id}\n")).collect();
        let path = self.path().join("shallow");
        let written = match text.is_empty() {
            // Git refuses an empty file, so the file is removed.
            true => fs::remove_file(path).or_else(|error| match error.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            }),
            false => fs::write(path, text),
        };
        written.map_err(|error| self.unwritten(error))
    }

    /// Resolves a name to a commit. `None` if there is no such commit.
    ///
    /// # Errors
    /// Returns [`StoreError::Git`] if git could not be run.
    pub async fn commit(&self, name: &str) -> Result<Option<ObjectId>, StoreError> {
        self.object(&format!("{name}^{{commit}}")).await
    }

    /// Resolves an expression of gitrevisions(7) to an object. `None` if there is no such object.
    ///
    /// # Errors
    /// Returns [`StoreError::Git`] if git could not be run.
    pub async fn object(&self, expression: &str) -> Result<Option<ObjectId>, StoreError> {
        let arguments = ["rev-parse", "--quiet", "--verify", "--end-of-options", expression];
        let found = self.git().run(&arguments).await?;
        Ok(if found.succeeded() { ObjectId::from_bytes(&found.stdout.bytes) } else { None })
    }

    /// Returns the ids of the commits in this store to which `ids` resolve. A tag resolves to its commit. Ids that do
    /// not resolve to a commit are left out.
    ///
    /// # Errors
    /// Returns [`StoreError::Git`].
    pub async fn present<'a>(
        &self,
        ids: impl IntoIterator<Item = &'a ObjectId>,
    ) -> Result<Vec<ObjectId>, StoreError> {
        let input: String = ids.into_iter().map(|id| format!("{id}^{{commit}}\n")).collect();
        let most = input.len() + (1 << 10);
        let arguments = ["cat-file", "--batch-check=%(objectname) %(objecttype)", "--buffer"];
        let found = self.git().run_with(&arguments, input.as_bytes(), most).await?;
        if !found.succeeded() {
            return Err(found.failed("cat-file").into());
        }
        let lines = found.stdout.bytes.split(|byte| *byte == b'\n');
        Ok(lines.filter_map(|line| line.strip_suffix(b" commit").and_then(ObjectId::from_bytes)).collect())
    }

    /// Makes a pack of all objects that can be reached from `tip` and not from `without`. The objects in the pack refer
    /// only to each other, and to objects that can be reached from `without`. `None` if there are no such objects.
    ///
    /// # Errors
    /// Returns [`StoreError::Git`] if an object is missing, and [`StoreError::Write`].
    pub async fn pack(&self, tip: &ObjectId, without: &[ObjectId]) -> Result<Option<NewPack>, StoreError> {
        let directory = tempfile::Builder::new().prefix("new-").tempdir_in(self.path());
        let directory = directory.map_err(|error| self.unwritten(error))?;
        let mut input = format!("{tip}\n");
        without.iter().for_each(|id| input += &format!("^{id}\n"));
        let base = directory.path().join("pack").display().to_string();
        let mut arguments = vec!["pack-objects", "-q", "--revs", "--delta-base-offset", "--non-empty"];
        if self.kind.partial {
            arguments.push("--missing=allow-promisor");
        }
        arguments.push(&base);
        let made = self.git().run_with(&arguments, input.as_bytes(), 1 << 10).await?;
        if !made.succeeded() {
            return Err(made.failed("pack-objects").into());
        }
        let Some(id) = ObjectId::from_bytes(&made.stdout.bytes) else { return Ok(None) };
        let open = |kind: &str| File::open(directory.path().join(format!("pack-{id}.{kind}")));
        let opened = open("pack").and_then(|pack| Ok((pack, open("idx")?)));
        let (pack, index) = opened.map_err(|error| self.unwritten(error))?;
        Ok(Some(NewPack::new(id, pack, index)))
    }

    pub(crate) fn unwritten(&self, error: io::Error) -> StoreError {
        StoreError::Write { path: self.path().to_owned(), error }
    }
}

impl Place {
    pub(crate) fn path(&self) -> &Path {
        (*self.directory).as_ref()
    }
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Place").field(&self.path()).finish()
    }
}

fn fill(directory: &Path, StoreKind { format, partial }: StoreKind) -> io::Result<()> {
    for name in ["objects", "objects/info", "objects/pack", "refs", "refs/heads", "info", "views"] {
        fs::DirBuilder::new().mode(0o700).create(directory.join(name))?;
    }
    let mut configuration = CONFIGURATION.to_owned();
    let version = u8::from(partial || format == ObjectFormat::Sha256);
    configuration += &format!("[core]\n\trepositoryFormatVersion = {version}\n");
    if format == ObjectFormat::Sha256 {
        configuration += "[extensions]\n\tobjectFormat = sha256\n";
    }
    if partial {
        configuration += &format!("[extensions]\n\tpartialClone = {PROMISOR}\n");
        configuration += &format!("[remote \"{PROMISOR}\"]\n\tpromisor = true\n");
    }
    fs::write(directory.join("config"), configuration)?;
    fs::write(directory.join("info/attributes"), ATTRIBUTES)?;
    fs::write(directory.join("HEAD"), "ref: refs/heads/none\n")
}

fn append(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().create(true).append(true).open(path)?;
    file.write_all(bytes)
}
