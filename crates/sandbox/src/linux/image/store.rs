//! Stores the unpacked images of a home, and removes unused images.
//!
//! A stored image is always complete, because it is created under another name and then renamed. When a bottle starts,
//! it holds a shared lock on its image until the bottle's files record the image's name. Removing an image needs an
//! exclusive lock on the image.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufRead as _, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bottle_backend::image::account::Account;
use bottle_backend::image::config::{Config, notes, variables};
use bottle_backend::image::local::{IMAGE_HINT, Local, named};
use bottle_backend::image::saved::layer::{self, Budget};
use bottle_backend::image::saved::{BadImage, Container, Saved, architecture};
use bottle_backend::image::{build_lock, local};
use bottle_backend::trees::image_tree::Tree;
use bottle_backend::trees::layer_tar::Ownership;
use bottle_backend::trees::portable::not_imported;
use bottle_backend::trees::{remove_tree, tree_into};
use bottle_backend::{BackendError, ImageInfo, Preview, ProgressSink, Step, Unused, run_blocking};
use bottle_host::Host;
use bottle_manifest::host_path;
use bottle_policy::names::Slug;
use jiff::Timestamp;
use rustix::fs::{CWD, Mode, OFlags, RenameFlags, renameat_with, syncfs};
use serde::{Deserialize, Serialize};

use super::ready;
use crate::linux::spec;
use crate::local::layer_snapshots::IMAGES;
use crate::local::portable::Base;

/// The [`Unused::kind`] of an image.
const IMAGE: &str = "image";

/// The name of the file that contains an image's metadata.
const FACTS: &str = "image.json";

/// The name of the file that contains the owners of an image's files.
const OWNERS: &str = "owners";

/// The maximum number of bytes read of the file [`OWNERS`]. An image has at most two million files.
const OWNERS_MAX: u64 = 1 << 30;

/// The name of the directory that contains an image's files.
const ROOT: &str = "root";

/// The version of the preparation, which is a suffix of each image's name. Changing the version rebuilds every image.
const READY_VERSION: &str = "1";

/// The maximum number of bytes read of an image's metadata. Valid metadata is shorter. A longer file is cut off, and
/// parsing it fails.
const FACTS_MAX: u64 = 1 << 20;

/// The name prefixes of incomplete directories.
const LEFTOVER_PREFIXES: [&str; 2] = [".new-", ".old-"];

/// The content of `image.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Facts {
    /// The agent's account.
    account: Account,
    /// The variables that the image sets, as `NAME=value`.
    env: Vec<String>,
    /// The instructions of the image that have no effect in a bottle.
    left_out: Vec<String>,
    /// The path of the image's source, relative to `$BOTTLE_HOME`.
    source: PathBuf,
    made_at: Timestamp,
    /// The total size of all files in bytes.
    bytes: u64,
    /// Whether the image was imported together with a bottle. If so, `source` is not a path.
    #[serde(default)]
    imported: bool,
}

/// A stored image.
#[derive(Debug)]
pub(crate) struct Image {
    /// The image's unique name.
    pub(crate) name: String,
    /// The directory of the image's read-only files.
    pub(crate) root: PathBuf,
    /// The content of the image's `image.json`.
    facts: Facts,
}

impl Image {
    fn notes(&self) -> Vec<String> {
        // Volumes need no note, because the data of volumes is in the bottle's layers, and snapshots include these
        // layers.
        notes(&self.facts.left_out, &[])
    }

    /// The agent's ids in the image.
    pub(crate) fn inside(&self) -> spec::AgentIds {
        spec::AgentIds { uid: self.facts.account.uid, gid: self.facts.account.gid }
    }

    fn info(&self) -> ImageInfo {
        let Account { name, uid, gid, home } = self.facts.account.clone();
        let env = variables(&self.facts.env);
        ImageInfo { image: self.name.clone(), uid, gid, user: name, home, env, volumes: Vec::new() }
    }
}

/// The stored images of a home.
#[derive(Debug, Clone)]
pub(crate) struct Images {
    host: Host,
    directory: PathBuf,
    /// Shared locks, which protect the images that this process uses from removal.
    locks: Arc<Mutex<Vec<File>>>,
}

/// The source of an image, and the image's name.
struct Source {
    /// The path of the source, as in the bottle manifest.
    path: PathBuf,
    name: String,
    content: Content,
    /// See [`Facts::imported`].
    imported: bool,
}

