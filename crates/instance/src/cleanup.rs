//! Finds and removes the resources and state directories that no bottle uses any more.
//!
//! Cleanup compares two sources: the state directories of this home, and the resources that each backend finds by
//! label. Cleanup therefore finds resources without a record and records without resources. Only the records name the
//! deploy keys, so a record stays until all its keys are revoked.
//!
//! Cleanup does not touch running bottles, kept work, snapshots that a bottle's state names, records that a newer
//! version wrote, or anything of other homes. Cleanup also leaves detached bottles whose guest still runs, because the
//! next command adopts these bottles.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use bottle_backend::{Backend, BackendErrorKind, LAYERS, PausedBy, Resource, Snapshot, Unused};
use bottle_host::Host;
use bottle_host::causes;
use bottle_host::files::FileError;
use bottle_host::settings::Settings;
use bottle_host::temporary;
use bottle_policy::names::Slug;
use jiff::Timestamp;

use super::away::AwayBottles;
use super::committed::CommittedList;
use super::deploy_keys::{self, Tokens};
use super::record::{DeployKey, Record, Status};
use super::store::{Claim, ClaimError, Holder, State, Store};
use super::{engines, snapshots, transcripts, usage, work};

/// The items that a cleanup would remove.
#[derive(Debug, Default)]
pub struct Found {
    /// Bottles without a keeper, and resources without a bottle.
    pub orphans: Vec<Orphan>,
    /// Snapshots that the state of their bottle does not name, because they were replaced or never recorded.
    pub snapshots: Vec<Unrecorded>,
    /// Unused images and other inputs of bottles, each with the name of its backend.
    pub unused: Vec<(&'static str, Unused)>,
    /// Directories of unfinished claims, directories of unfinished conversation copies, and stale sockets.
    pub litter: Vec<PathBuf>,
    /// Temporary directories of killed commands, and temporary files that these commands created elsewhere.
    pub temporary: Vec<PathBuf>,
    /// The number of usage records older than `keep_days`, by slug.
    pub usage: Vec<(Slug, usize)>,
    /// The items that stay. Each is a sentence that names the item and the reason.
    pub left: Vec<String>,
    /// The items that could not be inspected, with the errors. All other items were inspected.
    pub errors: Vec<String>,
}

/// A bottle to remove.
#[derive(Debug)]
pub struct Orphan {
    /// The bottle's slug.
    pub slug: Slug,
    /// The reason for the removal, as shown to the user.
    pub why: String,
    /// The name of the bottle's backend.
    pub backend: String,
    /// The part of the bottle that stays.
    pub keeps: Keeps,
    /// The bottle's resources.
    pub resources: Vec<Resource>,
    /// The bottle's deploy keys, which cleanup revokes.
    pub deploy_keys: Vec<DeployKey>,
    /// Whether the bottle has a state directory.
    pub has_state: bool,
}

/// The part of an orphan that stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeps {
    /// No part of the bottle stays.
    Nothing,
    /// The layers stay, because they contain unsaved work. The bottle is stopped and becomes kept.
    Work,
    /// The state directory stays, because it names a snapshot. The layers are removed.
    Snapshot,
}

impl Keeps {
    fn from_flags(work: bool, snapshot: bool) -> Self {
        match (work, snapshot) {
            (true, _) => Self::Work,
            (false, true) => Self::Snapshot,
            (false, false) => Self::Nothing,
        }
    }
}

/// A snapshot to remove.
#[derive(Debug)]
pub struct Unrecorded {
    /// The name of the snapshot's backend.
    pub backend: String,
    /// The snapshot to remove.
    pub snapshot: Snapshot,
}

impl Found {
    /// Whether there is nothing to remove.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.orphans.is_empty()
            && self.snapshots.is_empty()
            && self.unused.is_empty()
            && self.litter.is_empty()
            && self.temporary.is_empty()
            && self.usage.is_empty()
    }
}

