//! Finds the resources of the bottles of this `$BOTTLE_HOME` on the engine by their labels, and removes them.

use std::path::Path;
use std::time::Duration;

use bollard::models::ContainerSummaryStateEnum;
use bollard::query_parameters::{
    KillContainerOptions, ListNetworksOptions, ListVolumesOptions, RemoveContainerOptions,
    RemoveVolumeOptions,
};
use bottle_backend::{BackendError, LAYERS, Resource};
use bottle_host::causes;
use bottle_policy::names::Slug;
use futures_util::future::join_all;

use super::container::find_agent;
use super::engine::{Engine, EngineError};
use super::kept::{self, IMAGE};
use super::names::{Names, Part};
use super::network::NETWORK;
use super::{pending_usage, shared_objects};

/// The [`Resource::kind`] of a running agent's container. Removing this resource kills the container but does not
/// delete it. The container with its files is the resource [`LAYERS`].
pub(super) const GUEST: &str = "guest-process";
/// The [`Resource::kind`] of a bundle's container, running or not.
pub(super) const BUNDLE: &str = "bundle-process";
/// The [`Resource::kind`] of a container that reads kept files, running or not.
pub(super) const READER: &str = "reader-process";
/// The [`Resource::kind`] of a volume.
pub(super) const VOLUME: &str = "volume";

/// How long to wait for a resource that a removed container still uses, or that another process is removing. After this
/// time, the removal of the resource fails.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

/// The parts of a bottle that are volumes.
const VOLUMES: [Part; 2] = [Part::Sockets, Part::State];

/// The interval between two attempts to remove a resource.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// The number of characters in an engine's id.
const ID_LENGTH: usize = 64;

/// Lists all resources of this `$BOTTLE_HOME` on the engine.
///
/// # Errors
/// [`EngineError`] when the engine cannot be queried.
pub(super) async fn enumerate(engine: &Engine, names: &Names) -> Result<Vec<Resource>, EngineError> {
    let (containers, networks, volumes, images) = tokio::try_join!(
        containers(engine, names),
        networks(engine, names),
        volumes(engine, names),
        kept::images(engine, names)
    )?;
    let Containers { mut found, used, mut kept } = containers;
    kept.retain(|slug| !found.iter().any(|other| other.slug == *slug && other.kind == BUNDLE));
    // A kept container uses its volume. The volume is not listed, because it is removed with the container.
    let free = volumes.into_iter().filter(|volume| !kept.contains(&volume.slug));
    found.extend(networks.into_iter().chain(free));
    found.extend(images.into_iter().filter(|image| !used.contains(&image.id)));
    Ok(found)
}

/// The bottles' containers that were found.
#[derive(Default)]
struct Containers {
    found: Vec<Resource>,
    /// The images of these containers.
    used: Vec<String>,
    /// The bottles whose agent's container does not run.
    kept: Vec<Slug>,
}

async fn containers(engine: &Engine, names: &Names) -> Result<Containers, EngineError> {
    let mut all = Containers::default();
    for container in engine.list_containers(names.filter()).await? {
        let labels = container.labels.unwrap_or_default();
        let called = container.names.unwrap_or_default();
        let own = called.iter().filter_map(|name| name.strip_prefix('/'));
        let owned = own.into_iter().find_map(|name| names.owned(name, &labels));
        let (Some((part, slug)), Some(id)) = (owned, container.id) else { continue };
        all.used.extend(container.image_id);
        match part {
            Part::Bundle => all.found.push(Resource::new(&slug, BUNDLE, id)),
            Part::Reader => all.found.push(Resource::new(&slug, READER, id)),
            Part::Agent | Part::Kept => {
                if is_alive(container.state) {
                    all.found.push(Resource::new(&slug, GUEST, id.clone()));
                } else {
                    all.kept.push(slug.clone());
                }
                all.found.push(Resource::new(&slug, LAYERS, id));
            }
            Part::Inner | Part::Outer | Part::Sockets | Part::State => {}
        }
    }
    Ok(all)
}

fn is_alive(state: Option<ContainerSummaryStateEnum>) -> bool {
    use ContainerSummaryStateEnum as State;
    matches!(state, Some(State::RUNNING | State::PAUSED | State::RESTARTING))
}

