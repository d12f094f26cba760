//! Continues a kept container, or opens its files.
//!
//! ```text
//!   wired as now:  agent (stopped) ─limits─► the same container, which the caller starts again
//!   otherwise:     agent (stopped) ─image─► image ─rename─► set-aside agent ─create─► new agent ─remove─► new one only
//! ```
//! A container whose network no longer exists cannot be started again. The user, the mounts and the runtime of a
//! container cannot be changed. In these cases, a new container with the same files, and with the volumes of the image,
//! replaces the kept container. After a crash, either the old or the new container is complete. Both containers have
//! the same label.

use bollard::models::{ContainerCreateBody, ContainerInspectResponse, ContainerUpdateBody, HostConfig};
use bollard::query_parameters::{RemoveContainerOptionsBuilder, RemoveImageOptions, RenameContainerOptions};
use bottle_backend::{BackendError, LAYERS, ProgressSink, Resource, ResourceLog};
use bottle_policy::names::Slug;
use sha2::{Digest, Sha256};

use super::agent::Agent;
use super::commit::{KEPT_HOME, KEPT_SLUG, inspect, list_labelled};
use super::container::{Found, create, find, find_agent};
use super::engine::{Engine, EngineError, PART_REMOVED_HINT};
use super::flatten::{self, MAX_LAYERS, Source};
use super::live::{self, WorkspaceFiles};
use super::names::{Names, Part, WIRING};
use super::shared_objects;

/// The repository name of kept containers' images.
const REPOSITORY: &str = "bottle-kept";
/// The [`Resource::kind`] of a kept container's image that no container uses.
pub(super) const IMAGE: &str = "kept-image";

/// The number of layers from which on the image of a new container is flattened. This number leaves room for the layers
/// of later snapshots.
pub(super) const FLATTENED_AT: usize = 100;

/// Finds the kept container of a bottle.
///
/// # Errors
/// [`BackendError`] when the bottle has no kept container, or the engine fails. `verb` names the action that needs the
/// container.
pub(super) async fn find_kept(
    engine: &Engine,
    names: &Names,
    slug: &Slug,
    verb: &str,
) -> Result<Found, BackendError> {
    let failed = |error: EngineError| error.during(&format!("{verb} the kept container of {slug}"));
    let gone = || {
        BackendError::failed(format!("cannot {verb} {slug}: it has no kept container"))
            .with_hint(PART_REMOVED_HINT)
    };
    find_agent(engine, names, slug).await.map_err(failed)?.ok_or_else(gone)
}

/// Returns the id of a stopped container with the kept files and the settings of `agent`. Ignores the image in `agent`.
/// Returns the kept container itself if it has the same wiring. Otherwise creates a new container that replaces the
/// kept container. Records the container. The container mounts the shared git objects if the kept container mounts
/// them.
///
/// # Errors
/// [`BackendError`] when there is no kept container, or the engine fails. `verb` names the action that needs the
/// container.
pub(super) async fn continue_kept(
    engine: &Engine,
    resources: &dyn ResourceLog,
    verb: &str,
    agent: Agent<'_>,
    progress: &ProgressSink,
) -> Result<String, BackendError> {
    let Agent { names, slug, .. } = agent;
    let failed = |error: EngineError| error.during(&format!("{verb} the kept container of {slug}"));
    let kept = find_kept(engine, names, slug, verb).await?;
    let agent = with_kept_mounts(engine, &kept.id, agent).await.map_err(failed)?;
    if fits(engine, &kept.id, &agent.body()).await.map_err(failed)? {
        restore_name(engine, names, slug).await.map_err(failed)?;
        resources.record(Resource::new(slug, LAYERS, kept.id.clone()))?;
        return Ok(kept.id);
    }
    let image = image_of_files(engine, names, slug, &kept.id, ("", FLATTENED_AT), progress).await;
    let image = image.map_err(failed)?;
    set_aside(engine, names, slug).await.map_err(failed)?;
    let agent = Agent { image: &image, ..agent };
    let container = create_agent(engine, &agent, Some(&kept.id)).await.map_err(failed)?;
    resources.record(Resource::new(slug, LAYERS, container.clone()))?;
    // The volumes of the set-aside container stay, because the new container uses them.
    remove_set_aside(engine, names, slug, false).await.map_err(failed)?;
    Ok(container)
}