/// Inspects all bottles and resources of this home. Changes nothing.
///
/// # Errors
/// Returns [`FileError`] if the state directory cannot be read. Any resource could then belong to a running bottle.
pub async fn find(host: &Host, backends: &[Box<dyn Backend>]) -> Result<Found, FileError> {
    let store = Store::of(host);
    let mut found = Found { litter: store.unfinished_claims()?, ..Found::default() };
    match temporary::leftovers(&host.home) {
        Ok(leftovers) => found.temporary = leftovers,
        Err(error) => found.errors.push(format!("cannot read {}: {error}", host.home.join("tmp").display())),
    }
    let mut resources = enumerate(backends, &mut found.errors).await;
    let mut away = AwayBottles::default();
    for listed in store.list()? {
        let of_backend: BTreeMap<_, Vec<_>> = resources
            .iter_mut()
            .map(|(name, all)| (*name, all.extract_if(.., |resource| resource.slug == listed.slug).collect()))
            .collect();
        match listed.state {
            State::Alive(_) => {}
            State::Kept(record) => {
                if away.contains(&store, &record, backends).await {
                    continue;
                }
                // If the claim fails, a command uses the kept files. The resources of this command are not orphans.
                let Ok(_claim) = store.adopt(&listed.slug) else { continue };
                let names_more = store.has_snapshot(&record.slug) || record.has_only_conversation();
                let keeps = Keeps::from_flags(record.kept || !names_more, true);
                let left = of_backend.get(record.backend.as_str()).cloned().unwrap_or_default();
                let left: Vec<_> =
                    left.into_iter().filter(|r| keeps != Keeps::Work || r.kind != LAYERS).collect();
                if !left.is_empty() || !record.deploy_keys.is_empty() {
                    found.orphans.push(orphan(
                        &record,
                        "has resources left from before it was kept",
                        keeps,
                        left,
                    ));
                }
            }
            State::Dead(record) => {
                inspect_dead(&store, &record, backends, of_backend, &mut away, &mut found).await;
            }
            State::Damaged(why) => found.left.push(format!(
                "{} has a damaged record ({why}); look into {} and remove it by hand",
                listed.slug,
                store.directory(&listed.slug).display()
            )),
            State::Newer(schema) => found.left.push(format!(
                "{} was made by a newer bottle (schema {schema}); use that version",
                listed.slug
            )),
        }
    }
    away.report(&mut found);
    for (backend, rest) in still_there(backends, resources).await {
        let mut by_slug: BTreeMap<Slug, Vec<Resource>> = BTreeMap::new();
        for resource in rest {
            by_slug.entry(resource.slug.clone()).or_default().push(resource);
        }
        found.orphans.extend(by_slug.into_iter().map(|(slug, resources)| Orphan {
            slug,
            why: "has no record".to_owned(),
            backend: backend.to_owned(),
            keeps: Keeps::Nothing,
            resources,
            deploy_keys: Vec::new(),
            has_state: false,
        }));
    }
    inspect_snapshots(&store, backends, &mut found).await;
    for backend in backends {
        match backend.unused().await {
            Ok(all) => found.unused.extend(all.into_iter().map(|unused| (backend.name(), unused))),
            Err(error) => found.errors.push(format!("{}: {}", backend.name(), causes::one_line(&error))),
        }
    }
    found.litter.extend(stale_sockets(host, &store));
    let unfinished = transcripts::unfinished(&host.home).into_iter();
    let dead = unfinished.filter(|(slug, _)| !matches!(store.state(slug), Some(State::Alive(_))));
    found.litter.extend(dead.map(|(_, path)| path));
    match usage_cutoff(host).and_then(|then| Ok(usage::older_than(&host.home, then)?)) {
        Ok(old) => found.usage = old,
        Err(error) => found.errors.push(format!("cannot read usage records: {error:#}")),
    }
    Ok(found)
}

