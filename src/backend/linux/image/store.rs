//! The images of a home: made once, found again, and removed when nothing needs them.
//!
//! An image that is there is whole: it is made beside its place and moved there in one step. Whoever starts a
//! bottle of it holds a lock on it until its bottle says by its files that it stands on it; whoever removes one
//! has to have it alone.

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
use crate::backend::image::local::Local;
use crate::backend::image::{building, local};
use crate::backend::linux::spec;
use crate::backend::local::freeze::IMAGES;
use crate::backend::local::{layers, tree_into};
use crate::backend::{BackendError, BackendErrorKind, Inside, Preview, ProgressSink, Step, Unused};
use crate::host::Host;
use crate::manifest::host_path;

/// [`Unused::kind`] of an image.
const IMAGE: &str = "image";

/// What is known of an image beside its files.
const FACTS: &str = "image.json";

/// Its files.
const ROOT: &str = "root";

/// Behind the digest in a name: how it is made ready. Another one makes every image anew.
const READY: &str = "1";

/// More than the facts of any image take.
const FACTS_MAX: u64 = 1 << 20;

/// Beginnings of the names of what is not whole.
const RESTS: [&str; 2] = [".new-", ".old-"];

/// What may be named in `agent_provider.image`.
const WANTED: &str =
    "it must be a folder or a tar archive in $BOTTLE_HOME, of a file system or from `docker save`";

/// `image.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Facts {
    /// Who the agent is.
    account: Account,
    /// `ENV`, as `NAME=value`.
    env: Vec<String>,
    /// Instructions that have no effect.
    left_out: Vec<String>,
    /// What it was made of, below `$BOTTLE_HOME`.
    source: PathBuf,
    made_at: Timestamp,
    /// Bytes of all files.
    bytes: u64,
}

/// An image that is there.
#[derive(Debug)]
pub(in crate::backend::linux) struct Image {
    /// Its name: nobody else's.
    pub(in crate::backend::linux) name: String,
    /// Its files, which nobody writes to.
    pub(in crate::backend::linux) root: PathBuf,
    /// What is known of it.
    facts: Facts,
}

impl Image {
    fn notes(&self) -> Vec<String> {
        // What a volume would hold is in the bottle's own layer, as everything is.
        notes(&self.facts.left_out, &[])
    }

    /// Who the agent is in it.
    pub(in crate::backend::linux) fn inside(&self) -> spec::Inside {
        spec::Inside { uid: self.facts.account.uid, gid: self.facts.account.gid }
    }

    fn described(&self) -> Inside {
        let Account { name, uid, gid, home } = self.facts.account.clone();
        Inside { image: self.name.clone(), uid, gid, user: name, home, env: variables(&self.facts.env) }
    }
}

/// The images of a home.
#[derive(Debug)]
pub(in crate::backend::linux) struct Images {
    host: Host,
    folder: PathBuf,
    /// Keep what this process has found from being removed.
    held: Mutex<Vec<File>>,
}

/// What lies at a path, and how an image of it is called.
struct Source {
    /// As the manifest has it.
    path: PathBuf,
    local: Local,
    name: String,
    /// A saved image's own words.
    saved: Option<(Container, Saved)>,
}

impl Images {
    /// Of this home. Looks at nothing yet.
    pub(in crate::backend::linux) fn new(host: &Host) -> Self {
        Self { host: host.clone(), folder: host.home.join(IMAGES), held: Mutex::default() }
    }

    /// What a user should see before the image at this path is made, and what of it has no effect.
    ///
    /// # Errors
    /// [`BackendError`] when no bottle can be made of it, as far as that is known by now.
    pub(in crate::backend::linux) async fn preview(&self, path: &Path) -> Result<Preview, BackendError> {
        let (named, source) = (named(path), self.look(path).await?);
        let mut preview = Preview::default();
        match self.find(&source.name).map_err(|error| unreadable(&named, &error))? {
            Some(image) => preview.notes = image.notes(),
            None => preview.makes.push(format!("{named} is unpacked: it was not yet, or changed since")),
        }
        Ok(preview)
    }

