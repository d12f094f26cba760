//! Claims, reads, lists and writes the bottles' directories in `$BOTTLE_HOME/state`.

use std::collections::HashSet;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bottle_backend::{BackendError, Origin, Resource, ResourceLog};
use bottle_host::causes;
use bottle_host::file_lock::FileLock;
use bottle_host::files::{self, FileError, Filled};
use bottle_host::{Host, disk, temporary};
use bottle_policy::names::Slug;
use rustix::io::Errno;

use super::committed::{self, CommittedList};
use super::record::{Record, SCHEMA, Status};
use super::usage::{self, Labels};

/// The size limit of a record in bytes. A larger file is treated as damaged.
const RECORD_MAX: u64 = 1 << 20;

/// The name prefix of a directory that is being claimed or removed. If the lock of such a directory is free, its
/// process was killed and the directory is an orphan.
const STAGING_PREFIX: &str = ".new-";

/// The file that contains the resolved manifest with which the bottle was started.
const MANIFEST: &str = "manifest.yml";

/// The maximum number of bytes that are read from a resolved manifest. The rest of a larger manifest is ignored. Each
/// file from which the manifest was resolved may have at most 1 MiB.
const MANIFEST_MAX: u64 = 16 << 20;

/// How long a command waits for another command that uses the files of a kept bottle. The other command may be removing
/// a container, which takes a few seconds on a busy engine.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);

/// The file that marks a bottle's directory as kept. While the record's status is also [`Status::Kept`], no
/// cleanup removes the directory.
const KEPT: &str = ".preserve";

/// The state directories of all bottles of one home.
#[derive(Debug, Clone)]
pub struct Store {
    root: PathBuf,
}

/// A bottle's directory and state.
#[derive(Debug, Clone)]
pub struct Listed {
    /// The name of the bottle's directory.
    pub slug: Slug,
    /// The state of the bottle.
    pub state: State,
}

/// The state of a bottle's directory.
#[derive(Debug, Clone)]
pub enum State {
    /// A process holds the bottle's lock: the bottle's keeper, or briefly a cleanup.
    Alive(Box<Record>),
    /// The bottle has no keeper and is not kept.
    Dead(Box<Record>),
    /// The bottle ended and has unsaved work or a snapshot. A process may hold the bottle's lock: the keeper of a
    /// command that reads or changes the bottle's files, or briefly another command.
    Kept(Box<Record>),
    /// The record cannot be read. The string is the cause, as a sentence fragment.
    Damaged(String),
    /// A newer version wrote the record. The number is the schema version.
    Newer(u32),
}

/// Why a slug cannot be claimed.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Another bottle or process already has the slug.
    #[error("{slug} is taken: {by}")]
    Taken {
        /// The bottle's slug.
        slug: Slug,
        /// The bottle or process that has the slug.
        by: Holder,
    },
    /// The state directory cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
}

impl ClaimError {
    /// Returns what the user can do next.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Taken { slug, by: Holder::Running | Holder::Process } => {
                format!("choose another --label, or `bottle attach {slug}`")
            }
            Self::Taken { .. } => "choose another --label, or see `bottle cleanup`".to_owned(),
            Self::File(error) => error.hint().to_owned(),
        }
    }
}

/// The bottle or process that has a slug.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Holder {
    /// A running bottle.
    #[error("a bottle of that name runs")]
    Running,
    /// A kept bottle.
    #[error("a bottle of that name is kept")]
    Kept,
    /// The remains of a bottle that was not cleaned up.
    #[error("a bottle of that name was left behind")]
    Remains,
    /// The bottle's keeper, or another process that holds the bottle's lock.
    #[error("it runs")]
    Process,
    /// A command that works with the files of a kept bottle.
    #[error("another command uses its files")]
    Command,
}

impl Store {
    /// Creates the store of this home. Does no I/O.
    #[must_use]
    pub fn of(host: &Host) -> Self {
        Self { root: host.state() }
    }

