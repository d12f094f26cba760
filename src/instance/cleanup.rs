//! Finding and removing what belongs to no living bottle.
//!
//! Two sources are held side by side: the state folders of this home, and what each backend finds by its
//! own labels. So a resource whose record was lost and a record whose resources are gone are both found. Deploy keys
//! are known by the records alone: one that cannot be revoked keeps its record.
//! Left alone: living bottles, detached bottles whose guest still lives (the next command adopts them),
//! preserved work, the snapshot that a bottle's state names, records of a newer program, and everything of
//! other homes.

use std::collections::BTreeMap;
use std::path::PathBuf;

use bottle_contract::names::Slug;
use jiff::{SignedDuration, Timestamp};

use super::deploy_keys::{self, DeployKey, Tokens};
use super::freeze;
use super::record::{Record, Status};
use super::store::{ClaimError, State, Store, Unlistable};
use super::{transcripts, usage};
use crate::backend::{Backend, BackendErrorKind, LAYERS, Resource, Snapshot, Unused};
use crate::host::Host;
use crate::host::settings::Settings;

/// What a cleanup would do.
#[derive(Debug, Default)]
pub struct Found {
    /// Bottles without a keeper, and resources without a bottle.
    pub orphans: Vec<Orphan>,
    /// Snapshots that their bottle's state does not name: replaced by a newer one, or never recorded.
    pub snapshots: Vec<Unnamed>,
    /// What bottles were made of and none will be any more, with its backend's name.
    pub unused: Vec<(&'static str, Unused)>,
    /// Folders of claims that never finished, and sockets nobody listens on.
    pub litter: Vec<PathBuf>,
    /// Records of usage that are too old to be kept, by the bottle's name.
    pub usage: Vec<(Slug, usize)>,
    /// What was left alone and why, a sentence each.
    pub left: Vec<String>,
    /// What could not be looked at; the rest was.
    pub errors: Vec<String>,
}

/// Something to remove.
#[derive(Debug)]
pub struct Orphan {
    /// Its slug.
    pub slug: Slug,
    /// What it is, for the user.
    pub why: String,
    /// Its backend's name.
    pub backend: String,
    /// What of it is kept.
    pub keeps: Keeps,
    /// What its backend made.
    pub resources: Vec<Resource>,
    /// What is to be revoked on forges.
    pub deploy_keys: Vec<DeployKey>,
    /// Whether it has a state folder.
    pub has_state: bool,
}

/// What of an orphan is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeps {
    /// Nothing.
    Nothing,
    /// There is work in its layers: it is stopped and preserved.
    Work,
    /// Its layers go; there is a snapshot, which its state has to name.
    Snapshot,
}

impl Keeps {
    fn of(work: bool, snapshot: bool) -> Self {
        match (work, snapshot) {
            (true, _) => Self::Work,
            (false, true) => Self::Snapshot,
            (false, false) => Self::Nothing,
        }
    }
}

/// A snapshot to remove.
#[derive(Debug)]
pub struct Unnamed {
    /// Its backend's name.
    pub backend: String,
    /// The snapshot.
    pub snapshot: Snapshot,
}

impl Found {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.orphans.is_empty()
            && self.snapshots.is_empty()
            && self.unused.is_empty()
            && self.litter.is_empty()
            && self.usage.is_empty()
    }
}

