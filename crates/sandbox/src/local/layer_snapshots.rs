//! Stores and restores snapshots of a bottle's layers in `$BOTTLE_HOME/snapshots/<slug>/<reference>/`.
//!
//! ```text
//!   .new-<reference>/    a snapshot being created; renamed when it is complete and on disk
//!   <reference>/         home/, workspace/, git-objects/ and snapshot.json; for a bottle with an image, upper/ with
//!                        its changes (or root/, its copy of the image) instead of home/
//!   .old-<reference>/    a snapshot being removed, or the layers of a bottle that ended
//! ```
//! A restore writes to `.thaw-<layers>/` in the bottle's state directory. When this directory is complete, the restore
//! exchanges it with the layers. After a crash, [`leftovers`] lists the directories whose names begin with a dot, and
//! they are removed like other resources. The snapshots of a bottle share unchanged files by hard links. This module
//! never writes to the files of a snapshot. The layers never share files with a snapshot, except read-only git objects
//! ([`git_objects`]).

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bottle_backend::runtime_directory;
use bottle_backend::trees::copy::stamps::{self, Stamps};
use bottle_backend::trees::copy::{Copier, Outcome};
use bottle_backend::trees::git_objects::Reader;
use bottle_backend::trees::{explain, git_objects, open_directory, remove_tree};
use bottle_backend::{BackendError, MadeSnapshot, NewSnapshot, ProgressSink, Snapshot};
use bottle_guest::file_clock;
use bottle_policy::names::{Name, Slug};
use jiff::Timestamp;
use rustix::fs::{CWD, FlockOperation, OFlags, RenameFlags, renameat_with, syncfs};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::layers::{Kind, OBJECTS};
use super::{Scope, layers};

/// The [`bottle_backend::Resource::kind`] of a directory that an interrupted snapshot, restore or removal left.
pub(crate) const LEFTOVER: &str = "snapshot-rest";

/// The name prefixes of incomplete directories.
const LEFTOVER_PREFIXES: [&str; 3] = [".new-", ".old-", ".thaw-"];

/// The name of the directory that contains a home's images.
pub(crate) const IMAGES: &str = "images";

/// The name of a snapshot's metadata file.
const FACTS: &str = "snapshot.json";

/// The file system type of a tmpfs (`statfs(2)`).
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// The maximum number of bytes read of `snapshot.json`. A valid file is shorter. A longer file is treated as
/// unreadable.
const FACTS_MAX: u64 = 4096;

/// The content of `snapshot.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Facts {
    made_at: Timestamp,
    bytes: u64,
    /// The image that the files are based on.
    #[serde(default)]
    image: Option<String>,
    /// See [`Snapshot::name`].
    #[serde(default)]
    name: Option<Name>,
    /// See [`Snapshot::parent`].
    #[serde(default)]
    parent: Option<String>,
}

impl Facts {
    fn into_snapshot(self, slug: &Slug, reference: String) -> Snapshot {
        let Self { made_at, bytes, image: _, name, parent } = self;
        Snapshot { slug: slug.clone(), reference, made_at, bytes: Some(bytes), name, parent }
    }
}

impl Scope {
    /// Replaces the layers with a copy of the snapshot. If root restores the snapshot, `owner` owns the copied files.
    /// The replacement is atomic if the file system can exchange directories.
    pub(crate) async fn restore_snapshot(
        &self,
        state: &Path,
        snapshot: &Snapshot,
        owner: Option<u32>,
        progress: ProgressSink,
    ) -> Result<(), BackendError> {
        let (state, snapshot) = (state.to_owned(), snapshot.clone());
        self.run_blocking(move |scope| {
            restore(scope, &state, &snapshot, owner, &progress).map_err(|error| {
                if error.kind() == io::ErrorKind::NotFound && !directory_of(scope, &snapshot).is_dir() {
                    return BackendError::failed(format!("the snapshot of {} was removed", snapshot.slug))
                        .with_hint("`bottle resume` again starts without it");
                }
                explain(format!("cannot restore the snapshot of {}", snapshot.slug), error)
            })
        })
        .await
    }
}