    /// Returns the path of a bottle's directory, which may not exist.
    #[must_use]
    pub fn directory(&self, slug: &Slug) -> PathBuf {
        self.root.join(slug.as_str())
    }

    /// Lists every bottle, sorted by slug. A directory that cannot be read is listed as damaged. A missing state
    /// directory means that there are no bottles.
    ///
    /// # Errors
    /// Fails if the state directory exists but cannot be listed.
    pub fn list(&self) -> Result<Vec<Listed>, FileError> {
        let mut listed: Vec<Listed> = self
            .names()?
            .into_iter()
            .filter_map(|name| name.parse::<Slug>().ok())
            .map(|slug| Listed { state: self.state(&slug).unwrap_or_else(vanished), slug })
            .collect();
        listed.sort_by(|a, b| a.slug.cmp(&b.slug));
        Ok(listed)
    }

    /// Like [`list`](Self::list), but without the bottles that run. Reads no record of a running bottle, because
    /// hundreds may run.
    ///
    /// # Errors
    /// Fails in the same cases as [`list`](Self::list).
    pub(super) fn list_ended(&self) -> Result<Vec<Listed>, FileError> {
        let slugs = self.names()?.into_iter().filter_map(|name| name.parse::<Slug>().ok());
        let ended = slugs.filter(|slug| {
            let directory = self.directory(slug);
            directory.join(KEPT).exists() || !lock_is_held(&directory)
        });
        let listed = ended.filter_map(|slug| Some(Listed { state: self.state(&slug)?, slug }));
        Ok(listed.filter(|listed| !matches!(listed.state, State::Alive(_))).collect())
    }

    /// Returns the ids of all launches that may still run. `None` if the launches are unknown.
    #[must_use]
    pub fn live_runs(&self) -> Option<HashSet<String>> {
        let mut runs = HashSet::new();
        for Listed { state, .. } in self.list().ok()? {
            match state {
                // A bottle whose keeper was killed may still run.
                State::Alive(record) | State::Dead(record) => runs.extend(record.run),
                State::Kept(_) => {}
                State::Newer(_) | State::Damaged(_) => return None,
            }
        }
        Some(runs)
    }

    /// Returns the state of one bottle. `None` if the bottle has no directory.
    #[must_use]
    pub fn state(&self, slug: &Slug) -> Option<State> {
        let directory = self.directory(slug);
        if !directory.is_dir() {
            return None;
        }
        let record = match read_record(&directory) {
            Ok(record) => Box::new(record),
            Err(Unreadable::Newer(schema)) => return Some(State::Newer(schema)),
            Err(error) => return Some(State::Damaged(causes::one_line(&error))),
        };
        // If a kept bottle is resumed, the marker file stays. The status in the record therefore decides too.
        let kept = directory.join(KEPT).exists() && record.status == Status::Kept;
        Some(if kept {
            State::Kept(record)
        } else if lock_is_held(&directory) {
            State::Alive(record)
        } else {
            State::Dead(record)
        })
    }

    /// Returns the resolved manifest with which the bottle was last started, in the form of
    /// [`bottle_manifest::resolve::comparable`]. `None` if the manifest is unknown.
    #[must_use]
    pub fn manifest(&self, slug: &Slug) -> Option<String> {
        let mut text = String::new();
        let file = File::open(self.directory(slug).join(MANIFEST)).ok()?;
        file.take(MANIFEST_MAX).read_to_string(&mut text).ok()?;
        Some(text)
    }

    /// Returns the snapshots of a bottle, whatever the bottle's state is.
    ///
    /// # Errors
    /// Fails in the same cases as [`committed::read`].
    pub fn snapshots(&self, slug: &Slug) -> io::Result<CommittedList> {
        committed::read(&self.directory(slug))
    }