/// Looks at everything of this home; changes nothing.
///
/// # Errors
/// [`Unlistable`]: without the state, anything found could belong to a living bottle.
pub async fn find(host: &Host, backends: &[Box<dyn Backend>]) -> Result<Found, Unlistable> {
    let store = Store::of(host);
    let mut found = Found { litter: store.unfinished_claims()?, ..Found::default() };
    let mut resources = enumerate(backends, &mut found.errors).await;
    for listed in store.list()? {
        let of_backend: BTreeMap<_, _> =
            resources.iter_mut().map(|(name, all)| (*name, take_of(all, &listed.slug))).collect();
        match listed.state {
            State::Alive(_) => {}
            State::Preserved(record) => {
                let keeps = Keeps::of(record.kept || !has_snapshot(&store, &record), true);
                let left = of_backend.get(record.backend.as_str()).cloned().unwrap_or_default();
                let left: Vec<_> =
                    left.into_iter().filter(|r| keeps != Keeps::Work || r.kind != LAYERS).collect();
                if !left.is_empty() || !record.deploy_keys.is_empty() {
                    found.orphans.push(orphan(
                        &record,
                        "left something over when it was preserved",
                        keeps,
                        left,
                    ));
                }
            }
            State::Dead(record) => look_at_dead(&store, &record, backends, of_backend, &mut found).await,
            State::Damaged(why) => found.left.push(format!(
                "{} has a damaged record ({why}); look into {} and remove it by hand",
                listed.slug,
                store.folder(&listed.slug).display()
            )),
            State::Newer(schema) => found.left.push(format!(
                "{} was made by a newer bottle (schema {schema}); use that version",
                listed.slug
            )),
        }
    }
    for (backend, rest) in resources {
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
    look_at_snapshots(&store, backends, &mut found).await;
    for backend in backends {
        match backend.unused().await {
            Ok(all) => found.unused.extend(all.into_iter().map(|unused| (backend.name(), unused))),
            Err(error) => found.errors.push(format!("{}: {error}", backend.name())),
        }
    }
    found.litter.extend(stale_sockets(host, &store));
    let unfinished = transcripts::unfinished(&host.home).into_iter();
    let dead = unfinished.filter(|(slug, _)| !matches!(store.state(slug), Some(State::Alive(_))));
    found.litter.extend(dead.map(|(_, path)| path));
    match kept_since(host).and_then(|then| Ok(usage::older_than(&host.home, then)?)) {
        Ok(old) => found.usage = old,
        Err(error) => found.errors.push(format!("records of usage: {error}")),
    }
    Ok(found)
}

/// What is older than this is not kept, as `keep_days` has it.
fn kept_since(host: &Host) -> anyhow::Result<Timestamp> {
    let days = i64::from(Settings::load(host)?.keep_days);
    Ok(Timestamp::now().saturating_sub(SignedDuration::from_hours(24 * days))?)
}

/// Removes what [`find`] found; tries everything and reports every failure. Running it twice is no error.
pub async fn remove(host: &Host, backends: &[Box<dyn Backend>], found: &Found) -> Vec<String> {
    let store = Store::of(host);
    let mut failures = Vec::new();
    // Before their bottles, whose state says which snapshot is named.
    for unnamed in &found.snapshots {
        if let Err(failure) = remove_unnamed(&store, backends, unnamed).await {
            failures.push(format!("{}: {failure}", unnamed.snapshot.slug));
        }
    }
    for orphan in &found.orphans {
        let removed = match named(backends, &orphan.backend) {
            Ok(backend) => remove_orphan(host, &store, backend, orphan).await,
            Err(error) => Err(error),
        };
        if let Err(failure) = removed {
            failures.push(format!("{}: {failure}", orphan.slug));
        }
    }
    // After the bottles, which stand on it.
    for backend in backends {
        let own = found.unused.iter().filter(|(name, _)| *name == backend.name());
        let own: Vec<Unused> = own.map(|(_, unused)| unused.clone()).collect();
        if !own.is_empty()
            && let Err(error) = backend.remove_unused(own).await
        {
            failures.push(format!("{}: {error}", backend.name()));
        }
    }
    for path in &found.litter {
        let removed = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
        if let Err(error) = removed
            && error.kind() != std::io::ErrorKind::NotFound
        {
            failures.push(format!("{}: {error}", path.display()));
        }
    }
    forget_usage(host, &found.usage, &mut failures);
    failures
}

fn forget_usage(host: &Host, old: &[(Slug, usize)], failures: &mut Vec<String>) {
    if old.is_empty() {
        return;
    }
    let then = match kept_since(host) {
        Ok(then) => then,
        Err(error) => return failures.push(format!("records of usage: {error}")),
    };
    for (slug, _) in old {
        if let Err(error) = usage::forget(&host.home, slug, then) {
            failures.push(format!("{}: {error}", usage::path(&host.home, slug).display()));
        }
    }
}

async fn look_at_dead(
    store: &Store,
    record: &Record,
    backends: &[Box<dyn Backend>],
    mut of_backend: BTreeMap<&'static str, Vec<Resource>>,
    found: &mut Found,
) {
    let Some(backend) = backends.iter().find(|b| b.name() == record.backend) else {
        found
            .left
            .push(format!("{} belongs to the backend {}, which is not here", record.slug, record.backend));
        return;
    };
    // While it is looked at nobody adopts it: two on one guest's channel would spoil it for both.
    let _claim = match store.adopt(&record.slug) {
        Ok(claim) => claim,
        // Somebody has, this moment, or cleans up too.
        Err(ClaimError::Taken { .. }) => return,
        Err(error) => return found.errors.push(error.to_string()),
    };
    if record.is_adoptable() {
        let says = match backend.connect_guest(&record.slug).await {
            Ok(_) => Some("lives without its keeper; the next command adopts it".to_owned()),
            // Alive as far as anybody can tell.
            Err(error) if error.kind == BackendErrorKind::Busy => Some(format!("is left alone: {error}")),
            Err(_) => None,
        };
        if let Some(says) = says {
            found.left.push(format!("{} {says}", record.slug));
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
    let work = match freeze::work_since(&**backend, &store.folder(&record.slug), record).await {
        // Its keeper looked, and removed the workspace with the rest.
        _ if ended => false,
        _ if record.kept => true,
        Some(since) => backend.holds_work(&record.slug, since).await.unwrap_or(true),
        None => false,
    };
    let keeps = Keeps::of(work, has_snapshot(store, record));
    let why = match (ended, record.deploy_keys.is_empty()) {
        (true, true) => "ended; only its logs are left",
        (true, false) => "ended; a deploy key of it is left",
        (false, _) => "has no keeper",
    };
    found.orphans.push(orphan(record, why, keeps, resources));
}

/// One that cannot be told from none is taken for one.
fn has_snapshot(store: &Store, record: &Record) -> bool {
    !matches!(store.snapshot(&record.slug), Ok(None))
}

async fn look_at_snapshots(store: &Store, backends: &[Box<dyn Backend>], found: &mut Found) {
    for backend in backends {
        let all = match backend.snapshots().await {
            Ok(all) => all,
            Err(error) => {
                found.errors.push(format!("{}: {error}", backend.name()));
                continue;
            }
        };
        for snapshot in all {
            match store.state(&snapshot.slug) {
                // Its keeper may be making it, or about to name it.
                Some(State::Alive(_) | State::Damaged(_) | State::Newer(_)) => {}
                Some(State::Dead(_) | State::Preserved(_)) => {
                    if is_unnamed(store, &snapshot) {
                        found.snapshots.push(Unnamed { backend: backend.name().to_owned(), snapshot });
                    }
                }
                None => found.left.push(format!(
                    "the snapshot of {0} has no record; `bottle snapshots rm {0}` removes it",
                    snapshot.slug
                )),
            }
        }
    }
}

/// Whether the bottle's state says that this is not its snapshot.
fn is_unnamed(store: &Store, snapshot: &Snapshot) -> bool {
    match store.snapshot(&snapshot.slug) {
        Ok(named) => named.is_none_or(|named| named.reference != snapshot.reference),
        // It cannot say.
        Err(_) => false,
    }
}

async fn remove_unnamed(
    store: &Store,
    backends: &[Box<dyn Backend>],
    unnamed: &Unnamed,
) -> anyhow::Result<()> {
    // Held to the end: a bottle that is gone on with meanwhile may commit.
    let _claim = store.adopt(&unnamed.snapshot.slug)?;
    if is_unnamed(store, &unnamed.snapshot) {
        named(backends, &unnamed.backend)?.remove_snapshot(&unnamed.snapshot).await?;
    }
    Ok(())
}

fn named<'a>(backends: &'a [Box<dyn Backend>], name: &str) -> anyhow::Result<&'a dyn Backend> {
    let found = backends.iter().find(|backend| backend.name() == name);
    found.map(AsRef::as_ref).ok_or_else(|| anyhow::anyhow!("the backend {name} is not here"))
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
    // Held to the end, so that neither an adoption nor another cleanup works on the same bottle.
    let claim = if orphan.has_state { Some(store.adopt(&orphan.slug)?) } else { None };
    let works = orphan.keeps == Keeps::Work;
    let doomed: Vec<Resource> =
        orphan.resources.iter().filter(|r| !works || r.kind != LAYERS).rev().cloned().collect();
    backend.remove(&doomed).await?;
    // After what used them. The record goes last: it alone says what is still to be revoked.
    let keys = match &claim {
        Some(claim) => deploy_keys::revoke(host, claim, &Tokens::default()).await,
        None => Vec::new(),
    };
    match (claim, orphan.keeps) {
        (None, _) => {}
        (Some(claim), Keeps::Work | Keeps::Snapshot) => claim.preserve(works)?,
        (Some(claim), Keeps::Nothing) if keys.is_empty() => claim.remove()?,
        (Some(claim), Keeps::Nothing) => claim.update(|record| {
            record.status = Status::Ended;
            record.resources.clear();
        })?,
    }
    if keys.is_empty() { Ok(()) } else { Err(still_registered(&keys)) }
}

/// Removes what was kept of a preserved bottle; a snapshot stays, and the state that names it. Whether there is one.
///
/// # Errors
/// When something could not be removed or revoked: the bottle is then still there, and this goes on where it ended.
pub async fn discard(host: &Host, backend: &dyn Backend, record: &Record) -> anyhow::Result<bool> {
    let store = Store::of(host);
    let snapshot = has_snapshot(&store, record);
    let found = backend.enumerate().await?;
    let own = found.into_iter().filter(|resource| resource.slug == record.slug).collect();
    let doomed = orphan(record, "was thrown away", Keeps::of(false, snapshot), own);
    remove_orphan(host, &store, backend, &doomed).await?;
    Ok(snapshot)
}

/// Keys that could not be revoked, and what becomes of them.
fn still_registered(keys: &[String]) -> anyhow::Error {
    let again = "the next `bottle cleanup` tries again, with the token from where the manifest had it";
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
            Err(error) => errors.push(format!("{}: {error}", backend.name())),
        }
    }
    resources
}

fn take_of(resources: &mut Vec<Resource>, slug: &Slug) -> Vec<Resource> {
    resources.extract_if(.., |resource| resource.slug == *slug).collect()
}

fn stale_sockets(host: &Host, store: &Store) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(&host.runtime) else { return Vec::new() };
    entries
        .filter_map(Result::ok)
        .filter(|entry| {
            let name = entry.file_name();
            let slug = name.to_str().and_then(|n| n.strip_suffix(".sock")).and_then(|n| n.parse().ok());
            // A bottle that waits for its next keeper keeps its place.
            slug.is_some_and(|slug| match store.state(&slug) {
                Some(State::Alive(_)) => false,
                Some(State::Dead(record)) => !record.is_adoptable(),
                _ => true,
            })
        })
        .map(|entry| entry.path())
        .collect()
}