/// The content of a source.
enum Content {
    /// A saved image, already parsed.
    Saved(Box<(Container, Saved)>),
    /// A plain file system.
    Plain(Local),
}

impl Images {
    /// Creates the image store for the home of `host`. Reads no files.
    pub(crate) fn new(host: &Host) -> Self {
        Self { host: host.clone(), directory: host.home.join(IMAGES), locks: Arc::default() }
    }

    /// Describes what [`Images::prepare`] would do for the image at this path.
    ///
    /// # Errors
    /// [`BackendError`] when the image cannot be used. Problems that show only when the image is unpacked are not
    /// detected.
    pub(crate) async fn preview(&self, path: &Path) -> Result<Preview, BackendError> {
        let (named, source) = (named(path), self.look(path).await?);
        let mut preview = Preview::default();
        match self.find(&source.name).map_err(|error| unreadable(&named, error))? {
            Some(image) => preview.notes = image.notes(),
            None => preview.makes.push(format!("{named} is unpacked: it is new or has changed")),
        }
        Ok(preview)
    }

    /// Returns the image whose source is at this path, with notes for the user. Unpacks the image if it is not stored.
    ///
    /// # Errors
    /// [`BackendError`] when the image cannot be used. In this case, no part of the image is stored.
    pub(crate) async fn prepare(
        &self,
        path: &Path,
        progress: &ProgressSink<Step>,
    ) -> Result<(ImageInfo, Vec<String>), BackendError> {
        let (named, source) = (named(path), self.look(path).await?);
        let failed = |error: io::Error| unreadable(&named, error);
        let name = source.name.clone();
        let image = match self.open_shared(&name).map_err(failed)? {
            Some(image) => image,
            None => {
                let _lock = build_lock::lock(&self.host, &name, &named, progress).await?;
                if self.find(&name).map_err(failed)?.is_none() {
                    progress.report(Step {
                        subject: named.clone(),
                        line: "unpacking it".to_owned(),
                        starts_stage: true,
                    });
                    self.make(source, &named).await?;
                }
                let gone = || BackendError::failed(format!("{named} was removed while it was prepared"));
                self.open_shared(&name).map_err(failed)?.ok_or_else(gone)?
            }
        };
        Ok((image.info(), image.notes()))
    }

    /// Opens the image with this name and protects it from removal until this `Images` value is dropped.
    ///
    /// # Errors
    /// When the image exists but cannot be read.
    pub(crate) fn open_shared(&self, name: &str) -> io::Result<Option<Image>> {
        let Some(lock) = self.lock(name)? else { return Ok(None) };
        lock.lock_shared()?;
        // A removal renames the image while it holds the exclusive lock.
        if !self.is_current(name, &lock)? {
            return Ok(None);
        }
        let found = self.find(name)?;
        self.locks.lock().unwrap_or_else(PoisonError::into_inner).push(lock);
        Ok(found)
    }

    /// Lists the images that no bottle and no snapshot uses, and that were replaced by a newer image or have lost their
    /// source. Also lists the directories that killed starts left behind while they unpacked an image, unless an image
    /// is being unpacked now.
    ///
    /// # Errors
    /// When the images cannot be listed.
    pub(crate) fn unused(&self, used: &[String]) -> io::Result<Vec<Unused>> {
        let mut found = Vec::new();
        let leftovers: Vec<String> = self.entries()?.into_iter().filter(|entry| is_leftover(entry)).collect();
        // The lock is taken only if there are leftovers, because locking writes to the home, which may be read-only.
        if !leftovers.is_empty()
            && let Some(_lock) = build_lock::lock_for_cleanup(&self.host)?
        {
            found.extend(
                leftovers
                    .into_iter()
                    .map(|id| unused(id, "was being unpacked by a start that was killed", None)),
            );
        }
        let images = self.all()?;
        for image in &images {
            let source = &image.facts.source;
            let newer = images
                .iter()
                .any(|other| other.facts.source == *source && other.facts.made_at > image.facts.made_at);
            let why = match (newer, self.host.home.join(source).exists()) {
                _ if used.contains(&image.name) => continue,
                (true, _) => format!("another image of ./{} took its place", source.display()),
                _ if image.facts.imported => "the bottle with which it was imported is gone".to_owned(),
                (false, false) => format!("./{}, which it was made of, is gone", source.display()),
                (false, true) => continue,
            };
            found.push(unused(image.name.clone(), &why, Some(image.facts.bytes)));
        }
        Ok(found)
    }