    /// The image of what lies at this path, unpacked when it is not there; what of it has no effect.
    ///
    /// # Errors
    /// [`BackendError`] when no bottle can be made of it; then there is nothing of it.
    pub(in crate::backend::linux) async fn prepare(
        &self,
        path: &Path,
        told: &ProgressSink<Step>,
    ) -> Result<(Inside, Vec<String>), BackendError> {
        let (named, source) = (named(path), self.look(path).await?);
        let failed = |error: io::Error| unreadable(&named, &error);
        let name = source.name.clone();
        let image = match self.hold(&name).map_err(failed)? {
            Some(image) => image,
            None => {
                let _alone = building::begin(&self.host, &name, &named, told).await?;
                if self.find(&name).map_err(failed)?.is_none() {
                    told.tell(Step { of: named.clone(), line: "unpacking it".to_owned(), begins: true });
                    self.make(source, &named).await?;
                }
                let gone = || BackendError::failed(format!("{named} was removed while it was made ready"));
                self.hold(&name).map_err(failed)?.ok_or_else(gone)?
            }
        };
        Ok((image.described(), image.notes()))
    }

    /// The image of this name, kept from being removed while this process lives.
    ///
    /// # Errors
    /// When it is there and cannot be read.
    pub(in crate::backend::linux) fn hold(&self, name: &str) -> io::Result<Option<Image>> {
        let Some(lock) = self.lock(name)? else { return Ok(None) };
        lock.lock_shared()?;
        // Whoever removes it moves it away while it is theirs alone.
        if !self.is_at_its_place(name, &lock)? {
            return Ok(None);
        }
        let found = self.find(name)?;
        self.held.lock().unwrap_or_else(PoisonError::into_inner).push(lock);
        Ok(found)
    }

