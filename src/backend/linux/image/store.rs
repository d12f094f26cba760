//! Stores the unpacked images of a home, and removes unused ones.
//!
//! A stored image is always complete, because it is created under another name and then renamed. A start keeps a shared
//! lock on its image until the bottle's files name the image. A removal needs the exclusive lock.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use rustix::fs::{CWD, Mode, OFlags, RenameFlags, renameat_with, syncfs};
use serde::{Deserialize, Serialize};

use super::container::Container;
use super::layer::Budget;
use super::saved::Saved;
use super::tree::Tree;
use super::{BadImage, layer, ready};
use crate::backend::image::account::Account;
use crate::backend::image::config::{Config, notes, variables};
use crate::backend::image::local::{IMAGE_HINT, Local, named};
use crate::backend::image::{build_lock, local};
use crate::backend::linux::spec;
use crate::backend::local::layer_snapshots::IMAGES;
use crate::backend::local::{layers, tree_into};
use crate::backend::{BackendError, ImageInfo, Preview, ProgressSink, Step, Unused, run_blocking};
use crate::host::Host;
use crate::manifest::host_path;

/// The [`Unused::kind`] of an image.
const IMAGE: &str = "image";

/// The name of the file that contains an image's metadata.
const FACTS: &str = "image.json";

/// The name of the folder that contains an image's files.
const ROOT: &str = "root";

/// The version of the preparation, a suffix of the image's name. Changing it rebuilds every image.
const READY_VERSION: &str = "1";

/// The maximum number of bytes read of an image's metadata. The metadata is shorter; a longer file cannot be parsed.
const FACTS_MAX: u64 = 1 << 20;

/// The name prefixes of incomplete folders.
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
}

/// A stored image.
#[derive(Debug)]
pub(in crate::backend) struct Image {
    /// The image's unique name.
    pub(in crate::backend) name: String,
    /// The folder of the image's read-only files.
    pub(in crate::backend) root: PathBuf,
    /// The content of the image's `image.json`.
    facts: Facts,
}

impl Image {
    fn notes(&self) -> Vec<String> {
        // Volumes need no note, because their data is in the bottle's layers and snapshots include it.
        notes(&self.facts.left_out, &[])
    }

    /// The agent's ids in the image.
    pub(in crate::backend) fn inside(&self) -> spec::AgentIds {
        spec::AgentIds { uid: self.facts.account.uid, gid: self.facts.account.gid }
    }

    fn info(&self) -> ImageInfo {
        let Account { name, uid, gid, home } = self.facts.account.clone();
        let env = variables(&self.facts.env);
        ImageInfo { image: self.name.clone(), uid, gid, user: name, home, env, volumes: Vec::new() }
    }
}

/// The stored images of a home.
#[derive(Debug)]
pub(in crate::backend) struct Images {
    host: Host,
    folder: PathBuf,
    /// Shared locks, which protect the images that this process uses from removal.
    locks: Mutex<Vec<File>>,
}

/// The source of an image, and the image's name.
struct Source {
    /// The path as the manifest gives it.
    path: PathBuf,
    local: Local,
    name: String,
    /// The saved image, already parsed. `None` if the source is a plain file system.
    saved: Option<(Container, Saved)>,
}

impl Images {
    /// Creates the value for this home. Reads nothing yet.
    pub(in crate::backend) fn new(host: &Host) -> Self {
        Self { host: host.clone(), folder: host.home.join(IMAGES), locks: Mutex::default() }
    }