/// Lists the images on which the bottles of this scope and their snapshots are based.
pub(crate) fn images_in_use(scope: &Scope) -> io::Result<Vec<String>> {
    let mut used = Vec::new();
    for (slug, _) in runtime_directory::find(&scope.state)? {
        used.extend(scope.layers(&slug).image()?);
    }
    for (_, directory) in runtime_directory::find(&scope.snapshots)? {
        for reference in entries(&directory)? {
            used.extend(read_facts(&directory.join(&reference))?.and_then(|facts| facts.image));
        }
    }
    Ok(used)
}

/// Lists the directories that interrupted snapshots, restores and removals left behind, for all bottles. Excludes
/// directories that another process is removing.
pub(crate) fn leftovers(scope: &Scope) -> io::Result<Vec<(Slug, PathBuf)>> {
    let mut found = Vec::new();
    for parent in [&scope.snapshots, &scope.state] {
        for (slug, directory) in runtime_directory::find(parent)? {
            for entry in entries(&directory)? {
                if is_leftover(&entry) && !is_being_removed(&directory.join(&entry)) {
                    found.push((slug.clone(), directory.join(entry)));
                }
            }
        }
    }
    Ok(found)
}

/// Whether a process runs [`remove_leftover`] on this directory.
fn is_being_removed(path: &Path) -> bool {
    open_directory(path).is_ok_and(|directory| {
        rustix::fs::flock(&directory, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
    })
}

/// Whether [`leftovers`] can return this path for this bottle.
pub(crate) fn is_leftover_of(scope: &Scope, slug: &Slug, path: &Path) -> bool {
    let parents = [scope.snapshots.join(slug.as_str()), scope.state.join(slug.as_str())];
    let named = path.file_name().and_then(|name| name.to_str()).is_some_and(is_leftover);
    named && path.parent().is_some_and(|parent| parents.iter().any(|own| own == parent))
}

/// Moves the layers of a bottle to a directory that [`leftovers`] lists. Returns the path of this directory, or `None`
/// if there are no layers.
///
/// # Errors
/// When the directory cannot be moved, for example to another file system.
pub(crate) fn move_away(scope: &Scope, slug: &Slug, layers: &Path) -> io::Result<Option<PathBuf>> {
    let own = scope.snapshots.join(slug.as_str());
    DirBuilder::new().recursive(true).mode(0o700).create(&own)?;
    let away = own.join(format!(".old-{}", reference_of(Timestamp::now())));
    // The rename cannot replace another directory, because a directory of layers is not empty.
    let moved = match fs::rename(layers, &away) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        moved => moved.map(|()| Some(away)),
    };
    if !matches!(moved, Ok(Some(_))) {
        let _ = fs::remove_dir(&own);
    }
    moved
}

/// Removes a directory that [`leftovers`] lists. If another process is already removing the directory, waits until that
/// removal has ended.
///
/// # Errors
/// When an entry cannot be removed.
pub(crate) fn remove_leftover(scope: &Scope, path: &Path) -> io::Result<()> {
    let directory = match open_directory(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        directory => directory?,
    };
    // On a file system without locks, this removal does not wait for another removal.
    let _ = rustix::fs::flock(&directory, FlockOperation::LockExclusive);
    remove_tree(path)?;
    // The bottle's snapshot directory is removed after its last entry.
    if let Some(own) = path.parent().filter(|own| own.parent() == Some(scope.snapshots.as_path())) {
        let _ = fs::remove_dir(own);
    }
    Ok(())
}

fn is_leftover(name: impl AsRef<str>) -> bool {
    LEFTOVER_PREFIXES.iter().any(|beginning| name.as_ref().starts_with(beginning))
}

fn directory_of(scope: &Scope, snapshot: &Snapshot) -> PathBuf {
    scope.snapshots.join(snapshot.slug.as_str()).join(&snapshot.reference)
}

