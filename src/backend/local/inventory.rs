//! What exists of a scope's bottles, found by label, and how it is removed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bottle_contract::names::Slug;

use super::cgroups;
use super::freeze::{self, REST};
use super::labels::{self, Role};
use super::runtime_folder::{self, Place, RUNTIME_FOLDER};
use super::{Scope, copy, layers};
use crate::backend::{BackendError, LAYERS, Resource};
use crate::host::process::ProcessId;

/// A killed pid 1 takes its whole namespace with it, hundreds of processes at worst.
const DIES_WITHIN: Duration = Duration::from_secs(10);

/// Everything there is, processes first.
pub(crate) fn enumerate(scope: &Scope) -> Result<Vec<Resource>, BackendError> {
    let failed =
        |what: &str, error: std::io::Error| BackendError::failed(format!("cannot list {what}: {error}"));
    let mut all: Vec<Resource> = labels::find(scope)
        .map_err(|error| failed("processes", error))?
        .into_iter()
        .map(|found| resource(&found.slug, found.role.kind(), found.process.to_string()))
        .collect();
    let folders = runtime_folder::find(&scope.runtime).map_err(|error| failed("runtime folders", error))?;
    all.extend(folders.into_iter().map(|(slug, path)| resource(&slug, RUNTIME_FOLDER, text(&path))));
    let layers = layers_of(scope).map_err(|error| failed("layers", error))?;
    all.extend(layers.into_iter().map(|(slug, path)| resource(&slug, LAYERS, text(&path))));
    let rests = freeze::rests(scope).map_err(|error| failed("snapshots", error))?;
    all.extend(rests.into_iter().map(|(slug, path)| resource(&slug, REST, text(&path))));
    let prefix = format!("bottle-{}-", scope.label);
    let groups = cgroups::Groups::here().find(&prefix).into_iter().filter_map(|(name, path)| {
        let slug = name.strip_prefix(&prefix)?.parse().ok()?;
        Some(resource(&slug, cgroups::GROUP, text(&path)))
    });
    all.extend(groups);
    Ok(all)
}

/// Removes resources: processes first, bundles after guests, then folders. Tries all of them.
pub(crate) fn remove(scope: &Scope, resources: &[Resource]) -> Result<(), BackendError> {
    let mut failures = Vec::new();
    for role in Role::ALL {
        for resource in resources.iter().filter(|resource| resource.kind == role.kind()) {
            note(&mut failures, resource, kill(&resource.id));
        }
    }
    for resource in resources.iter().filter(|resource| resource.kind == Role::Bundle.kind()) {
        // The daemons end with their parent; one that was just being born is found by its label.
        note(&mut failures, resource, kill_daemons(scope, &resource.slug));
    }
    for resource in resources {
        let path = Path::new(&resource.id);
        match resource.kind.as_str() {
            RUNTIME_FOLDER => {
                let own = path == scope.place(&resource.slug).folder();
                note(&mut failures, resource, if own { Place::remove(path) } else { Err(foreign()) });
            }
            LAYERS => {
                let own = path == scope.layers(&resource.slug).folder();
                note(
                    &mut failures,
                    resource,
                    if own { demolish_layers(scope, resource) } else { Err(foreign()) },
                );
            }
            REST => {
                let own = freeze::is_rest_of(scope, &resource.slug, path);
                note(&mut failures, resource, if own { layers::demolish(path) } else { Err(foreign()) });
            }
            cgroups::GROUP => {
                let own = cgroups::is_group(path, &scope.group(&resource.slug));
                note(&mut failures, resource, if own { cgroups::remove(path) } else { Err(foreign()) });
            }
            kind if Role::ALL.iter().any(|role| role.kind() == kind) => {}
            kind => failures.push(format!("{kind} {}: this backend makes no such thing", resource.id)),
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(BackendError::failed(failures.join("; "))) }
}

fn demolish_layers(scope: &Scope, resource: &Resource) -> std::io::Result<()> {
    let layers = scope.layers(&resource.slug);
    layers::demolish(layers.folder())?;
    copy::stamps::forget(&layers.stamps())
}

fn kill(id: &str) -> std::io::Result<()> {
    let process: ProcessId = id.parse().map_err(std::io::Error::other)?;
    process.kill(DIES_WITHIN)
}

fn kill_daemons(scope: &Scope, slug: &Slug) -> std::io::Result<()> {
    for found in labels::find(scope)? {
        if found.slug == *slug && matches!(found.role, Role::Egress | Role::Gate) {
            found.process.kill(DIES_WITHIN)?;
        }
    }
    Ok(())
}

/// A path from a ledger is only removed when it is the one this backend makes for that slug.
fn foreign() -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is not where this backend makes it")
}

fn note(failures: &mut Vec<String>, resource: &Resource, result: std::io::Result<()>) {
    if let Err(error) = result {
        failures.push(format!("{} {}: {error}", resource.kind, resource.id));
    }
}

fn layers_of(scope: &Scope) -> std::io::Result<Vec<(Slug, PathBuf)>> {
    let found = runtime_folder::find(&scope.state)?.into_iter().filter_map(|(slug, _)| {
        let folder = scope.layers(&slug).folder().to_owned();
        folder.is_dir().then_some((slug, folder))
    });
    Ok(found.collect())
}

pub(crate) fn resource(slug: &Slug, kind: &str, id: String) -> Resource {
    Resource { slug: slug.clone(), kind: kind.to_owned(), id }
}

pub(crate) fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