/// Creates a container that reads a copy of the kept files, with the settings of `agent`. Ignores the image in `agent`.
/// Returns the container's id. Does not change the kept container. As in [`continue_kept`], the container mounts the
/// shared git objects if the kept container mounts them.
///
/// # Errors
/// The errors of [`continue_kept`].
pub(super) async fn make_reader(engine: &Engine, agent: Agent<'_>) -> Result<String, BackendError> {
    let Agent { names, slug, .. } = agent;
    let failed = |error: EngineError| error.during(&format!("open the kept container of {slug}"));
    let kept = find_kept(engine, names, slug, "open").await?;
    let progress = ProgressSink::discard();
    let image = image_of_files(engine, names, slug, &kept.id, ("-read", MAX_LAYERS), &progress).await;
    let image = image.map_err(failed)?;
    let agent = with_kept_mounts(engine, &kept.id, agent).await.map_err(failed)?;
    let agent = Agent { image: &image, ..agent };
    create_agent(engine, &agent, Some(&format!("{}:ro", kept.id))).await.map_err(failed)
}

/// Returns the settings of `agent`, with the shared objects only if the kept container mounts them. If the kept
/// container mounts a directory of the user and `agent` does not, the new container must not inherit that mount.
async fn with_kept_mounts<'a>(
    engine: &Engine,
    kept: &str,
    agent: Agent<'a>,
) -> Result<Agent<'a>, EngineError> {
    let shares = agent.objects.is_some() && shared_objects::are_mounted(engine, kept).await?;
    let workspace = match agent.workspace {
        WorkspaceFiles::Own if live::mounted(engine, kept).await?.directory.is_some() => {
            WorkspaceFiles::Repository
        }
        workspace => workspace,
    };
    Ok(Agent { objects: agent.objects.filter(|_| shares), workspace, ..agent })
}

/// Creates an agent's container, with its wiring as a label. If `volumes_of` is given, the new container uses the image
/// volumes of that container. Returns the id of the new container.
///
/// # Errors
/// [`EngineError`].
pub(super) async fn create_agent(
    engine: &Engine,
    agent: &Agent<'_>,
    volumes_of: Option<&str>,
) -> Result<String, EngineError> {
    let mut body = agent.body();
    let wiring = wiring(&body);
    body.labels.get_or_insert_default().insert(WIRING.to_owned(), wiring);
    let host = body.host_config.get_or_insert_default();
    host.volumes_from = volumes_of.map(|container| vec![container.to_owned()]);
    if volumes_of.is_some() {
        host.mounts.get_or_insert_default().retain(|mount| !live::is_repository(mount));
    }
    create(engine, &agent.names.name(agent.part, agent.slug), body).await
}

/// Returns an image with the files of a kept container. Until a container uses the image, cleanup finds the image by
/// its label. Afterwards the image is removed with that container. `suffix` is the end of the image's tag. An image
/// with `limit` layers is flattened.
async fn image_of_files(
    engine: &Engine,
    names: &Names,
    slug: &Slug,
    container: &str,
    (suffix, limit): (&str, usize),
    progress: &ProgressSink,
) -> Result<String, EngineError> {
    let tag = format!("{}-{slug}{suffix}", names.home());
    let labels = [(KEPT_HOME, names.home()), (KEPT_SLUG, slug.as_str())];
    let source = Source { engine, names, slug, progress };
    source.image_of_container(container, limit, (REPOSITORY, &tag), &labels).await
}

/// If the image has too many layers, returns an image with the same files and fewer layers. Otherwise returns the image
/// itself.
///
/// # Errors
/// [`EngineError`].
pub(super) async fn shallow(
    engine: &Engine,
    names: &Names,
    slug: &Slug,
    image: String,
    progress: &ProgressSink,
) -> Result<String, EngineError> {
    if flatten::layers(engine, &image).await?.is_none_or(|layers| layers < FLATTENED_AT) {
        return Ok(image);
    }
    let tag = format!("{}-{slug}", names.home());
    let labels = [(KEPT_HOME, names.home()), (KEPT_SLUG, slug.as_str())];
    let source = Source { engine, names, slug, progress };
    source.flat_image(&image, (REPOSITORY, &tag), &labels).await
}