    /// Removes these images, except images that are in use again since they were listed. Returns the removed images.
    /// `used` returns the names of all images in use. It is called while an exclusive lock prevents other processes
    /// from starting to use the image.
    ///
    /// # Errors
    /// When an image cannot be removed.
    pub(crate) fn remove(
        &self,
        unused_images: Vec<Unused>,
        used: impl Fn() -> io::Result<Vec<String>>,
    ) -> io::Result<Vec<Unused>> {
        let mut removed = Vec::new();
        for one in unused_images {
            let gone = match is_leftover(&one.id) {
                true => match build_lock::lock_for_cleanup(&self.host)? {
                    Some(_lock) => remove_tree(&self.directory.join(&one.id)).map(|()| true)?,
                    None => false,
                },
                false => self.remove_image(&one.id, &used)?,
            };
            if gone {
                removed.push(one);
            }
        }
        Ok(removed)
    }

    fn remove_image(&self, name: &str, used: &impl Fn() -> io::Result<Vec<String>>) -> io::Result<bool> {
        let Some(lock) = self.lock(name)? else { return Ok(true) };
        if lock.try_lock().is_err() || !self.is_current(name, &lock)? || used()?.contains(&name.to_owned()) {
            return Ok(false);
        }
        let old = self.directory.join(format!(".old-{name}"));
        remove_tree(&old)?;
        fs::rename(self.directory.join(name), &old)?;
        remove_tree(&old)?;
        Ok(true)
    }

    /// Returns the image of this name, with notes for the user. The image was imported together with a bottle.
    ///
    /// # Errors
    /// [`BackendError`] when the image was removed or cannot be read.
    pub(crate) fn imported(&self, name: &str) -> Result<(ImageInfo, Vec<String>), BackendError> {
        let found = self.open_shared(name).map_err(|error| unreadable("the imported image", error))?;
        let gone = || {
            BackendError::failed(format!(
                "the image {name} was removed, on which the bottle's files are based"
            ))
            .with_hint(format!("it was unpacked to {IMAGES}/ when the bottle was imported: import it again"))
        };
        let image = found.ok_or_else(gone)?;
        Ok((image.info(), image.notes()))
    }

    /// Stores the image of an archive's OCI layout, unless it is stored already, and protects it from removal as
    /// [`Images::open_shared`] does.
    ///
    /// # Errors
    /// [`BackendError`] when the image is damaged or hostile. In this case, no part of the image is stored.
    pub(crate) async fn import(&self, slug: &Slug, layout: &Path) -> Result<Image, BackendError> {
        let layout = layout.to_owned();
        let source = run_blocking(move || {
            let path = Path::new("imported").join(layout.file_name().unwrap_or_default());
            saved_source(path, Container::directory(&layout)?, true)
        });
        let source = source.await?.map_err(|error| not_imported(slug, error))?;
        let failed = |error: io::Error| unreadable("the imported image", error);
        let name = source.name.clone();
        if let Some(image) = self.open_shared(&name).map_err(failed)? {
            return Ok(image);
        }
        let _lock =
            build_lock::lock(&self.host, &name, "the imported image", &ProgressSink::discard()).await?;
        if self.find(&name).map_err(failed)?.is_none() {
            let directory = self.directory.clone();
            let made = run_blocking(move || unpack(&directory, source)).await?;
            made.map_err(|error| not_imported(slug, error))?;
        }
        let gone = || BackendError::failed("the imported image was removed while it was stored");
        self.open_shared(&name).map_err(failed)?.ok_or_else(gone)
    }

    /// Returns the image of this name, as the base of the files of a bottle that is exported.
    ///
    /// # Errors
    /// When the image exists but cannot be read.
    pub(crate) fn base(&self, name: &str) -> io::Result<Option<Base>> {
        let Some(image) = self.open_shared(name)? else { return Ok(None) };
        let owners = read_owners(&self.directory.join(name))?;
        let Facts { account, env, .. } = image.facts;
        let (uid, gid, home) = (account.uid, account.gid, account.home.clone());
        Ok(Some(Base { root: image.root, uid, gid, home, account: Some(account), env, owners }))
    }