    /// Previews [`Images::prepare`] for the image at this path.
    ///
    /// # Errors
    /// [`BackendError`] when the image cannot be used, as far as this can be detected without unpacking it.
    pub(in crate::backend) async fn preview(&self, path: &Path) -> Result<Preview, BackendError> {
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
    /// [`BackendError`] when the image cannot be used. No part of it is then stored.
    pub(in crate::backend) async fn prepare(
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
    pub(in crate::backend) fn open_shared(&self, name: &str) -> io::Result<Option<Image>> {
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

    /// Lists images that no bottle and no snapshot uses, and that a newer image replaced or whose source no longer
    /// exists. Also lists leftovers of killed unpackings, unless one is running.
    ///
    /// # Errors
    /// When the images cannot be listed.
    pub(in crate::backend) fn unused(&self, used: &[String]) -> io::Result<Vec<Unused>> {
        let mut found = Vec::new();
        let leftovers: Vec<String> = self.entries()?.into_iter().filter(|entry| is_leftover(entry)).collect();
        // Locking writes to the home, which may be read-only.
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
                (false, false) => format!("./{}, which it was made of, is gone", source.display()),
                (false, true) => continue,
            };
            found.push(unused(image.name.clone(), &why, Some(image.facts.bytes)));
        }
        Ok(found)
    }

    /// Removes these images, except those that are in use by then. Returns the removed ones. `used` is called while the
    /// lock prevents other processes from using an image.
    ///
    /// # Errors
    /// When an image cannot be removed.
    pub(in crate::backend) fn remove(
        &self,
        unused_images: Vec<Unused>,
        used: impl Fn() -> io::Result<Vec<String>>,
    ) -> io::Result<Vec<Unused>> {
        let mut removed = Vec::new();
        for one in unused_images {
            let gone = match is_leftover(&one.id) {
                true => match build_lock::lock_for_cleanup(&self.host)? {
                    Some(_lock) => layers::remove_tree(&self.folder.join(&one.id)).map(|()| true)?,
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
        let old = self.folder.join(format!(".old-{name}"));
        layers::remove_tree(&old)?;
        fs::rename(self.folder.join(name), &old)?;
        layers::remove_tree(&old)?;
        Ok(true)
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
        let folder = self.folder.join(name);
        let file = match File::open(folder.join(FACTS)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut text = Vec::new();
        file.take(FACTS_MAX).read_to_end(&mut text)?;
        let facts = serde_json::from_slice(&text)?;
        Ok(Some(Image { name: name.to_owned(), root: folder.join(ROOT), facts }))
    }

    /// The file that is locked for an image.
    fn lock(&self, name: &str) -> io::Result<Option<File>> {
        if !is_name(name) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} is no image's name")));
        }
        match File::open(self.folder.join(name).join(FACTS)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            file => file.map(Some),
        }
    }

    fn is_current(&self, name: &str, lock: &File) -> io::Result<bool> {
        match fs::metadata(self.folder.join(name).join(FACTS)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            found => Ok(found?.ino() == lock.metadata()?.ino()),
        }
    }

    fn entries(&self) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(&self.folder) {
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
        let folder = self.folder.clone();
        let made = run_blocking(move || unpack(&folder, source)).await?;
        made.map_err(|error| explain(named, error))
    }
}

/// Inspects a file or folder. Parses it if it is a saved image. Blocks.
fn inspect_source(path: PathBuf, real: &Path) -> Result<Source, BadImage> {
    let local = local::inspect(real).map_err(BadImage::Refused)?;
    if !local.saved {
        let name = format!("{}-{READY_VERSION}", local.hash);
        return Ok(Source { path, local, name, saved: None });
    }
    let container = if local.folder { Container::folder(real)? } else { Container::archive(real)? };
    let saved = Saved::read(&container, architecture())?;
    let name = format!("{}-{READY_VERSION}", saved.id.digits());
    Ok(Source { path, local, name, saved: Some((container, saved)) })
}

/// Creates the stored image atomically. Blocks.
fn unpack(folder: &Path, source: Source) -> Result<(), BadImage> {
    let (new, place) = (folder.join(format!(".new-{}", source.name)), folder.join(&source.name));
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(BadImage::Disk)?;
    // A start that was killed may have left the folder `.new-<name>`.
    layers::remove_tree(&new).map_err(BadImage::Disk)?;
    let made = fill(&new, source).and_then(|()| {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(&new, flags, Mode::empty())
            .and_then(syncfs)
            .and_then(|()| renameat_with(CWD, &new, CWD, &place, RenameFlags::NOREPLACE))
            .map_err(|error| BadImage::Disk(error.into()))
    });
    made.inspect_err(|_| drop(layers::remove_tree(&new)))
}

fn fill(new: &Path, source: Source) -> Result<(), BadImage> {
    DirBuilder::new().mode(0o700).create(new).map_err(BadImage::Disk)?;
    let root = new.join(ROOT);
    let config = match &source.saved {
        Some((container, saved)) => {
            DirBuilder::new().mode(0o755).create(&root).map_err(BadImage::Disk)?;
            let (mut tree, mut budget) = (Tree::new(&root)?, Budget::full());
            for one in &saved.layers {
                layer::read(container, one, &mut budget, |content| tree.put(&one.name, content))?;
            }
            let bytes = tree.bytes();
            return finish(tree, new, &source, saved.config.clone(), bytes);
        }
        None => Config::default(),
    };
    if source.local.folder {
        // If root copies a folder, the copies belong to root, because no bottle runs as root. An ordinary user owns all
        // copies in any case.
        let owner = rustix::process::geteuid().is_root().then_some(0);
        let copied = tree_into(&source.local.path, new, ROOT, owner).map_err(BadImage::Disk)?;
        finish(Tree::new(&root)?, new, &source, config, copied.size)
    } else {
        DirBuilder::new().mode(0o755).create(&root).map_err(BadImage::Disk)?;
        let mut tree = Tree::new(&root)?;
        let archive = File::open(&source.local.path)
            .map_err(|error| BadImage::refused(format!("cannot be read: {error}")))?;
        layer::plain(archive, &mut Budget::full(), |content| tree.put("the archive", content))?;
        let bytes = tree.bytes();
        finish(tree, new, &source, config, bytes)
    }
}

fn finish(tree: Tree, new: &Path, source: &Source, config: Config, bytes: u64) -> Result<(), BadImage> {
    let account = ready::make(&tree, &config.user)?;
    tree.settle()?;
    let facts = Facts {
        account,
        left_out: config.left_out(),
        env: config.env,
        source: source.path.clone(),
        made_at: Timestamp::now(),
        bytes,
    };
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(new.join(FACTS));
    let text = serde_json::to_vec(&facts).map_err(|error| BadImage::Disk(error.into()))?;
    file.and_then(|mut file| file.write_all(&text)).map_err(BadImage::Disk)
}

/// This machine's processor architecture, as container engines spell it.
pub(super) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
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
            BackendError::failed(format!("cannot unpack {named}: the disk is full"))
                .with_hint("free some space; `bottle cleanup` removes unused images")
        }
        error @ BadImage::Disk(_) => BackendError::failed(format!("{named} {error}")),
    }
}