/// Whether the container can be started with the settings of `wanted`. If only the limits differ, changes the
/// container's limits.
async fn fits(engine: &Engine, container: &str, wanted: &ContainerCreateBody) -> Result<bool, EngineError> {
    let ContainerInspectResponse { config, host_config, .. } = engine.inspect_container(container).await?;
    let labels = config.and_then(|config| config.labels).unwrap_or_default();
    if labels.get(WIRING).is_none_or(|label| *label != wiring(wanted)) {
        return Ok(false);
    }
    let (now, wanted) = (host_config.unwrap_or_default(), wanted.host_config.clone().unwrap_or_default());
    match changed_limits(&now, &wanted) {
        Limits::Same => Ok(true),
        Limits::Removed => Ok(false),
        Limits::Changed(changed) => {
            engine.call(engine.docker().update_container(container, *changed)).await.map(|()| true)
        }
    }
}

/// Returns a hash of all settings that a container cannot change, except its image.
fn wiring(body: &ContainerCreateBody) -> String {
    let mut body = body.clone();
    body.image = None;
    if let Some(host) = &mut body.host_config {
        (host.memory, host.memory_swap, host.nano_cpus, host.pids_limit) = (None, None, None, None);
    }
    // The keys of a JSON value are sorted. The encoding never fails, because the keys of its maps are strings.
    let value = serde_json::to_value(&body).unwrap_or_default();
    hex::encode(Sha256::digest(value.to_string()))
}

/// How the limits of a container differ from the wanted limits.
#[derive(Debug, PartialEq)]
enum Limits {
    Same,
    Changed(Box<ContainerUpdateBody>),
    /// The container has a limit that is not wanted. An engine cannot remove a limit.
    Removed,
}

fn changed_limits(now: &HostConfig, wanted: &HostConfig) -> Limits {
    let pair = |field: fn(&HostConfig) -> Option<i64>| {
        let set = |host| field(host).filter(|limit| *limit > 0);
        (set(now), set(wanted))
    };
    let pairs = [pair(|host| host.memory), pair(|host| host.nano_cpus), pair(|host| host.pids_limit)];
    if pairs.iter().any(|(now, wanted)| now.is_some() && wanted.is_none()) {
        return Limits::Removed;
    }
    if pairs.iter().all(|(now, wanted)| now == wanted) {
        return Limits::Same;
    }
    let [(_, memory), (_, nano_cpus), (_, pids_limit)] = pairs;
    let memory_swap = memory.and(wanted.memory_swap);
    Limits::Changed(Box::new(ContainerUpdateBody {
        memory,
        memory_swap,
        nano_cpus,
        pids_limit,
        ..ContainerUpdateBody::default()
    }))
}

/// Restores the name of a container that an interrupted launch set aside, unless the bottle has another agent's
/// container.
async fn restore_name(engine: &Engine, names: &Names, slug: &Slug) -> Result<(), EngineError> {
    if find(engine, names, Part::Agent, slug).await?.is_some() {
        return Ok(());
    }
    let Some(aside) = find(engine, names, Part::Kept, slug).await? else { return Ok(()) };
    let options = RenameContainerOptions { name: names.name(Part::Agent, slug) };
    engine.call(engine.docker().rename_container(&aside.id, options)).await
}

/// Renames the agent's container to free its name. Does nothing if an interrupted launch already renamed the container.
///
/// # Errors
/// [`EngineError`] when the container cannot be renamed.
pub(super) async fn set_aside(engine: &Engine, names: &Names, slug: &Slug) -> Result<(), EngineError> {
    let Some(agent) = find(engine, names, Part::Agent, slug).await? else { return Ok(()) };
    // An earlier set-aside container is outdated, because the current agent's container was created from it.
    remove_set_aside(engine, names, slug, false).await?;
    let options = RenameContainerOptions { name: names.name(Part::Kept, slug) };
    engine.call(engine.docker().rename_container(&agent.id, options)).await
}

/// Removes the set-aside container, because the new container replaces it. `volumes` says whether the set-aside
/// container's image volumes are removed too.
///
/// # Errors
/// [`EngineError`] when the container cannot be removed.
pub(super) async fn remove_set_aside(
    engine: &Engine,
    names: &Names,
    slug: &Slug,
    volumes: bool,
) -> Result<(), EngineError> {
    let Some(aside) = find(engine, names, Part::Kept, slug).await? else { return Ok(()) };
    let options = RemoveContainerOptionsBuilder::new().force(true).v(volumes).build();
    engine.call_if_there(engine.docker().remove_container(&aside.id, Some(options))).await.map(drop)
}