/// Returns the resources without a record that still exist. A bottle's record exists longer than its resources. A
/// resource without a record is therefore an orphan if it was found both before and after all records were read. A
/// resource that has disappeared belonged to a bottle that ended meanwhile.
async fn still_there(
    backends: &[Box<dyn Backend>],
    mut resources: BTreeMap<&'static str, Vec<Resource>>,
) -> BTreeMap<&'static str, Vec<Resource>> {
    if resources.values().all(Vec::is_empty) {
        return resources;
    }
    // The first call of `enumerate` already reported the failures.
    let now = enumerate(backends, &mut Vec::new()).await;
    for (backend, all) in &mut resources {
        all.retain(|resource| now.get(backend).is_some_and(|there| there.contains(resource)));
    }
    resources
}

/// Returns the time before which usage records are removed, according to `keep_days`.
fn usage_cutoff(host: &Host) -> anyhow::Result<Timestamp> {
    Ok(Settings::load(host)?.keep_since()?)
}

/// Removes the items that [`find`] returned, except usage records. Continues after a failure and returns every failure.
/// If a bottle runs again meanwhile, its resources stay, and `found` reports the bottle. Calling this function twice is
/// harmless.
pub async fn remove(host: &Host, backends: &[Box<dyn Backend>], found: &mut Found) -> Vec<String> {
    let store = Store::of(host);
    let mut failures = Vec::new();
    // Snapshots are removed before their bottles, because the state of a bottle names the snapshot to keep.
    for unrecorded in std::mem::take(&mut found.snapshots) {
        let removed = remove_unrecorded(&store, backends, &unrecorded).await;
        match removed.as_ref().err().and_then(|failure| failure.downcast_ref()) {
            // The bottle's watcher started a keeper meanwhile.
            Some(ClaimError::Taken { slug, by: Holder::Running }) => found.left.push(format!(
                "the snapshot {} belongs to {slug}, which runs again",
                unrecorded.snapshot.reference
            )),
            _ => {
                if let Err(failure) = removed {
                    failures.push(format!("{}: {}", unrecorded.snapshot.slug, causes::one_line(&*failure)));
                }
                found.snapshots.push(unrecorded);
            }
        }
    }
    for orphan in &found.orphans {
        let removed = match named(backends, &orphan.backend) {
            Ok(backend) => remove_orphan(host, &store, backend, orphan).await,
            Err(error) => Err(error),
        };
        if let Err(failure) = removed {
            failures.push(format!("{}: {}", orphan.slug, causes::one_line(&*failure)));
        }
    }
    // Unused images are removed after the bottles that used them.
    for backend in backends {
        let own = found.unused.iter().filter(|(name, _)| *name == backend.name());
        let own: Vec<Unused> = own.map(|(_, unused)| unused.clone()).collect();
        if !own.is_empty()
            && let Err(error) = backend.remove_unused(own).await
        {
            failures.push(format!("{}: {}", backend.name(), causes::one_line(&error)));
        }
    }
    let remove =
        |path: &PathBuf| if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    let litter = found.litter.iter().map(|path| (path, remove(path)));
    let temporary = found.temporary.iter().map(|path| (path, temporary::remove_leftover(path)));
    for (path, removed) in litter.chain(temporary) {
        if let Err(error) = removed
            && error.kind() != std::io::ErrorKind::NotFound
        {
            failures.push(format!("{}: {error}", path.display()));
        }
    }
    failures
}

/// Removes the old usage records that [`find`] returned. Before this call, the caller must call [`remove`], which
/// collects the usage records of ended bottles, and must then ingest all usage records into the ledger. Continues after
/// a failure and returns every failure.
pub fn remove_old_usage(host: &Host, found: &Found) -> Vec<String> {
    let mut failures = Vec::new();
    if found.usage.is_empty() {
        return failures;
    }
    let then = match usage_cutoff(host) {
        Ok(then) => then,
        Err(error) => return vec![format!("cannot read usage records: {error:#}")],
    };
    for (slug, _) in &found.usage {
        if let Err(error) = usage::remove_older(&host.home, slug, then) {
            failures.push(format!("{}: {error}", usage::path(&host.home, slug).display()));
        }
    }
    failures
}