    /// Whether a bottle has a snapshot. If `committed-image` cannot be read, the bottle is assumed to have one.
    #[must_use]
    pub fn has_snapshot(&self, slug: &Slug) -> bool {
        has_snapshot(&self.directory(slug))
    }

    /// Claims the record's slug by creating its directory. The returned claim holds the directory's lock. Replaces a
    /// bottle with that slug if it ended and left only logs.
    ///
    /// # Errors
    /// Returns [`ClaimError::Taken`] if a bottle in any other state has the slug. Nothing is then changed.
    pub fn claim(&self, record: Record) -> Result<Claim, ClaimError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| FileError::write(&path, disk::plain(source))
        };
        files::create_private_directory(&self.root).map_err(io(&self.root))?;
        let (staging, lock) = self.staging().map_err(io(&self.root))?;
        write_record(staging.path(), &record, must_be_durable(true, &record)).map_err(io(&self.root))?;
        let directory = self.directory(&record.slug);
        // The rename cannot replace a claimed directory, because that directory contains files. RENAME_NOREPLACE would
        // also prevent this, but network disks do not support it.
        let mut renamed = rustix::fs::rename(staging.path(), &directory);
        if renamed.is_err() && self.remove_ended(&record.slug) {
            renamed = rustix::fs::rename(staging.path(), &directory);
        }
        match renamed {
            Ok(()) => {
                let _ = staging.keep();
                Ok(Claim { directory, lock, new: true, record: Mutex::new(record) })
            }
            Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => Err(self.taken(record.slug)),
            Err(error) => Err(io(&directory)(error.into()).into()),
        }
    }

    /// Claims a bottle that is kept or whose keeper died.
    ///
    /// # Errors
    /// Returns [`ClaimError::Taken`] if another process holds the lock. Returns [`ClaimError::File`] if the record
    /// cannot be read.
    pub fn adopt(&self, slug: &Slug) -> Result<Claim, ClaimError> {
        let directory = self.directory(slug);
        let io = |source| FileError::write(&directory, source);
        let lock = open_lock(&directory).map_err(io)?;
        if !try_lock(&lock).map_err(io)? {
            let kept = matches!(self.state(slug), Some(State::Kept(_)));
            let by = if kept { Holder::Command } else { Holder::Process };
            return Err(ClaimError::Taken { slug: slug.clone(), by });
        }
        let record =
            read_record(&directory).map_err(|error| io(io::Error::other(causes::one_line(&error))))?;
        Ok(Claim { directory, lock: FileLock::of_locked(lock), new: false, record: Mutex::new(record) })
    }

    /// Whether a process holds the bottle's lock.
    #[must_use]
    pub fn is_locked(&self, slug: &Slug) -> bool {
        lock_is_held(&self.directory(slug))
    }

    /// Claims a bottle like [`Store::adopt`]. If a command uses the files of the kept bottle, waits for at most
    /// [`COMMAND_TIMEOUT`]: the command has often just printed its result, and its keeper is about to exit.
    ///
    /// # Errors
    /// Fails in the same cases as [`Store::adopt`].
    pub fn adopt_idle(&self, slug: &Slug) -> Result<Claim, ClaimError> {
        let end = Instant::now() + COMMAND_TIMEOUT;
        loop {
            match self.adopt(slug) {
                Err(ClaimError::Taken { by: Holder::Command, .. }) if Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                claimed => return claimed,
            }
        }
    }

    /// Lists the directories that killed processes left during a claim or a removal. Omits directories whose lock is
    /// held.
    ///
    /// # Errors
    /// Fails in the same cases as [`Store::list`].
    pub fn unfinished_claims(&self) -> Result<Vec<PathBuf>, FileError> {
        let staging = self.names()?.into_iter().filter(|name| name.starts_with(STAGING_PREFIX));
        Ok(staging.map(|name| self.root.join(name)).filter(|directory| !lock_is_held(directory)).collect())
    }

    /// Creates a temporary directory and locks it.
    fn staging(&self) -> io::Result<(tempfile::TempDir, FileLock)> {
        let directory = temporary::directory_in(&self.root, STAGING_PREFIX)?;
        let lock = open_lock(directory.path())?;
        // A reader may hold the lock of the new directory while it checks the directory. No other process can hold this
        // lock.
        lock.lock()?;
        Ok((directory, FileLock::of_locked(lock)))
    }

    /// Returns the names of the bottles' directories, and of the directories that are being claimed or removed.
    ///
    /// # Errors
    /// Fails in the same cases as [`Store::list`].
    pub(super) fn names(&self) -> Result<Vec<String>, FileError> {
        let failed = |source| FileError::read(&self.root, source);
        let entries = match fs::read_dir(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let mut names = Vec::new();
        for entry in entries {
            names.extend(entry.map_err(failed)?.file_name().into_string().ok());
        }
        Ok(names)
    }

    /// Removes a bottle that ended and left only logs. Returns false if the bottle left more than logs, or if another
    /// process holds the bottle's lock.
    pub(super) fn remove_ended(&self, slug: &Slug) -> bool {
        let Some(State::Dead(record)) = self.state(slug) else { return false };
        if !record.has_only_logs() {
            return false;
        }
        // The state is checked again while the lock is held.
        self.adopt(slug).is_ok_and(|claim| claim.record().has_only_logs() && claim.remove().is_ok())
    }

    /// Removes a bottle if only its conversation is kept. Returns false if more is kept, or if another process holds
    /// the bottle's lock.
    ///
    /// # Errors
    /// Fails if the bottle's directory cannot be removed.
    pub(super) fn remove_conversation(&self, slug: &Slug) -> io::Result<bool> {
        let Ok(claim) = self.adopt_idle(slug) else { return Ok(false) };
        if !super::prune::is_prunable(self, &claim.record()) {
            return Ok(false);
        }
        claim.remove().map(|()| true)
    }

    fn taken(&self, slug: Slug) -> ClaimError {
        let by = match self.state(&slug) {
            Some(State::Alive(_)) => Holder::Running,
            Some(State::Kept(_)) => Holder::Kept,
            _ => Holder::Remains,
        };
        ClaimError::Taken { slug, by }
    }
}