/// Returns the images of kept containers of this `$BOTTLE_HOME`, including images that a container uses.
///
/// # Errors
/// [`EngineError`] when the engine cannot be queried.
pub(super) async fn images(engine: &Engine, names: &Names) -> Result<Vec<Resource>, EngineError> {
    let images = list_labelled(engine, KEPT_HOME, names.home()).await?;
    let ours = images.into_iter().filter_map(|image| {
        let slug: Slug = image.labels.get(KEPT_SLUG)?.parse().ok()?;
        Some(Resource::new(&slug, IMAGE, image.id))
    });
    Ok(ours.collect())
}

/// Whether this image belongs to the resource's bottle. Returns `None` if the image does not exist.
///
/// # Errors
/// [`EngineError`] when the engine cannot be queried.
pub(super) async fn is_owned(
    engine: &Engine,
    names: &Names,
    resource: &Resource,
) -> Result<Option<bool>, EngineError> {
    let Some(image) = inspect(engine, &resource.id).await? else { return Ok(None) };
    let label = |name: &str| image.labels.get(name).map(String::as_str);
    Ok(Some(label(KEPT_HOME) == Some(names.home()) && label(KEPT_SLUG) == Some(resource.slug.as_str())))
}

/// Returns the image of a container, if that image was committed from a kept container of this `$BOTTLE_HOME`.
///
/// # Errors
/// [`EngineError`] when the engine cannot be queried.
pub(super) async fn base_image(
    engine: &Engine,
    names: &Names,
    container: &str,
) -> Result<Option<String>, EngineError> {
    let container = engine.inspect_container(container).await?;
    let labels = container.config.and_then(|config| config.labels).unwrap_or_default();
    // A container inherits the labels of its image.
    Ok(container.image.filter(|_| labels.get(KEPT_HOME).is_some_and(|home| home == names.home())))
}

/// Removes the image of a kept container. If other images, such as snapshots, are based on this image, the image only
/// loses its name. The engine later removes the image together with the last image that is based on it.
///
/// # Errors
/// [`EngineError`] when the image cannot be removed, for example because a container uses it.
pub(super) async fn remove_image(engine: &Engine, id: &str) -> Result<(), EngineError> {
    let remove = async |name: &str| {
        engine.call_if_there(engine.docker().remove_image(name, None::<RemoveImageOptions>, None)).await
    };
    let refused = match remove(id).await {
        Err(error @ EngineError::Refused { status: 409, .. }) => error,
        other => return other.map(drop),
    };
    let tags = inspect(engine, id).await?.map(|image| image.tags).unwrap_or_default();
    let own: Vec<&String> = tags.iter().filter(|tag| tag.starts_with(REPOSITORY)).collect();
    if own.is_empty() && !refused.contains("child images") {
        return Err(refused);
    }
    for tag in own {
        remove(tag).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wiring_ignores_the_image_and_the_limits_only() {
        let body = |image: &str, user: &str, memory, runtime: Option<&str>| ContainerCreateBody {
            image: Some(image.to_owned()),
            user: Some(user.to_owned()),
            host_config: Some(HostConfig {
                memory,
                runtime: runtime.map(str::to_owned),
                sysctls: Some((0..20).map(|n| (format!("a{n}"), "1".to_owned())).collect()),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        };
        let one = wiring(&body("a", "1:1", None, None));
        assert_eq!(one, wiring(&body("b", "1:1", Some(1 << 30), None)));
        assert_ne!(one, wiring(&body("a", "2:2", None, None)));
        assert_ne!(one, wiring(&body("a", "1:1", None, Some("runsc"))));
    }

    #[test]
    fn limits_are_changed_in_place_unless_one_is_removed() {
        let host = |memory: Option<i64>, pids: Option<i64>| HostConfig {
            memory,
            memory_swap: memory,
            pids_limit: pids,
            ..HostConfig::default()
        };
        // The engine reports a missing limit as 0.
        assert_eq!(changed_limits(&host(Some(0), Some(9)), &host(None, Some(9))), Limits::Same);
        assert_eq!(changed_limits(&host(Some(5), Some(9)), &host(None, Some(9))), Limits::Removed);
        let Limits::Changed(changed) = changed_limits(&host(Some(0), Some(9)), &host(Some(7), Some(9)))
        else {
            panic!("unchanged");
        };
        assert_eq!((changed.memory, changed.memory_swap, changed.pids_limit), (Some(7), Some(7), Some(9)));
    }
}