async fn inspect_dead(
    store: &Store,
    record: &Record,
    backends: &[Box<dyn Backend>],
    mut of_backend: BTreeMap<&'static str, Vec<Resource>>,
    away: &mut AwayBottles,
    found: &mut Found,
) {
    let Some(backend) = backends.iter().find(|b| b.name() == record.backend) else {
        found.left.push(format!(
            "{} belongs to the backend {}, which this build does not have",
            record.slug, record.backend
        ));
        return;
    };
    // The claim prevents another process from adopting the bottle in the meantime. Two clients of one guest channel
    // would break both connections.
    let _claim = match store.adopt(&record.slug) {
        Ok(claim) => claim,
        // Another process has adopted the bottle, or another cleanup inspects the bottle.
        Err(ClaimError::Taken { .. }) => return,
        // The bottle ended during the search.
        Err(_) if store.state(&record.slug).is_none() => return,
        Err(error) => return found.errors.push(causes::one_line(&error)),
    };
    let directory = store.directory(&record.slug);
    // If the backend uses another engine, all of the bottle's resources seem to be gone. The bottle is then not
    // inspected.
    if !record.has_only_logs() && away.contains(store, record, backends).await {
        return;
    }
    if record.is_adoptable() {
        // If `recover` fails, the bottle stays paused, and `connect_guest` then reports the problem.
        let _ = backend.recover(&record.slug, PausedBy::Snapshot).await;
        let note = match backend.connect_guest(&record.slug).await {
            Ok(_) => Some("runs without a keeper; the next command adopts it".to_owned()),
            // The guest is busy, so the bottle may be running.
            Err(error) if error.kind == BackendErrorKind::Busy => {
                Some(format!("is left alone: {}", causes::one_line(&error)))
            }
            Err(_) => None,
        };
        if let Some(note) = note {
            found.left.push(format!("{} {note}", record.slug));
            return;
        }
    }
    let mut resources = record.resources.clone();
    for resource in of_backend.remove(backend.name()).unwrap_or_default() {
        if !resources.contains(&resource) {
            resources.push(resource);
        }
    }
    let ended = record.status == Status::Ended;
    let work = match work::search(&**backend, &directory, record).await {
        // The bottle's keeper already checked for work and removed the workspace.
        _ if ended => false,
        _ if record.kept => true,
        // The bottle's conversation was not copied to the host.
        Some(_) if !record.transcript.is_empty() => true,
        Some(search) => match backend.find_work(&record.slug, &search, record.live().is_some()).await {
            Ok(changes) => work::judge(&directory, &search, changes).await.is_any(),
            Err(_) => true,
        },
        None => false,
    };
    let keeps = Keeps::from_flags(work, store.has_snapshot(&record.slug));
    let why = match (ended, record.deploy_keys.is_empty()) {
        _ if record.lost => "lost its files: something else removed them",
        _ if !ended && is_lost(&**backend, record).await => "lost its files: something else removed them",
        (true, true) => "ended; only its logs remain",
        (true, false) => "ended; one of its deploy keys remains",
        (false, _) => "has no keeper",
    };
    found.orphans.push(orphan(record, why, keeps, resources));
}

/// Whether the bottle had files that do not exist any more.
async fn is_lost(backend: &dyn Backend, record: &Record) -> bool {
    record.workspace_ready.is_some() && matches!(engines::has_layers(backend, record).await, Ok(false))
}

