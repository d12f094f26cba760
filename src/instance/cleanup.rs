//! Finding and removing what belongs to no living bottle.
//!
//! Two sources are held side by side: the state folders of this home, and what each backend finds by its
//! own labels. So a resource whose record was lost and a record whose resources are gone are both found.
//! Left alone: living bottles, detached bottles whose guest still lives (the next command adopts them),
//! preserved work, records of a newer program, and everything of other homes.

use std::collections::BTreeMap;
use std::path::PathBuf;

use bottle_contract::names::Slug;

use super::record::{Mode, Record, Status};
use super::store::{State, Store};
use crate::backend::{Backend, LAYERS, Resource};
use crate::host::Host;

/// What a cleanup would do.
#[derive(Debug, Default)]
pub struct Found {
    /// Bottles without a keeper, and resources without a bottle.
    pub orphans: Vec<Orphan>,
    /// Folders of claims that never finished, and sockets nobody listens on.
    pub litter: Vec<PathBuf>,
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
    /// What it is, for the person.
    pub why: String,
    /// Its backend's name.
    pub backend: String,
    /// Whether there is work in it: then it is stopped and preserved instead.
    pub holds_work: bool,
    /// What its backend made.
    pub resources: Vec<Resource>,
    /// Whether it has a state folder.
    pub has_state: bool,
}

impl Found {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.orphans.is_empty() && self.litter.is_empty()
    }
}

/// Looks at everything of this home; changes nothing.
pub async fn find(host: &Host, backends: &[Box<dyn Backend>]) -> Found {
    let store = Store::of(host);
    let mut found = Found { litter: store.unfinished_claims(), ..Found::default() };
    let mut resources = enumerate(backends, &mut found.errors).await;
    for listed in store.list() {
        let of_backend: BTreeMap<_, _> =
            resources.iter_mut().map(|(name, all)| (*name, take_of(all, &listed.slug))).collect();
        match listed.state {
            State::Alive(_) => {}
            State::Preserved(record) => {
                let running = of_backend.get(record.backend.as_str()).cloned().unwrap_or_default();
                let running: Vec<_> = running.into_iter().filter(|r| r.kind != LAYERS).collect();
                if !running.is_empty() {
                    found.orphans.push(orphan(&record, "left over beside preserved work", true, running));
                }
            }
            State::Dead(record) => look_at_dead(&record, backends, of_backend, &mut found).await,
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
            holds_work: false,
            resources,
            has_state: false,
        }));
    }
    found.litter.extend(stale_sockets(host, &store));
    found
}

/// Removes what [`find`] found; tries everything and reports every failure. Running it twice is no error.
pub async fn remove(host: &Host, backends: &[Box<dyn Backend>], found: &Found) -> Vec<String> {
    let store = Store::of(host);
    let mut failures = Vec::new();
    for orphan in &found.orphans {
        if let Err(failure) = remove_orphan(&store, backends, orphan).await {
            failures.push(format!("{}: {failure}", orphan.slug));
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
    failures
}

async fn look_at_dead(
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
    if record.mode == Mode::Detached && backend.connect_guest(&record.slug).await.is_ok() {
        found.left.push(format!("{} lives without its keeper; the next command adopts it", record.slug));
        return;
    }
    let mut resources = record.resources.clone();
    for resource in of_backend.remove(backend.name()).unwrap_or_default() {
        if !resources.contains(&resource) {
            resources.push(resource);
        }
    }
    let ended = record.status == Status::Ended;
    let holds_work = match record.workspace_ready {
        // Its keeper looked, and removed the workspace with the rest.
        Some(_) if ended => false,
        Some(since) => backend.holds_work(&record.slug, since).await.unwrap_or(true),
        None => false,
    };
    let why = if ended { "ended; only its logs are left" } else { "has no keeper" };
    found.orphans.push(orphan(record, why, holds_work, resources));
}

fn orphan(record: &Record, why: &str, holds_work: bool, resources: Vec<Resource>) -> Orphan {
    Orphan {
        slug: record.slug.clone(),
        why: why.to_owned(),
        backend: record.backend.clone(),
        holds_work,
        resources,
        has_state: true,
    }
}

async fn remove_orphan(store: &Store, backends: &[Box<dyn Backend>], orphan: &Orphan) -> anyhow::Result<()> {
    // Held to the end, so that neither an adoption nor another cleanup works on the same bottle.
    let claim = if orphan.has_state { Some(store.adopt(&orphan.slug)?) } else { None };
    let backend = backends
        .iter()
        .find(|b| b.name() == orphan.backend)
        .ok_or_else(|| anyhow::anyhow!("the backend {} is not here", orphan.backend))?;
    let doomed: Vec<Resource> =
        orphan.resources.iter().filter(|r| !orphan.holds_work || r.kind != LAYERS).rev().cloned().collect();
    backend.remove(&doomed).await?;
    match claim {
        Some(claim) if orphan.holds_work => Ok(claim.preserve()?),
        Some(claim) => Ok(claim.remove()?),
        None => Ok(()),
    }
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
                Some(State::Dead(record)) => record.mode == Mode::Attached,
                _ => true,
            })
        })
        .map(|entry| entry.path())
        .collect()
}