/// Makes a snapshot of a bottle, as [`bottle_backend::Snapshots::make_snapshot`] does.
pub(super) fn store(
    scope: &Scope,
    slug: &Slug,
    NewSnapshot { name, parent, previous, .. }: NewSnapshot,
    progress: &ProgressSink,
) -> io::Result<MadeSnapshot> {
    let unchanged_since = file_clock::before_any_change();
    let (snapshot, outcome) = create(scope, slug, |new, made_at| {
        let outcome = fill(scope, slug, previous.as_ref(), progress, new)?;
        let image = scope.layers(slug).image()?;
        Ok::<_, io::Error>((Facts { made_at, bytes: outcome.size, image, name, parent }, outcome))
    })?;
    let unstable = outcome.unstable;
    write_stamps(&scope.layers(slug), &snapshot.reference, outcome, unchanged_since);
    Ok(MadeSnapshot { snapshot, has_workspace: true, notes: notes(unstable) })
}

/// Creates a snapshot without a name. `fill` puts the files into the snapshot's directory and returns their size in
/// bytes. `image` is the name of the image on which the files are based.
///
/// # Errors
/// The error of `fill`, or an error when the snapshot cannot be written. After an error, no part of the snapshot
/// exists.
pub(super) fn add<E: From<io::Error>>(
    scope: &Scope,
    slug: &Slug,
    image: Option<String>,
    fill: impl FnOnce(&Path) -> Result<u64, E>,
) -> Result<Snapshot, E> {
    let created = create(scope, slug, |new, made_at| {
        let bytes = fill(new)?;
        Ok((Facts { made_at, bytes, image, name: None, parent: None }, ()))
    });
    created.map(|(snapshot, ())| snapshot)
}

/// Creates a snapshot atomically and durably. `fill` puts the snapshot's files into an empty directory.
fn create<T, E: From<io::Error>>(
    scope: &Scope,
    slug: &Slug,
    fill: impl FnOnce(&Path, Timestamp) -> Result<(Facts, T), E>,
) -> Result<(Snapshot, T), E> {
    let own = scope.snapshots.join(slug.as_str());
    DirBuilder::new().recursive(true).mode(0o700).create(&own)?;
    let made_at = Timestamp::now();
    let reference = reference_of(made_at);
    let new = own.join(format!(".new-{reference}"));
    let filled = DirBuilder::new().mode(0o700).create(&new).map_err(E::from);
    let stored = filled.and_then(|()| fill(&new, made_at)).and_then(|(facts, result)| {
        write_facts(&new, &facts)?;
        syncfs(open_directory(&new)?).map_err(io::Error::from)?;
        // The rename cannot replace an existing snapshot, because a snapshot is a directory that is not empty.
        fs::rename(&new, own.join(&reference))?;
        Ok((facts, result))
    });
    let (facts, result) = stored.inspect_err(|_| {
        drop(remove_tree(&new));
        // If the bottle has other snapshots, this call fails, because the directory is not empty.
        drop(fs::remove_dir(&own));
    })?;
    Ok((facts.into_snapshot(slug, reference), result))
}

/// Returns the directory of a snapshot, the kind of its layers, and the name of the image on which the layers are
/// based.
///
/// # Errors
/// When the snapshot does not exist.
pub(super) fn stored(scope: &Scope, snapshot: &Snapshot) -> io::Result<(OwnedFd, Kind, Option<String>)> {
    if !is_reference(&snapshot.reference) {
        return Err(foreign());
    }
    let directory = directory_of(scope, snapshot);
    let kind = Kind::detect(&directory).ok_or(io::ErrorKind::NotFound)?;
    let image = read_facts(&directory)?.and_then(|facts| facts.image);
    Ok((open_directory(&directory)?, kind, image))
}