    #[cfg(test)]
    pub(super) fn host(&self) -> Host {
        self.host.clone()
    }

    /// Inspects the source at this path, relative to `$BOTTLE_HOME`.
    async fn look(&self, path: &Path) -> Result<Source, BackendError> {
        let named = named(path);
        let wrong = |why: String| BackendError::failed(format!("{named} {why}")).with_hint(IMAGE_HINT);
        let real = host_path::real_within(&self.host.home, path).map_err(wrong)?;
        let path = path.to_owned();
        let looked = run_blocking(move || inspect_source(path, &real)).await?;
        looked.map_err(|error| explain(&named, error))
    }

    fn find(&self, name: &str) -> io::Result<Option<Image>> {
        let directory = self.directory.join(name);
        let file = match File::open(directory.join(FACTS)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut text = Vec::new();
        file.take(FACTS_MAX).read_to_end(&mut text)?;
        let facts = serde_json::from_slice(&text)?;
        Ok(Some(Image { name: name.to_owned(), root: directory.join(ROOT), facts }))
    }

    /// Opens the file of an image on which locks are taken.
    fn lock(&self, name: &str) -> io::Result<Option<File>> {
        if !is_name(name) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} is no image's name")));
        }
        match File::open(self.directory.join(name).join(FACTS)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            file => file.map(Some),
        }
    }

    fn is_current(&self, name: &str, lock: &File) -> io::Result<bool> {
        match fs::metadata(self.directory.join(name).join(FACTS)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            found => Ok(found?.ino() == lock.metadata()?.ino()),
        }
    }

    fn entries(&self) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        entries.map(|entry| Ok(entry?.file_name().into_string().ok())).filter_map(Result::transpose).collect()
    }

    fn all(&self) -> io::Result<Vec<Image>> {
        let names = self.entries()?.into_iter().filter(|entry| is_name(entry));
        // Other entries, for example files of the user, are skipped.
        Ok(names.filter_map(|name| self.find(&name).ok().flatten()).collect())
    }

    async fn make(&self, source: Source, named: &str) -> Result<(), BackendError> {
        let directory = self.directory.clone();
        let made = run_blocking(move || unpack(&directory, source)).await?;
        made.map_err(|error| explain(named, error))
    }
}

/// Inspects a file or directory. Parses a saved image. Blocks.
fn inspect_source(path: PathBuf, real: &Path) -> Result<Source, BadImage> {
    let local = local::inspect(real).map_err(BadImage::Refused)?;
    if !local.saved {
        let name = format!("{}-{READY_VERSION}", local.hash);
        return Ok(Source { path, name, content: Content::Plain(local), imported: false });
    }
    let container = if local.directory { Container::directory(real)? } else { Container::archive(real)? };
    saved_source(path, container, false)
}

fn saved_source(path: PathBuf, container: Container, imported: bool) -> Result<Source, BadImage> {
    let saved = Saved::read(&container, architecture())?;
    let name = format!("{}-{READY_VERSION}", saved.id.digits());
    Ok(Source { path, name, content: Content::Saved(Box::new((container, saved))), imported })
}

/// Creates the stored image atomically. Blocks.
fn unpack(directory: &Path, source: Source) -> Result<(), BadImage> {
    let (new, place) = (directory.join(format!(".new-{}", source.name)), directory.join(&source.name));
    DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(BadImage::Disk)?;
    // A start that was killed may have left the directory `.new-<name>`.
    remove_tree(&new).map_err(BadImage::Disk)?;
    let made = fill(&new, source).and_then(|()| {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(&new, flags, Mode::empty())
            .and_then(syncfs)
            .and_then(|()| renameat_with(CWD, &new, CWD, &place, RenameFlags::NOREPLACE))
            .map_err(|error| BadImage::Disk(error.into()))
    });
    made.inspect_err(|_| drop(remove_tree(&new)))
}