/// A bottle's directory whose lock this process holds. The process is the bottle's keeper or a cleanup.
#[derive(Debug)]
pub struct Claim {
    directory: PathBuf,
    lock: FileLock,
    /// Whether the bottle is new. False if the bottle is resumed or adopted.
    new: bool,
    record: Mutex<Record>,
}

impl Claim {
    /// Returns the path of the bottle's directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the record as it was last written to disk.
    #[must_use]
    pub fn record(&self) -> Record {
        self.record.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// Changes the record and writes it to disk. As long as a new bottle neither runs nor has deploy keys, a power
    /// failure may lose the write.
    ///
    /// # Errors
    /// Fails if the record cannot be written. The record in memory is then also unchanged.
    pub fn update(&self, change: impl FnOnce(&mut Record)) -> io::Result<()> {
        let mut record = self.record.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut changed = record.clone();
        change(&mut changed);
        if changed != *record {
            write_record(&self.directory, &changed, must_be_durable(self.new, &changed))?;
            *record = changed;
        }
        Ok(())
    }

    /// Writes the resolved manifest with which the bottle is started.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn write_manifest(&self, text: &str) -> io::Result<()> {
        files::replace(&self.directory.join(MANIFEST), |file| file.write_all(text.as_bytes()))
    }

    /// Replaces the record of a kept bottle for its next launch. The new record gets the facts about the first launch
    /// from the old record, such as its time and working directory, and also the resources and the deploy keys. With
    /// [`Origin::Kept`], it also gets the times that define unsaved work.
    ///
    /// # Errors
    /// Fails if the record or the usage records cannot be written.
    pub fn reset(&self, new: Record, origin: &Origin) -> io::Result<()> {
        match origin {
            // The snapshots that `committed-image` names were already removed.
            Origin::New => committed::remove(&self.directory)?,
            Origin::Snapshot(snapshot) => {
                let current = Some(snapshot.reference.clone());
                let list = committed::read(&self.directory)?;
                if list.current != current {
                    committed::write(&self.directory, &CommittedList { current, ..list })?;
                }
            }
            Origin::Kept => {}
        }
        self.collect_usage()?;
        self.update(|record| {
            let kept = *origin == Origin::Kept;
            let before = std::mem::replace(record, new);
            record.repositories = before.repositories;
            record.copied_cwd = before.copied_cwd;
            record.copied_all = before.copied_all;
            record.cwd = before.cwd;
            record.inside = before.inside;
            record.directories = before.directories;
            record.forked_from = before.forked_from;
            record.parent = record.parent.take().or(before.parent);
            record.image = before.image;
            record.started_at = before.started_at;
            record.resources = before.resources;
            record.deploy_keys = before.deploy_keys;
            record.kept = kept;
            // `kept_for` does not change, because a failed launch leaves the bottle as it was.
            record.kept_for = before.kept_for;
            if kept {
                record.workspace_ready = before.workspace_ready;
                record.clock_lead = before.clock_lead;
                record.pulled_at = before.pulled_at;
            }
        })
    }