fn fill(
    scope: &Scope,
    slug: &Slug,
    previous: Option<&Snapshot>,
    progress: &ProgressSink,
    new: &Path,
) -> io::Result<Outcome> {
    let live = scope.layers(slug);
    let from = open_directory(live.directory())?;
    let to = open_directory(new)?;
    let previous = previous.filter(|previous| is_reference(&previous.reference) && !hides_writes(&from));
    let unchanged = previous.and_then(|previous| Stamps::read(&live.stamps(), &previous.reference));
    let previous = previous.and_then(|previous| open_directory(&directory_of(scope, previous)).ok());
    let mut copier = Copier::storing(unchanged.as_ref(), progress);
    // Only the trees of the layers' kind are copied. The directory of the layers can contain other files, because the
    // fake backend's guest uses this directory as its root.
    for tree in live.kind().ok_or(io::ErrorKind::NotFound)?.trees() {
        copier.tree(&from, &to, previous.as_ref(), tree)?;
    }
    let mut outcome = copier.finish();
    outcome.size += share_objects(live.directory(), new)?;
    Ok(outcome)
}

/// Shares the git objects of the layers in `from` with the layers in `to`. Returns the size of the objects in bytes.
fn share_objects(from: &Path, to: &Path) -> io::Result<u64> {
    let objects = from.join(OBJECTS);
    if !objects.is_dir() {
        return Ok(0);
    }
    git_objects::share_all(&objects, &to.join(OBJECTS), Reader::Starter)
}

/// Whether writes to files may leave the files' time stamps unchanged. A tmpfs does not change the time stamps when a
/// file is written through a memory mapping.
fn hides_writes(directory: &OwnedFd) -> bool {
    rustix::fs::fstatfs(directory).is_ok_and(|found| found.f_type == TMPFS_MAGIC)
}

fn restore(
    scope: &Scope,
    state: &Path,
    snapshot: &Snapshot,
    owner: Option<u32>,
    progress: &ProgressSink,
) -> io::Result<()> {
    if !is_reference(&snapshot.reference) {
        return Err(foreign());
    }
    let layers = scope.layers_in(state);
    let name = layers.directory().file_name().unwrap_or_default().to_string_lossy().into_owned();
    let restored = state.join(format!(".thaw-{name}"));
    // A launch that was killed may have left the directory `.thaw-<layers>`.
    remove_tree(&restored)?;
    let stored = directory_of(scope, snapshot);
    let from = open_directory(&stored)?;
    DirBuilder::new().mode(0o700).create(&restored)?;
    let filled = open_directory(&restored).and_then(|to| {
        let kind = Kind::detect(&stored).ok_or(io::ErrorKind::NotFound)?;
        let mut copier = Copier::restoring(owner, progress);
        kind.trees().iter().try_for_each(|tree| copier.tree(&from, &to, None, tree))?;
        let new = layers::Layers::new(restored.clone());
        if let Some(image) = read_facts(&stored)?.and_then(|facts| facts.image) {
            new.set_image(&image)?;
        }
        new.make(kind, owner)?;
        share_objects(&stored, &restored)?;
        Ok(copier.finish())
    });
    let outcome = filled.inspect_err(|_| drop(remove_tree(&restored)))?;
    stamps::remove(&layers.stamps())?;
    exchange(&restored, layers.directory())?;
    // No process has written to the layers yet, because the guest starts later.
    write_stamps(&layers, &snapshot.reference, outcome, file_clock::between_blocking());
    remove_tree(&restored)
}

/// Exchanges the directories `new` and `old`. If `old` does not exist, renames `new` to `old`.
fn exchange(new: &Path, old: &Path) -> io::Result<()> {
    match renameat_with(CWD, new, CWD, old, RenameFlags::EXCHANGE) {
        Err(Errno::NOENT) => fs::rename(new, old),
        // The file system cannot exchange directories. After a crash between the removal and the rename, `old` does not
        // exist, and the next launch restores the snapshot again.
        Err(Errno::INVAL | Errno::NOSYS) => {
            remove_tree(old)?;
            fs::rename(new, old)
        }
        done => Ok(done?),
    }
}

