//! Finds the resources of a scope's bottles by their labels, and removes them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bottle_backend::runtime_directory::{self, RUNTIME_DIRECTORY, RuntimeDirectory};
use bottle_backend::trees::{copy, remove_tree};
use bottle_backend::{BackendError, LAYERS, Resource};
use bottle_host::process::ProcessId;
use bottle_policy::names::Slug;

use super::Scope;
use super::cgroups;
use super::labels::{self, Role};
use super::layer_snapshots::{self, LEFTOVER};

/// How long a killed process may take to exit. After this time, its removal fails. The exit of pid 1 ends all processes
/// of its pid namespace, which can be hundreds.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// Lists all resources, processes first.
pub(crate) fn enumerate(scope: &Scope) -> Result<Vec<Resource>, BackendError> {
    let failed = |what: &str, error: std::io::Error| {
        BackendError::failed(format!("cannot list {what}")).because(error)
    };
    let mut all: Vec<Resource> = labels::find(scope)
        .map_err(|error| failed("processes", error))?
        .into_iter()
        .map(|found| Resource::new(&found.slug, found.role.kind(), found.process.to_string()))
        .collect();
    let directories =
        runtime_directory::find(&scope.runtime).map_err(|error| failed("runtime directories", error))?;
    all.extend(
        directories.into_iter().map(|(slug, path)| Resource::new(&slug, RUNTIME_DIRECTORY, text(&path))),
    );
    let layers = layers_of(scope).map_err(|error| failed("layers", error))?;
    all.extend(layers.into_iter().map(|(slug, path)| Resource::new(&slug, LAYERS, text(&path))));
    let leftovers = layer_snapshots::leftovers(scope).map_err(|error| failed("snapshots", error))?;
    all.extend(leftovers.into_iter().map(|(slug, path)| Resource::new(&slug, LEFTOVER, text(&path))));
    let prefix = format!("bottle-{}-", scope.label);
    let groups = cgroups::Groups::current().find(&prefix).into_iter().filter_map(|(name, path)| {
        let slug = name.strip_prefix(&prefix)?.parse().ok()?;
        Some(Resource::new(&slug, cgroups::GROUP, text(&path)))
    });
    all.extend(groups);
    Ok(all)
}

/// Removes resources: guests first, then bundles and sidecars, then directories and control groups. Continues after a
/// failure.
pub(crate) fn remove(scope: &Scope, resources: &[Resource]) -> Result<(), BackendError> {
    let mut failures = Vec::new();
    for role in Role::ALL {
        for resource in resources.iter().filter(|resource| resource.kind == role.kind()) {
            note(&mut failures, resource, kill(&resource.id));
        }
    }
    for resource in resources.iter().filter(|resource| resource.kind == Role::Bundle.kind()) {
        note(&mut failures, resource, kill_sidecars(scope, &resource.slug));
    }
    for resource in resources {
        let path = Path::new(&resource.id);
        match resource.kind.as_str() {
            RUNTIME_DIRECTORY => {
                let own = path == scope.runtime_directory(&resource.slug).directory();
                note(
                    &mut failures,
                    resource,
                    if own { RuntimeDirectory::remove(path) } else { Err(foreign()) },
                );
            }
            LAYERS => {
                let own = path == scope.layers(&resource.slug).directory();
                note(
                    &mut failures,
                    resource,
                    if own { remove_layers(scope, resource) } else { Err(foreign()) },
                );
            }
            LEFTOVER => {
                let own = layer_snapshots::is_leftover_of(scope, &resource.slug, path);
                let removed =
                    if own { layer_snapshots::remove_leftover(scope, path) } else { Err(foreign()) };
                note(&mut failures, resource, removed);
            }
            cgroups::GROUP => {
                let own = cgroups::is_own_group(path, &scope.group(&resource.slug));
                note(&mut failures, resource, if own { cgroups::remove(path) } else { Err(foreign()) });
            }
            kind if Role::ALL.iter().any(|role| role.kind() == kind) => {}
            kind => {
                failures.push(format!("{kind} {}: this backend has no resource of this kind", resource.id))
            }
        }
    }
    BackendError::all(&failures)
}

/// Moves layers to a directory where [`enumerate`] lists them as leftovers. Removes layers that cannot be moved.
/// Returns the moved layers as leftovers. Continues after a failure.
pub(crate) fn move_away(scope: &Scope, resources: &[Resource]) -> Result<Vec<Resource>, BackendError> {
    let (mut failures, mut moved) = (Vec::new(), Vec::new());
    for resource in resources {
        let layers = scope.layers(&resource.slug);
        if Path::new(&resource.id) != layers.directory() {
            note(&mut failures, resource, Err(foreign()));
            continue;
        }
        match layer_snapshots::move_away(scope, &resource.slug, layers.directory()) {
            Ok(Some(path)) => moved.push(Resource::new(&resource.slug, LEFTOVER, text(&path))),
            Ok(None) => {}
            // If the layers cannot be moved, they are removed below, which takes longer.
            Err(error) => tracing::debug!("cannot move {} away: {error}", resource.id),
        }
        note(&mut failures, resource, remove_layers(scope, resource));
    }
    BackendError::all(&failures).map(|()| moved)
}

fn remove_layers(scope: &Scope, resource: &Resource) -> std::io::Result<()> {
    let layers = scope.layers(&resource.slug);
    remove_tree(layers.directory())?;
    copy::stamps::remove(&layers.stamps())
}

fn kill(id: &str) -> std::io::Result<()> {
    let process: ProcessId = id.parse().map_err(std::io::Error::other)?;
    process.kill(KILL_TIMEOUT)
}

/// Kills all sidecars of a bottle and waits until they have exited. The sidecars were killed together with their
/// parent, the bundle, and may still be exiting. A sidecar that is just starting may still have the label of the
/// bundle.
fn kill_sidecars(scope: &Scope, slug: &Slug) -> std::io::Result<()> {
    for found in labels::find_of(scope, slug)? {
        if found.role != Role::Guest {
            found.process.kill(KILL_TIMEOUT)?;
        }
    }
    Ok(())
}

/// The error for a resource with a recorded path that this backend does not create for the resource's slug.
fn foreign() -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is not a path of this backend")
}

fn note(failures: &mut Vec<String>, resource: &Resource, result: std::io::Result<()>) {
    if let Err(error) = result {
        failures.push(format!("{} {}: {error}", resource.kind, resource.id));
    }
}

fn layers_of(scope: &Scope) -> std::io::Result<Vec<(Slug, PathBuf)>> {
    let found = runtime_directory::find(&scope.state)?.into_iter().filter_map(|(slug, _)| {
        let directory = scope.layers(&slug).directory().to_owned();
        directory.is_dir().then_some((slug, directory))
    });
    Ok(found.collect())
}

pub(crate) fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