    /// Marks the bottle as ended and kept, so that no cleanup removes its directory. `layers` says whether the
    /// layers are kept too.
    ///
    /// # Errors
    /// Fails if the mark, the record or the usage records cannot be written.
    pub fn preserve(&self, layers: bool) -> io::Result<()> {
        self.mark_kept()?;
        self.collect_usage()?;
        self.update(|record| {
            record.status = Status::Kept;
            record.kept = layers;
            record.keeper = None;
        })
    }

    /// Creates the file that marks the bottle's directory as kept. The mark takes effect when the record's status
    /// becomes [`Status::Kept`].
    ///
    /// # Errors
    /// Fails if the mark cannot be written.
    pub fn mark_kept(&self) -> io::Result<()> {
        files::private_file()
            .create(true)
            .write(true)
            .truncate(true)
            .open(self.directory.join(KEPT))
            .map(drop)
    }

    /// Whether the bottle has a snapshot. If `committed-image` cannot be read, the bottle is assumed to have one.
    #[must_use]
    pub fn has_snapshot(&self) -> bool {
        has_snapshot(&self.directory)
    }

    /// Collects the usage records that the bottle's proxy could not deliver. The proxy must have exited.
    ///
    /// # Errors
    /// Fails if the records cannot be written. They then stay in the bottle's directory.
    pub fn collect_usage(&self) -> io::Result<()> {
        let record = self.record();
        let slug = record.slug.clone();
        // The directory's path has the form `<home>/state/<slug>`.
        let Some(home) = self.directory.ancestors().nth(2) else { return Ok(()) };
        usage::collect(home, &self.directory, &slug, Labels::of(&record)).map_err(|error| {
            let path = usage::path(home, &slug);
            io::Error::new(error.kind(), causes::one_line(&FileError::write(&path, error)))
        })
    }