/// Records which files of the layers are stored in the snapshot `reference`. If the record cannot be written, the next
/// snapshot copies all files.
fn write_stamps(layers: &layers::Layers, reference: &str, outcome: Outcome, unchanged_since: Timestamp) {
    let stamps = Stamps::new(reference, outcome.stamps, unchanged_since);
    if let Err(error) = stamps.write(&layers.stamps()) {
        tracing::warn!("{}: {error}", layers.stamps().display());
    }
}

/// Lists the complete snapshots, as [`bottle_backend::Snapshots::snapshots`] does.
pub(super) fn list(scope: &Scope) -> io::Result<Vec<Snapshot>> {
    let mut found = Vec::new();
    for (slug, directory) in runtime_directory::find(&scope.snapshots)? {
        for reference in entries(&directory)? {
            let stored = directory.join(&reference);
            if !is_reference(&reference) || !stored.is_dir() {
                continue;
            }
            found.push(match read_facts(&stored)? {
                Some(facts) => facts.into_snapshot(&slug, reference),
                None => Snapshot {
                    slug: slug.clone(),
                    reference,
                    made_at: Timestamp::UNIX_EPOCH,
                    bytes: None,
                    name: None,
                    parent: None,
                },
            });
        }
    }
    // A reference begins with the time of the snapshot, so the order of the references is the order in time.
    found.sort_by(|a, b| (&a.slug, &a.reference).cmp(&(&b.slug, &b.reference)));
    Ok(found)
}

/// Removes a snapshot, as [`bottle_backend::Snapshots::remove_snapshot`] does.
pub(super) fn delete(scope: &Scope, snapshot: &Snapshot) -> io::Result<()> {
    if !is_reference(&snapshot.reference) {
        return Err(foreign());
    }
    let stored = directory_of(scope, snapshot);
    let own = scope.snapshots.join(snapshot.slug.as_str());
    let old = own.join(format!(".old-{}", snapshot.reference));
    remove_tree(&old)?;
    match fs::rename(&stored, &old) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        moved => {
            moved?;
            remove_tree(&old)?;
        }
    }
    // The bottle's snapshot directory is removed after its last snapshot.
    let _ = fs::remove_dir(&own);
    Ok(())
}

fn foreign() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "it is not a snapshot name of this backend")
}

fn reference_of(made_at: Timestamp) -> String {
    format!("{}-{:06}", made_at.strftime("%Y%m%d-%H%M%S"), made_at.subsec_microsecond())
}

fn is_reference(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
}

fn entries(directory: &Path) -> io::Result<Vec<String>> {
    let names = fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name().into_string().ok()));
    names.filter_map(Result::transpose).collect()
}

fn write_facts(directory: &Path, facts: &Facts) -> io::Result<()> {
    let mut file =
        fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(directory.join(FACTS))?;
    io::Write::write_all(&mut file, &serde_json::to_vec(facts)?)
}

/// Reads the metadata of a snapshot. Returns `None` if the metadata is missing or unreadable, because the files of the
/// snapshot can still be used.
fn read_facts(directory: &Path) -> io::Result<Option<Facts>> {
    use io::Read;
    // A snapshot may come from another machine, so the path could be a named pipe or a link. Opening a named pipe would
    // block, and a link could point to another file.
    let opened = fs::OpenOptions::new()
        .read(true)
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed())
        .open(directory.join(FACTS));
    let file = match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => return Ok(None),
        file => file?,
    };
    if !file.metadata()?.is_file() {
        return Ok(None);
    }
    let mut text = Vec::new();
    file.take(FACTS_MAX).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text).ok())
}

fn notes(unstable: u64) -> Vec<String> {
    let changed = match unstable {
        0 => return Vec::new(),
        1 => "1 file or directory changed while it was copied".to_owned(),
        many => format!("{many} files or directories changed while they were copied"),
    };
    vec![format!("{changed}; commit again while the agent is quiet for an exact copy")]
}