    /// Images that no bottle and no snapshot stands on and that another has taken the place of, or whose source is
    /// gone; and what unpackings left that were killed, unless one goes on.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub(in crate::backend::linux) fn unused(&self, used: &[String]) -> io::Result<Vec<Unused>> {
        let mut found = Vec::new();
        let rests: Vec<String> = self.entries()?.into_iter().filter(|entry| is_rest(entry)).collect();
        // Only then, as it writes to a home that may be for reading.
        if !rests.is_empty()
            && let Some(_alone) = building::none_goes_on(&self.host)?
        {
            found.extend(
                rests.into_iter().map(|id| unused(id, "was being unpacked by a start that was killed", None)),
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

    /// Removes these, but for what has come into use, and answers with those that are gone. `used` is asked when no
    /// start can come to use another one.
    ///
    /// # Errors
    /// When one cannot be removed.
    pub(in crate::backend::linux) fn remove(
        &self,
        doomed: Vec<Unused>,
        used: impl Fn() -> io::Result<Vec<String>>,
    ) -> io::Result<Vec<Unused>> {
        let mut removed = Vec::new();
        for one in doomed {
            let gone = match is_rest(&one.id) {
                true => match building::none_goes_on(&self.host)? {
                    Some(_alone) => layers::demolish(&self.folder.join(&one.id)).map(|()| true)?,
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
        if lock.try_lock().is_err()
            || !self.is_at_its_place(name, &lock)?
            || used()?.contains(&name.to_owned())
        {
            return Ok(false);
        }
        let old = self.folder.join(format!(".old-{name}"));
        layers::demolish(&old)?;
        fs::rename(self.folder.join(name), &old)?;
        layers::demolish(&old)?;
        Ok(true)
    }

    #[cfg(test)]
    pub(super) fn host_of_tests(&self) -> Host {
        self.host.clone()
    }

    /// What lies at this path of the home.
    async fn look(&self, path: &Path) -> Result<Source, BackendError> {
        let named = named(path);
        let wrong = |why: String| BackendError::failed(format!("{named} {why}")).with_hint(WANTED);
        let real = host_path::real_within(&self.host.home, path).map_err(wrong)?;
        let path = path.to_owned();
        let looked = off_the_loop(move || source_of(path, &real)).await?;
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

    /// The file by which an image is held.
    fn lock(&self, name: &str) -> io::Result<Option<File>> {
        if !is_name(name) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} is no image's name")));
        }
        match File::open(self.folder.join(name).join(FACTS)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            file => file.map(Some),
        }
    }

    fn is_at_its_place(&self, name: &str, lock: &File) -> io::Result<bool> {
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
        // A user may have put something else there.
        Ok(names.filter_map(|name| self.find(&name).ok().flatten()).collect())
    }

    async fn make(&self, source: Source, named: &str) -> Result<(), BackendError> {
        let folder = self.folder.clone();
        let made = off_the_loop(move || unpack(&folder, source)).await?;
        made.map_err(|error| explain(named, error))
    }
}

/// Looks at a file or folder, and at what a saved image says of itself. Blocks.
fn source_of(path: PathBuf, real: &Path) -> Result<Source, BadImage> {
    let local = local::look(real).map_err(BadImage::Refused)?;
    if !local.saved {
        let name = format!("{}-{READY}", local.hash);
        return Ok(Source { path, local, name, saved: None });
    }
    let container = if local.folder { Container::folder(real)? } else { Container::archive(real)? };
    let saved = Saved::read(&container, architecture())?;
    let name = format!("{}-{READY}", saved.id.digits());
    Ok(Source { path, local, name, saved: Some((container, saved)) })
}

/// Makes the image, whole or not at all. Blocks.
fn unpack(folder: &Path, source: Source) -> Result<(), BadImage> {
    let (new, place) = (folder.join(format!(".new-{}", source.name)), folder.join(&source.name));
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(BadImage::Disk)?;
    // Of a start that was killed.
    layers::demolish(&new).map_err(BadImage::Disk)?;
    let made = fill(&new, source).and_then(|()| {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(&new, flags, Mode::empty())
            .and_then(syncfs)
            .and_then(|()| renameat_with(CWD, &new, CWD, &place, RenameFlags::NOREPLACE))
            .map_err(|error| BadImage::Disk(error.into()))
    });
    made.inspect_err(|_| drop(layers::demolish(&new)))
}

fn fill(new: &Path, source: Source) -> Result<(), BadImage> {
    DirBuilder::new().mode(0o700).create(new).map_err(BadImage::Disk)?;
    let root = new.join(ROOT);
    let config = match &source.saved {
        Some((container, saved)) => {
            DirBuilder::new().mode(0o755).create(&root).map_err(BadImage::Disk)?;
            let (mut tree, mut budget) = (Tree::new(&root)?, Budget::whole());
            for one in &saved.layers {
                layer::read(container, one, &mut budget, |content| tree.put(&one.name, content))?;
            }
            let bytes = tree.bytes();
            return finish(tree, new, &source, saved.config.clone(), bytes);
        }
        None => Config::default(),
    };
    if source.local.folder {
        // Nobody but root can give a file away, and root's copies are root's: no bottle is root.
        let owner = rustix::process::geteuid().is_root().then_some(0);
        let copied = tree_into(&source.local.path, new, ROOT, owner).map_err(BadImage::Disk)?;
        finish(Tree::new(&root)?, new, &source, config, copied.size)
    } else {
        DirBuilder::new().mode(0o755).create(&root).map_err(BadImage::Disk)?;
        let mut tree = Tree::new(&root)?;
        let archive = File::open(&source.local.path)
            .map_err(|error| BadImage::refused(format!("cannot be read: {error}")))?;
        layer::plain(archive, &mut Budget::whole(), |content| tree.put("the archive", content))?;
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

/// This machine's processor, in an engine's word.
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

fn is_rest(name: &str) -> bool {
    RESTS.iter().any(|beginning| name.strip_prefix(beginning).is_some_and(is_name))
}

fn unused(id: String, why: &str, bytes: Option<u64>) -> Unused {
    Unused { kind: IMAGE.to_owned(), id, why: why.to_owned(), bytes }
}

fn named(path: &Path) -> String {
    format!("the image ./{}", path.display())
}

fn unreadable(named: &str, error: &io::Error) -> BackendError {
    BackendError::failed(format!("{named}, as it was unpacked, cannot be read: {error}"))
}

fn explain(named: &str, error: BadImage) -> BackendError {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    match error {
        BadImage::Refused(why) => BackendError {
            kind: BackendErrorKind::Unsupported,
            message: format!("{named} {why}"),
            hint: Some(WANTED.to_owned()),
        },
        BadImage::Disk(error) if matches!(error.kind(), StorageFull | QuotaExceeded) => {
            BackendError::failed(format!("{named} cannot be unpacked: the disk is full"))
                .with_hint("free some space; `bottle cleanup` removes images that nothing needs")
        }
        error @ BadImage::Disk(_) => BackendError::failed(format!("{named} {error}")),
    }
}

async fn off_the_loop<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, BackendError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| BackendError::failed(format!("a task of the backend died: {error}")))
}