async fn inspect_snapshots(store: &Store, backends: &[Box<dyn Backend>], found: &mut Found) {
    for backend in backends {
        let all = match backend.snapshots().await {
            Ok(all) => all,
            Err(error) => {
                found.errors.push(format!("{}: {}", backend.name(), causes::one_line(&error)));
                continue;
            }
        };
        for snapshot in all {
            match store.state(&snapshot.slug) {
                // The bottle's keeper may be creating the snapshot, or be about to record it.
                Some(State::Alive(_) | State::Damaged(_) | State::Newer(_)) => {}
                Some(State::Dead(_) | State::Kept(_)) => {
                    // A command that holds the lock may be about to record the snapshot.
                    if is_unrecorded(store, &snapshot) && store.adopt(&snapshot.slug).is_ok() {
                        found.snapshots.push(Unrecorded { backend: backend.name().to_owned(), snapshot });
                    }
                }
                None => found.left.push(format!(
                    "the snapshot of {0} has no record; remove it with `bottle snapshots rm {0} --all`",
                    snapshot.slug
                )),
            }
        }
    }
}

/// Whether the bottle's state does not name the snapshot, or names it as abandoned.
fn is_unrecorded(store: &Store, snapshot: &Snapshot) -> bool {
    // If it is unknown whether the state names the snapshot, the snapshot stays.
    let is_needed = |list: CommittedList| list.entry(snapshot).is_some_and(|entry| !entry.is_abandoned());
    store.snapshots(&snapshot.slug).is_ok_and(|list| !is_needed(list))
}

async fn remove_unrecorded(
    store: &Store,
    backends: &[Box<dyn Backend>],
    unrecorded: &Unrecorded,
) -> anyhow::Result<()> {
    // The claim is held until the removal ends. Otherwise the bottle could be resumed in the meantime and commit a
    // snapshot.
    let claim = store.adopt_idle(&unrecorded.snapshot.slug)?;
    if is_unrecorded(store, &unrecorded.snapshot) {
        let backend = named(backends, &unrecorded.backend)?;
        snapshots::remove_abandoned(backend, &claim).await?;
        backend.remove_snapshot(&unrecorded.snapshot).await?;
    }
    Ok(())
}

fn named<'a>(backends: &'a [Box<dyn Backend>], name: &str) -> anyhow::Result<&'a dyn Backend> {
    let found = backends.iter().find(|backend| backend.name() == name);
    found.map(AsRef::as_ref).ok_or_else(|| anyhow::anyhow!("this build has no backend {name}"))
}

fn orphan(record: &Record, why: &str, keeps: Keeps, resources: Vec<Resource>) -> Orphan {
    Orphan {
        slug: record.slug.clone(),
        why: why.to_owned(),
        backend: record.backend.clone(),
        keeps,
        resources,
        deploy_keys: record.deploy_keys.clone(),
        has_state: true,
    }
}

async fn remove_orphan(
    host: &Host,
    store: &Store,
    backend: &dyn Backend,
    orphan: &Orphan,
) -> anyhow::Result<()> {
    let claim = if orphan.has_state { Some(store.adopt_idle(&orphan.slug)?) } else { None };
    remove_claimed(host, claim, backend, orphan).await
}

/// Removes an orphan. The claim is held until the removal ends, so that no other process adopts the bottle or cleans it
/// up.
async fn remove_claimed(
    host: &Host,
    claim: Option<Claim>,
    backend: &dyn Backend,
    orphan: &Orphan,
) -> anyhow::Result<()> {
    let keep_layers = orphan.keeps == Keeps::Work;
    let resources: Vec<Resource> =
        orphan.resources.iter().filter(|r| !keep_layers || r.kind != LAYERS).rev().cloned().collect();
    backend.remove(&resources).await?;
    if claim.is_some() {
        // Without a keeper, no process listens on the socket.
        remove_file(&host.keeper_socket(&orphan.slug))?;
    }
    // Keys are revoked after the bottle that used them is removed. The record is removed last, because only the record
    // names the keys.
    let keys = match &claim {
        Some(claim) => deploy_keys::revoke(host, claim, &Tokens::default()).await,
        None => Vec::new(),
    };
    match (claim, orphan.keeps) {
        (None, _) => {}
        (Some(claim), Keeps::Work | Keeps::Snapshot) => claim.preserve(keep_layers)?,
        (Some(claim), Keeps::Nothing) if keys.is_empty() => claim.remove()?,
        (Some(claim), Keeps::Nothing) => claim.update(|record| {
            record.status = Status::Ended;
            record.resources.clear();
        })?,
    }
    if keys.is_empty() { Ok(()) } else { Err(still_registered(&keys)) }
}