async fn networks(engine: &Engine, names: &Names) -> Result<Vec<Resource>, EngineError> {
    let options = ListNetworksOptions { filters: Some(names.filter()) };
    let networks = engine.call(engine.docker().list_networks(Some(options))).await?;
    let ours = networks.into_iter().filter_map(|network| {
        let (_, slug) = names.owned(&network.name?, &network.labels?)?;
        Some(Resource::new(&slug, NETWORK, network.id?))
    });
    Ok(ours.collect())
}

async fn volumes(engine: &Engine, names: &Names) -> Result<Vec<Resource>, EngineError> {
    let options = ListVolumesOptions { filters: Some(names.filter()) };
    let volumes = engine.call(engine.docker().list_volumes(Some(options))).await?.volumes.unwrap_or_default();
    let ours = volumes.into_iter().filter_map(|volume| {
        let (_, slug) = names.owned(&volume.name, &volume.labels)?;
        Some(Resource::new(&slug, VOLUME, volume.name))
    });
    Ok(ours.collect())
}

/// Removes resources: containers first, then the resources that the containers used. Continues after a failure. `state`
/// is the directory with the bottles' directories. Before a bundle's container is removed, the usage records that exist
/// only in the container are saved in the bottle's directory.
///
/// # Errors
/// [`BackendError`] that contains every failure.
pub(super) async fn remove(
    engine: &Engine,
    names: &Names,
    state: &Path,
    resources: &[Resource],
) -> Result<(), BackendError> {
    let of_container = [GUEST, BUNDLE, READER, LAYERS];
    let (containers, used): (Vec<_>, Vec<_>) =
        resources.iter().partition(|resource| of_container.contains(&resource.kind.as_str()));
    let mut failures = Vec::new();
    for round in [containers, used] {
        let removed = join_all(round.iter().map(|resource| remove_one(engine, names, state, resource))).await;
        for (resource, removed) in round.iter().zip(removed) {
            failures.extend(removed.err().map(|why| format!("{} {}: {why}", resource.kind, resource.id)));
        }
    }
    BackendError::all(&failures)
}