fn fill(new: &Path, source: Source) -> Result<(), BadImage> {
    DirBuilder::new().mode(0o700).create(new).map_err(BadImage::Disk)?;
    let root = new.join(ROOT);
    let local = match &source.content {
        Content::Saved(image) => {
            let (container, saved) = &**image;
            DirBuilder::new().mode(0o755).create(&root).map_err(BadImage::Disk)?;
            let (mut tree, mut budget) = (Tree::new(&root)?, Budget::full());
            for one in &saved.layers {
                layer::read(container, one, &mut budget, |content| tree.put(&one.name, content))?;
            }
            let bytes = tree.bytes();
            return finish(tree, new, &source, saved.config.clone(), bytes);
        }
        Content::Plain(local) => local,
    };
    let config = Config::default();
    if local.directory {
        // If root copies a directory, root owns the copies, because no bottle runs as root. If an ordinary user copies
        // a directory, this user owns the copies in any case.
        let owner = rustix::process::geteuid().is_root().then_some(0);
        let copied = tree_into(&local.path, new, ROOT, owner).map_err(BadImage::Disk)?;
        finish(Tree::new(&root)?, new, &source, config, copied.size)
    } else {
        DirBuilder::new().mode(0o755).create(&root).map_err(BadImage::Disk)?;
        let mut tree = Tree::new(&root)?;
        let archive =
            File::open(&local.path).map_err(|error| BadImage::refused(format!("cannot be read: {error}")))?;
        layer::plain(archive, &mut Budget::full(), |content| tree.put("the archive", content))?;
        let bytes = tree.bytes();
        finish(tree, new, &source, config, bytes)
    }
}

fn finish(tree: Tree, new: &Path, source: &Source, config: Config, bytes: u64) -> Result<(), BadImage> {
    let account = ready::make(&tree, &config.user)?;
    let owners = tree.settle()?;
    if !matches!(&source.content, Content::Plain(local) if local.directory) {
        write_owners(new, &owners)?;
    }
    let facts = Facts {
        account,
        left_out: config.left_out(),
        env: config.env,
        source: source.path.clone(),
        made_at: Timestamp::now(),
        bytes,
        imported: source.imported,
    };
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(new.join(FACTS));
    let text = serde_json::to_vec(&facts).map_err(|error| BadImage::Disk(error.into()))?;
    file.and_then(|mut file| file.write_all(&text)).map_err(BadImage::Disk)
}

/// Writes the owners of an image's files, one JSON value on each line. Paths that are not UTF-8 are left out.
fn write_owners(directory: &Path, owners: &BTreeMap<PathBuf, Ownership>) -> Result<(), BadImage> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(directory.join(OWNERS));
    let mut out = io::BufWriter::new(file.map_err(BadImage::Disk)?);
    let written =
        owners.iter().filter_map(|(path, owner)| Some((path.to_str()?, owner))).try_for_each(|entry| {
            serde_json::to_writer(&mut out, &entry)?;
            out.write_all(b"\n")
        });
    written.and_then(|()| out.flush()).map_err(BadImage::Disk)
}

/// Reads the owners of an image's files. Returns `None` for an image that an older version of this program unpacked.
fn read_owners(directory: &Path) -> io::Result<Option<BTreeMap<PathBuf, Ownership>>> {
    let file = match File::open(directory.join(OWNERS)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let lines = io::BufReader::new(file.take(OWNERS_MAX)).lines();
    let owners = lines.map(|line| Ok(serde_json::from_str(&line?)?)).collect::<io::Result<_>>()?;
    Ok(Some(owners))
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

fn is_leftover(name: &str) -> bool {
    LEFTOVER_PREFIXES.iter().any(|beginning| name.strip_prefix(beginning).is_some_and(is_name))
}

fn unused(id: String, why: &str, bytes: Option<u64>) -> Unused {
    Unused { kind: IMAGE.to_owned(), id, why: why.to_owned(), bytes }
}

fn unreadable(named: &str, error: io::Error) -> BackendError {
    BackendError::failed(format!("cannot read {named} as unpacked")).because(error)
}

fn explain(named: &str, error: BadImage) -> BackendError {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    match error {
        BadImage::Refused(why) => BackendError::unsupported(format!("{named} {why}"), IMAGE_HINT),
        BadImage::Disk(error) if matches!(error.kind(), StorageFull | QuotaExceeded) => {
            BackendError::failed(format!("cannot unpack {named}: {}", bottle_archive::full(&error)))
                .with_hint("free some space; `bottle cleanup` removes unused images")
        }
        error @ BadImage::Disk(_) => BackendError::failed(format!("{named} {error}")),
    }
}