/// Removes the kept layers of a bottle. The bottle's snapshot, and the state that names the snapshot, stay. Returns
/// whether the bottle has a snapshot.
///
/// # Errors
/// Fails if a resource cannot be removed or a key cannot be revoked. The bottle then stays, and a second call continues
/// the removal.
pub async fn discard(host: &Host, backend: &dyn Backend, record: &Record) -> anyhow::Result<bool> {
    let store = Store::of(host);
    let claim = store.adopt_idle(&record.slug)?;
    engines::require(backend, claim.directory(), record).await?;
    let snapshot = store.has_snapshot(&record.slug);
    let found = backend.enumerate().await?;
    let own = found.into_iter().filter(|resource| resource.slug == record.slug).collect();
    let orphan = orphan(record, "was discarded", Keeps::from_flags(false, snapshot), own);
    remove_claimed(host, Some(claim), backend, &orphan).await?;
    Ok(snapshot)
}

/// Removes the state of a bottle whose engine does not exist any more, and revokes its deploy keys. Does not remove the
/// bottle's resources on an engine.
///
/// # Errors
/// Fails if the bottle's engine answers, the state cannot be removed, or a key cannot be revoked.
pub async fn forget(host: &Host, backend: &dyn Backend, record: &Record) -> anyhow::Result<()> {
    let claim = Store::of(host).adopt_idle(&record.slug)?;
    if engines::require(backend, claim.directory(), record).await.is_ok() {
        anyhow::bail!("the bottle's engine answers; `bottle discard {}` deletes its files", record.slug);
    }
    let keys = deploy_keys::revoke(host, &claim, &Tokens::default()).await;
    if keys.is_empty() {
        return Ok(claim.remove()?);
    }
    claim.update(|record| {
        record.status = Status::Ended;
        record.resources.clear();
    })?;
    Err(still_registered(&keys))
}

/// The error for deploy keys that could not be revoked.
fn still_registered(keys: &[String]) -> anyhow::Error {
    let again = "`bottle cleanup` tries again, with the token from the manifest's source";
    anyhow::anyhow!("{}; {again}", keys.join("; "))
}

async fn enumerate(
    backends: &[Box<dyn Backend>],
    errors: &mut Vec<String>,
) -> BTreeMap<&'static str, Vec<Resource>> {
    let mut resources = BTreeMap::new();
    for backend in backends {
        match backend.enumerate().await {
            Ok(all) => drop(resources.insert(backend.name(), all)),
            Err(error) => errors.push(format!("{}: {}", backend.name(), causes::one_line(&error))),
        }
    }
    resources
}

/// Removes a file. A missing file is no error.
fn remove_file(path: &Path) -> anyhow::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

fn stale_sockets(host: &Host, store: &Store) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(&host.runtime) else { return Vec::new() };
    entries
        .filter_map(Result::ok)
        .filter(|entry| {
            let path = entry.path();
            let slug = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok());
            let slug = slug.filter(|slug| host.keeper_socket(slug) == path);
            // The socket of an adoptable bottle stays, because the bottle's next keeper uses it.
            slug.is_some_and(|slug| match store.state(&slug) {
                Some(State::Alive(_)) => false,
                Some(State::Dead(record)) => !record.is_adoptable(),
                // A command that uses the kept files holds the lock.
                Some(State::Kept(_)) => store.adopt(&slug).is_ok(),
                _ => true,
            })
        })
        .map(|entry| entry.path())
        .collect()
}