/// Why a resource was not removed.
#[derive(Debug, thiserror::Error)]
enum NotRemoved {
    #[error("it is not an id of this backend")]
    InvalidId,
    #[error("it is not this bottle's, by its {0}")]
    NotOwned(&'static str),
    #[error("the engine says that it is removed, but it still exists")]
    StillThere,
    #[error("cannot remove its git objects: {0}")]
    Objects(std::io::Error),
    #[error(transparent)]
    Engine(#[from] EngineError),
}

async fn remove_one(
    engine: &Engine,
    names: &Names,
    state: &Path,
    resource: &Resource,
) -> Result<(), NotRemoved> {
    remove_from_engine(engine, names, state, resource).await?;
    // The shared objects stay while another container of the bottle exists, because that container mounts the same
    // directory.
    if resource.kind == LAYERS && find_agent(engine, names, &resource.slug).await?.is_none() {
        shared_objects::remove(&state.join(resource.slug.as_str())).map_err(NotRemoved::Objects)?;
    }
    Ok(())
}

async fn remove_from_engine(
    engine: &Engine,
    names: &Names,
    state: &Path,
    resource: &Resource,
) -> Result<(), NotRemoved> {
    if !is_id(resource, names) {
        return Err(NotRemoved::InvalidId);
    }
    if resource.kind == BUNDLE && is_there(engine, names, resource).await? {
        let directory = state.join(resource.slug.as_str());
        if let Err(error) = pending_usage::save(engine, &resource.id, &directory).await {
            // The removal continues without these records.
            tracing::warn!("usage records of {} are lost: {}", resource.slug, causes::one_line(&error));
        }
    }
    let deadline = tokio::time::Instant::now() + RELEASE_TIMEOUT;
    loop {
        let is_late = tokio::time::Instant::now() >= deadline;
        if !is_there(engine, names, resource).await? || is_state_of_kept(engine, names, resource).await? {
            return Ok(());
        }
        match request_removal(engine, names, resource).await {
            // A kept container uses the volume. Removing the kept container also removes the volume.
            Err(error)
                if resource.kind == VOLUME
                    && is_transient(&error)
                    && is_held_by_kept_container(engine, names, resource).await =>
            {
                return Ok(());
            }
            // For [`GUEST`], the container was only stopped. For [`IMAGE`], an image on which other images are based
            // stays, but has lost its name.
            Ok(()) if [GUEST, IMAGE].contains(&resource.kind.as_str()) => return Ok(()),
            Err(error) if error.is_missing() => return Ok(()),
            Err(error) if !is_transient(&error) || is_late => return Err(error.into()),
            Ok(()) if is_late => return Err(NotRemoved::StillThere),
            // The next check shows whether the resource is removed.
            _ => tokio::time::sleep(RETRY_INTERVAL).await,
        }
    }
}

/// Whether a removal should be retried. A container that is being removed may still use the object, or another process
/// may be removing the object. Errors of the engine (5xx) are retried too. Docker 20.10 reports such errors if a
/// container exits between the engine's check and its kill, or if a file system or an endpoint is still in use.
fn is_transient(error: &EngineError) -> bool {
    matches!(error, EngineError::Refused { status: 403 | 409 | 500..=599, .. })
}

/// Whether the resource exists. Returns an error if the object with that id is a different resource.
async fn is_there(engine: &Engine, names: &Names, resource: &Resource) -> Result<bool, NotRemoved> {
    let (owned, by) = match resource.kind.as_str() {
        IMAGE => (kept::is_owned(engine, names, resource).await, "labels"),
        kind => {
            let fits = |(part, slug)| slug == resource.slug && kind_fits(part, kind);
            let owned = inspect(engine, names, resource).await;
            (owned.map(|owned| Some(owned.is_some_and(fits))), "name and labels")
        }
    };
    match owned {
        Ok(Some(false)) => Err(NotRemoved::NotOwned(by)),
        Ok(owned) => Ok(owned.is_some()),
        Err(error) if error.is_missing() => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn kind_fits(part: Part, kind: &str) -> bool {
    match part {
        Part::Agent | Part::Kept => kind == GUEST || kind == LAYERS,
        Part::Bundle => kind == BUNDLE,
        Part::Reader => kind == READER,
        Part::Inner | Part::Outer => kind == NETWORK,
        Part::Sockets | Part::State => kind == VOLUME,
    }
}

async fn inspect(
    engine: &Engine,
    names: &Names,
    resource: &Resource,
) -> Result<Option<(Part, Slug)>, EngineError> {
    let docker = engine.docker();
    let (name, labels) = match resource.kind.as_str() {
        NETWORK => {
            let network = engine.call(docker.inspect_network(&resource.id, None)).await?;
            (network.name, network.labels)
        }
        VOLUME => {
            let volume = engine.call(docker.inspect_volume(&resource.id)).await?;
            (Some(volume.name), Some(volume.labels))
        }
        _ => {
            let container = engine.inspect_container(&resource.id).await?;
            (container.name, container.config.and_then(|config| config.labels))
        }
    };
    let name = name.unwrap_or_default();
    Ok(names.owned(name.trim_start_matches('/'), &labels.unwrap_or_default()))
}

async fn request_removal(engine: &Engine, names: &Names, resource: &Resource) -> Result<(), EngineError> {
    let docker = engine.docker();
    match resource.kind.as_str() {
        NETWORK => engine.call(docker.remove_network(&resource.id)).await,
        VOLUME => engine.call(docker.remove_volume(&resource.id, None::<RemoveVolumeOptions>)).await,
        GUEST => {
            let killed = docker.kill_container(&resource.id, None::<KillContainerOptions>);
            match engine.call(killed).await {
                // Some engines cannot kill a paused container.
                Err(error) if error.contains("paused") => {
                    engine.call(docker.unpause_container(&resource.id)).await?;
                    engine.call(docker.kill_container(&resource.id, None::<KillContainerOptions>)).await
                }
                // The container does not run.
                Err(EngineError::Refused { status: 409, .. }) => Ok(()),
                // Podman's message for a container that does not run.
                Err(error) if error.contains("container state improper") => Ok(()),
                killed => killed,
            }
        }
        IMAGE => kept::remove_image(engine, &resource.id).await,
        _ => {
            // The image's volumes are removed with the container. A reader is an exception, because its volumes belong
            // to the kept container.
            let volumes = resource.kind != READER;
            let options =
                RemoveContainerOptions { force: true, v: volumes, ..RemoveContainerOptions::default() };
            let image = kept::base_image(engine, names, &resource.id).await?;
            engine.call(docker.remove_container(&resource.id, Some(options))).await?;
            if let Some(image) = image {
                match kept::remove_image(engine, &image).await {
                    // Another container of the bottle uses the image.
                    Err(EngineError::Refused { status: 409, .. }) => {}
                    removed => removed?,
                }
            }
            match resource.kind.as_str() {
                LAYERS => remove_volumes(engine, names, &resource.slug).await,
                _ => Ok(()),
            }
        }
    }
}

/// Whether a stopped agent's container uses the volume.
async fn is_held_by_kept_container(engine: &Engine, names: &Names, volume: &Resource) -> bool {
    let agent = find_agent(engine, names, &volume.slug).await;
    agent.is_ok_and(|agent| agent.is_some_and(|agent| !agent.running))
}

/// Whether the resource is the volume of the sidecars' files of a bottle whose agent's container exists. Such a volume
/// stays, because a resumed bottle needs the git gate's files again. The volume is removed with the agent's container.
async fn is_state_of_kept(engine: &Engine, names: &Names, resource: &Resource) -> Result<bool, EngineError> {
    let is_state = resource.kind == VOLUME && resource.id == names.name(Part::State, &resource.slug);
    Ok(is_state && find_agent(engine, names, &resource.slug).await?.is_some())
}

/// Removes the bottle's volumes that exist and that no container uses.
async fn remove_volumes(engine: &Engine, names: &Names, slug: &Slug) -> Result<(), EngineError> {
    for part in VOLUMES {
        let volume = Resource::new(slug, VOLUME, names.name(part, slug));
        if !inspect(engine, names, &volume).await.is_ok_and(|owned| owned.is_some()) {
            continue;
        }
        match engine.call(engine.docker().remove_volume(&volume.id, None::<RemoveVolumeOptions>)).await {
            // The bundle may still be in removal. The volume is then listed later as a separate resource.
            Err(error) if error.is_missing() || is_transient(&error) => {}
            removed => removed?,
        }
    }
    Ok(())
}

/// Whether an id may be used in a request: it has the form of an engine's id, or it is the name of this bottle's
/// volume.
fn is_id(resource: &Resource, names: &Names) -> bool {
    if resource.kind == VOLUME {
        return VOLUMES.iter().any(|part| resource.id == names.name(*part, &resource.slug));
    }
    let (known, id) = match resource.kind.as_str() {
        IMAGE => (true, resource.id.strip_prefix("sha256:").unwrap_or_default()),
        GUEST | BUNDLE | READER | LAYERS | NETWORK => (true, resource.id.as_str()),
        _ => (false, ""),
    };
    known && id.len() == ID_LENGTH && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_while_an_object_is_being_removed() {
        let refused = |status, message: &str| EngineError::Refused { status, message: message.to_owned() };
        let ended = "Could not kill running container 0a, cannot remove - Container 0a is not running";
        assert!(is_transient(&refused(409, "removal is already in progress")));
        assert!(is_transient(&refused(500, ended)));
        assert!(is_transient(&refused(
            500,
            "driver failed to remove root filesystem: device or resource busy"
        )));
        assert!(!is_transient(&refused(400, "invalid reference format")));
    }

    #[test]
    fn accepts_only_the_engines_ids_and_the_volume_name() {
        let names = Names::new("0123abcd".to_owned());
        let slug: Slug = "a-1".parse().expect("slug");
        let id = "0a".repeat(32);
        for (kind, id, good) in [
            (LAYERS, id.as_str(), true),
            (NETWORK, &id, true),
            (VOLUME, "bottle-0123abcd-proxy-a-1", true),
            (VOLUME, "bottle-0123abcd-state-a-1", true),
            (VOLUME, "bottle-0123abcd-agent-a-1", false),
            (VOLUME, &id, false),
            (VOLUME, "bottle-0123abcd-proxy-b", false),
            (LAYERS, "/home/precious", false),
            (GUEST, &format!("../{}", &id[3..]), false),
            (NETWORK, &id[1..], false),
            (IMAGE, &format!("sha256:{id}"), true),
            (IMAGE, &id, false),
            ("runtime-folder", &id, false),
        ] {
            assert_eq!(is_id(&Resource::new(&slug, kind, id.to_owned()), &names), good, "{kind} {id}");
        }
    }

    #[test]
    fn each_part_matches_its_kinds_only() {
        for part in
            [Part::Agent, Part::Kept, Part::Bundle, Part::Inner, Part::Outer, Part::Sockets, Part::State]
        {
            let kinds =
                [GUEST, LAYERS, BUNDLE, NETWORK, VOLUME].into_iter().filter(|kind| kind_fits(part, kind));
            let container = [Part::Agent, Part::Kept].contains(&part);
            assert_eq!(kinds.count(), if container { 2 } else { 1 }, "{part:?}");
        }
    }
}