    /// Collects usage records, then removes the directory and releases the claim. A rename frees the slug in one step.
    ///
    /// # Errors
    /// Fails if usage records cannot be collected, a file cannot be removed, or the record still names a deploy key. No
    /// other file names the deploy key. A later cleanup finds the remaining files.
    pub fn remove(self) -> io::Result<()> {
        if let Some(key) = self.record().deploy_keys.first() {
            return Err(io::Error::other(format!("the deploy key {} is still registered", key.describe())));
        }
        self.collect_usage()?;
        let name = format!("{STAGING_PREFIX}{}-{}", self.record().slug, std::process::id());
        let aside = self.directory.with_file_name(name);
        fs::rename(&self.directory, &aside)?;
        // The lock file is closed before the directory is removed. On a network disk, removing an open file leaves a
        // hidden file in the directory.
        drop(self.lock);
        match fs::remove_dir_all(&aside) {
            // A cleanup has already removed the directory.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }
}

impl ResourceLog for Claim {
    fn record_all(&self, resources: &[Resource]) -> Result<(), BackendError> {
        let wrote = self.update(|record| {
            for resource in resources {
                if !record.resources.contains(resource) {
                    record.resources.push(resource.clone());
                }
            }
        });
        wrote.map_err(|error| {
            let error = FileError::write(&self.directory.join("metadata.json"), error);
            BackendError::failed(causes::one_line(&error))
        })
    }
}

fn vanished() -> State {
    State::Damaged("it was removed while it was read".to_owned())
}

fn lock_is_held(directory: &Path) -> bool {
    File::open(directory.join("lock")).is_ok_and(|lock| match lock.try_lock_shared() {
        Ok(()) => {
            drop(FileLock::of_locked(lock));
            false
        }
        Err(error) => matches!(error, TryLockError::WouldBlock),
    })
}

/// Locks the file exclusively. Retries for a moment, because readers hold the lock briefly. Returns false if another
/// process still holds the lock.
fn try_lock(lock: &File) -> io::Result<bool> {
    for _ in 0..20 {
        match lock.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) => std::thread::sleep(std::time::Duration::from_millis(2)),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Ok(false)
}

fn open_lock(directory: &Path) -> io::Result<File> {
    files::private_file().create(true).read(true).write(true).truncate(false).open(directory.join("lock"))
}

fn has_snapshot(directory: &Path) -> bool {
    committed::read(directory).map_or(true, |list| !list.snapshots.is_empty())
}

#[derive(Debug, thiserror::Error)]
enum Unreadable {
    #[error("{}", path.display())]
    Damaged { path: PathBuf, source: io::Error },
    #[error("written by a newer bottle (schema {0})")]
    Newer(u32),
}

fn read_record(directory: &Path) -> Result<Record, Unreadable> {
    let path = directory.join("metadata.json");
    let damaged = |source| Unreadable::Damaged { path: path.clone(), source };
    let mut text = Vec::new();
    let read = File::open(&path).and_then(|file| file.take(RECORD_MAX + 1).read_to_end(&mut text));
    read.map_err(damaged)?;
    if text.len() as u64 > RECORD_MAX {
        return Err(damaged(io::Error::other("larger than a record may be")));
    }
    let value: serde_json::Value = serde_json::from_slice(&text).map_err(|error| damaged(error.into()))?;
    match value.get("schema").and_then(serde_json::Value::as_u64) {
        Some(schema) if schema > u64::from(SCHEMA) => {
            Err(Unreadable::Newer(u32::try_from(schema).unwrap_or(u32::MAX)))
        }
        Some(_) => serde_json::from_value(value).map_err(|error| damaged(error.into())),
        None => Err(damaged(io::Error::other("no schema"))),
    }
}

/// Whether the record must be on disk before the caller continues. If only the process is killed, the record is not
/// lost, because the kernel has the data. If a power failure loses the record of a bottle that never ran, cleanup still
/// finds the bottle's resources by name.
fn must_be_durable(new: bool, record: &Record) -> bool {
    !new || record.status != Status::Starting || !record.deploy_keys.is_empty()
}

fn write_record(directory: &Path, record: &Record, durably: bool) -> io::Result<()> {
    let path = directory.join("metadata.json");
    let fill = |file: &mut Filled<'_>| {
        serde_json::to_writer_pretty(&mut *file, record)?;
        file.write_all(b"\n")
    };
    if durably { files::replace_durably(&path, fill) } else { files::replace(&path, fill) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Mode;

    fn record(slug: &str) -> Record {
        Record {
            schema: SCHEMA,
            slug: slug.parse().expect("slug"),
            label: None,
            color: None,
            parent: None,
            agent: "probe".parse().expect("name"),
            bottles: vec!["offline".parse().expect("name")],
            lineage: Vec::new(),
            template: None,
            run: None,
            budget: Vec::new(),
            cutoff: None,
            cwd: "/somewhere".into(),
            inside: None,
            directories: Vec::new(),
            repositories: Vec::new(),
            copied_cwd: false,
            forked_from: None,
            image: None,
            copied_all: false,
            author: None,
            backend: "fake".to_owned(),
            engine: None,
            mode: Mode::Attached,
            terminal: false,
            terminal_size: None,
            status: Status::Starting,
            started_at: jiff::Timestamp::UNIX_EPOCH,
            keeper: None,
            runtime: None,
            resources: Vec::new(),
            workspace_ready: None,
            clock_lead: None,
            pulled_at: None,
            kept: false,
            kept_for: None,
            transcript: Vec::new(),
            deploy_keys: Vec::new(),
            learn: false,
            services: Vec::new(),
            locked: None,
            budget_hold: None,
            budget_order: None,
            approved_commands: Vec::new(),
            ends_with: None,
            agent_exit: None,
            lost: false,
            size: None,
            sandbox: None,
            manifest_hash: String::new(),
        }
    }

    fn store() -> (tempfile::TempDir, Store) {
        let home = tempfile::tempdir().expect("a temporary directory");
        let store = Store { root: home.path().join("state") };
        (home, store)
    }

    #[test]
    fn a_claim_is_alive_until_dropped_and_excludes_another() {
        let (_home, store) = store();
        let claim = store.claim(record("one")).expect("claim");
        assert!(matches!(store.state(&"one".parse().expect("slug")), Some(State::Alive(_))));
        assert!(matches!(store.claim(record("one")), Err(ClaimError::Taken { .. })));
        assert!(matches!(store.adopt(&"one".parse().expect("slug")), Err(ClaimError::Taken { .. })));
        drop(claim);
        assert!(matches!(store.state(&"one".parse().expect("slug")), Some(State::Dead(_))));
        assert!(store.unfinished_claims().expect("listed").is_empty());
    }

    #[test]
    fn claims_an_empty_directory_but_never_replaces_a_file() {
        let (_home, store) = store();
        fs::create_dir_all(store.root.join("empty")).expect("directory");
        let claim = store.claim(record("empty")).expect("nothing is in it");
        claim.remove().expect("removed");
        assert_eq!(fs::read_dir(&store.root).expect("listed").count(), 0);
        fs::write(store.root.join("file"), "a user's").expect("written");
        assert!(matches!(store.claim(record("file")), Err(ClaimError::Taken { .. })));
        assert_eq!(fs::read_to_string(store.root.join("file")).expect("read"), "a user's");
    }

    #[test]
    fn a_new_bottle_replaces_one_that_left_only_logs() {
        let (_home, store) = store();
        let slug: Slug = "one".parse().expect("slug");
        let end = |resources: Vec<Resource>| {
            let claim = store.claim(record("one")).expect("claim");
            fs::write(claim.directory().join("log"), "words").expect("written");
            claim
                .update(|record| (record.status, record.resources) = (Status::Ended, resources))
                .expect("written");
        };
        end(Vec::new());
        let claim = store.claim(record("one")).expect("only logs were there");
        assert!(!claim.directory().join("log").exists());
        claim.remove().expect("removed");
        end(vec![Resource { slug: slug.clone(), kind: "network".into(), id: "n1".into() }]);
        assert!(
            matches!(store.claim(record("one")), Err(ClaimError::Taken { .. })),
            "there is more to remove"
        );
    }

    #[test]
    fn keeps_a_record_that_names_a_deploy_key() {
        use crate::record::DeployKey;
        let (_home, store) = store();
        let slug: Slug = "one".parse().expect("slug");
        let keys =
            bottle_plan::forge::Keys::new(bottle_plan::forge::Kind::Gitea, None, "git.example.com", "a/b");
        let key = DeployKey {
            repo: "tool".parse().expect("name"),
            keys: keys.expect("a repository"),
            title: "bottle one".to_owned(),
            public: "ssh-ed25519 AAAA".to_owned(),
            id: None,
            token: bottle_plan::SecretSource::Env("TOKEN".to_owned()),
            ca_bundle: None,
        };
        let claim = store.claim(record("one")).expect("claim");
        claim
            .update(|record| (record.status, record.deploy_keys) = (Status::Ended, vec![key]))
            .expect("written");
        let error = claim.remove().expect_err("a key is registered").to_string();
        assert!(error.contains("\"bottle one\" of a/b at git.example.com"), "{error}");
        assert!(matches!(store.state(&slug), Some(State::Dead(_))));
        assert!(matches!(store.claim(record("one")), Err(ClaimError::Taken { .. })), "its slug stays taken");
        let claim = store.adopt(&slug).expect("adopted");
        claim.update(|record| record.deploy_keys.clear()).expect("written");
        claim.remove().expect("removed");
    }

    #[test]
    fn the_resource_log_is_on_disk_when_record_returns() {
        let (_home, store) = store();
        let claim = store.claim(record("one")).expect("claim");
        let resource =
            Resource { slug: "one".parse().expect("slug"), kind: "network".into(), id: "n1".into() };
        ResourceLog::record(&claim, resource.clone()).expect("record");
        ResourceLog::record(&claim, resource.clone()).expect("record again");
        let Some(State::Alive(read)) = store.state(&"one".parse().expect("slug")) else {
            panic!("not alive")
        };
        assert_eq!(read.resources, [resource]);
    }

    #[test]
    fn lists_newer_and_damaged_records_with_the_others() {
        let (_home, store) = store();
        for slug in ["good", "newer", "damaged"] {
            drop(store.claim(record(slug)).expect("claim"));
        }
        let metadata = |slug: &str| store.root.join(slug).join("metadata.json");
        fs::write(metadata("newer"), r#"{"schema": 99, "what": "ever"}"#).expect("write");
        fs::write(metadata("damaged"), "{").expect("write");
        let states: Vec<_> = store.list().expect("listed").into_iter().map(|listed| listed.state).collect();
        assert!(matches!(&states[0], State::Damaged(why) if why.contains("metadata.json")), "{states:?}");
        assert!(matches!(&states[1], State::Dead(_)), "{states:?}");
        assert!(matches!(&states[2], State::Newer(99)), "{states:?}");
    }

    #[test]
    fn fails_to_list_a_state_directory_that_cannot_be_read() {
        let (_home, store) = store();
        assert!(store.list().expect("nothing is there yet").is_empty());
        fs::write(&store.root, "no directory").expect("write");
        assert!(store.list().expect_err("no directory").to_string().contains("state"));
        assert!(store.unfinished_claims().is_err());
    }

    #[test]
    fn a_resumed_bottles_state_follows_its_record() {
        let (_home, store) = store();
        let slug = "one".parse().expect("slug");
        let claim = store.claim(record("one")).expect("claim");
        claim.preserve(true).expect("kept");
        drop(claim);
        assert!(matches!(store.state(&slug), Some(State::Kept(record)) if record.kept));
        let claim = store.adopt(&slug).expect("adopted");
        claim.update(|record| record.status = Status::Running).expect("written");
        assert!(matches!(store.state(&slug), Some(State::Alive(_))));
        drop(claim);
        assert!(matches!(store.state(&slug), Some(State::Dead(_))), "its keeper died");
    }

    #[test]
    fn finds_the_directory_of_a_killed_claim() {
        let (_home, store) = store();
        fs::create_dir_all(store.root.join(".new-abc")).expect("directory");
        assert_eq!(store.unfinished_claims().expect("listed"), [store.root.join(".new-abc")]);
        assert!(store.list().expect("listed").is_empty());
    }
}
