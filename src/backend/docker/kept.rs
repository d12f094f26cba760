//! Resumes a kept container, or opens its files.
//!
//! The network or the socket volume of the container's launch no longer exists. A new container with the same files therefore replaces it:
//!
//! ```text
//!   agent (stopped) ─commit─► image ─rename─► agent, set aside ─create─► agent (new) ─remove─► only the new one
//! ```
//! After a crash, either the old or the new container is complete. Both have the same label.

use bollard::query_parameters::{
    InspectContainerOptions, RemoveContainerOptionsBuilder, RemoveImageOptions, RenameContainerOptions,
};
use bottle_contract::names::Slug;

use super::agent::Agent;
use super::commit::{KEPT_HOME, KEPT_SLUG, commit, inspect, list_labelled};
use super::container::{Found, create, find, find_agent};
use super::engine::{Engine, EngineError, PART_REMOVED_HINT};
use super::inventory::{GUEST, READER};
use super::launch::for_another;
use super::names::{Names, OPENED, Part};
use crate::backend::{Access, BackendError, KeptFiles, LAYERS, Launch, Resource};

/// The repository name of kept containers' images.
const REPOSITORY: &str = "bottle-kept";
/// The [`Resource::kind`] of a kept container's image that no container uses.
pub(super) const IMAGE: &str = "kept-image";

/// Commits the kept container, sets it aside, and returns the id of the committed image.
///
/// # Errors
/// [`BackendError`] when there is no kept container, or the engine fails.
pub(super) async fn commit_kept(
    engine: &Engine,
    names: &Names,
    launch: &Launch<'_>,
) -> Result<String, BackendError> {
    let slug = &launch.plan.identity.slug;
    let failed = |error: EngineError| error.during(&format!("resume the kept container of {slug}"));
    let kept = find_kept(engine, names, slug, "resume").await?;
    set_aside(engine, names, slug).await.map_err(failed)?;
    commit_files(engine, names, slug, &kept.id, "").await.map_err(failed)
}

/// Finds the kept container of a bottle.
///
/// # Errors
/// [`BackendError`] when there is none, or the engine fails. `verb` says what it is needed for.
async fn find_kept(engine: &Engine, names: &Names, slug: &Slug, verb: &str) -> Result<Found, BackendError> {
    let failed = |error: EngineError| error.during(&format!("{verb} the kept container of {slug}"));
    let gone = || {
        BackendError::failed(format!("cannot {verb} {slug}: it has no kept container"))
            .with_hint(PART_REMOVED_HINT)
    };
    find_agent(engine, names, slug).await.map_err(failed)?.ok_or_else(gone)
}

/// Commits the files of a kept container, and returns the id of the image. Until a container uses the image, cleanup
/// finds it by its label. Afterwards the image is removed with that container.
async fn commit_files(
    engine: &Engine,
    names: &Names,
    slug: &Slug,
    container: &str,
    suffix: &str,
) -> Result<String, EngineError> {
    let tag = format!("{}-{slug}{suffix}", names.home());
    let labels = [(KEPT_HOME, names.home()), (KEPT_SLUG, slug.as_str())];
    commit(engine, container, (REPOSITORY, &tag), &labels).await
}

/// Creates and records the container in which the preserved files are opened, without a network. Returns its id. Does
/// not start it.
///
/// The kept container itself cannot be started again, because the network or the socket volume of its launch no longer
/// exists. To change the files, a new container replaces it as for a resume. The new container can be started again any
/// number of times, so that not every command adds a layer to the image. To read the files, the container runs read-only on a copy, and the kept container
/// stays.
///
/// # Errors
/// [`BackendError`] when there is no kept container, or the engine fails.
pub(super) async fn open(
    engine: &Engine,
    names: &Names,
    kept: &KeptFiles<'_>,
    program: &str,
    runtime: Option<&str>,
) -> Result<String, BackendError> {
    let slug = kept.slug;
    let failed = |error: EngineError| error.during(&format!("open the files of {slug}"));
    let found = find_kept(engine, names, slug, "open").await?;
    let inside = kept.sandbox.prepared.inside.as_ref().ok_or_else(for_another)?;
    let (part, image) = match kept.access {
        Access::Write if is_opened(engine, &found.id, program).await.map_err(failed)? => {
            kept.ledger.record(Resource::new(slug, GUEST, found.id.clone()))?;
            return Ok(found.id);
        }
        Access::Write => {
            set_aside(engine, names, slug).await.map_err(failed)?;
            (Part::Agent, commit_files(engine, names, slug, &found.id, "").await.map_err(failed)?)
        }
        Access::Read => {
            (Part::Reader, commit_files(engine, names, slug, &found.id, "-read").await.map_err(failed)?)
        }
    };
    let agent = Agent {
        names,
        slug,
        part,
        image: &image,
        user: (inside.uid, inside.gid),
        program,
        transport: None,
        read_only: kept.access == Access::Read,
        limits: &kept.sandbox.limits,
        runtime,
        api: engine.pong.api,
    };
    let container = create(engine, &names.name(part, slug), agent.body()).await.map_err(failed)?;
    if part == Part::Reader {
        kept.ledger.record(Resource::new(slug, READER, container.clone()))?;
        return Ok(container);
    }
    kept.ledger.record_all(&[LAYERS, GUEST].map(|kind| Resource::new(slug, kind, container.clone())))?;
    remove_set_aside(engine, names, slug).await.map_err(failed)?;
    Ok(container)
}

/// Whether the container was created to open the files, with this program volume.
async fn is_opened(engine: &Engine, container: &str, program: &str) -> Result<bool, EngineError> {
    let asked = engine.docker().inspect_container(container, None::<InspectContainerOptions>);
    let labels = engine.call(asked).await?.config.and_then(|config| config.labels).unwrap_or_default();
    Ok(labels.get(OPENED).is_some_and(|volume| volume == program))
}

/// Renames the agent's container to free its name. Does nothing if an interrupted launch already renamed it.
///
/// # Errors
/// [`EngineError`] when the container cannot be renamed.
pub(super) async fn set_aside(engine: &Engine, names: &Names, slug: &Slug) -> Result<(), EngineError> {
    let Some(agent) = find(engine, names, Part::Agent, slug).await? else { return Ok(()) };
    // A container that was set aside earlier is outdated, because the present one was created from it.
    remove_set_aside(engine, names, slug).await?;
    let options = RenameContainerOptions { name: names.name(Part::Kept, slug) };
    engine.call(engine.docker().rename_container(&agent.id, options)).await
}

/// Removes the container that was set aside. The new container has its files.
///
/// # Errors
/// [`EngineError`] when the container cannot be removed.
pub(super) async fn remove_set_aside(engine: &Engine, names: &Names, slug: &Slug) -> Result<(), EngineError> {
    let Some(aside) = find(engine, names, Part::Kept, slug).await? else { return Ok(()) };
    let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
    engine.call_if_there(engine.docker().remove_container(&aside.id, Some(options))).await.map(drop)
}

/// The images of kept containers of this home, except those in `used`.
///
/// # Errors
/// [`EngineError`] when the engine cannot be queried.
pub(super) async fn unused(
    engine: &Engine,
    names: &Names,
    used: &[String],
) -> Result<Vec<Resource>, EngineError> {
    let images = list_labelled(engine, KEPT_HOME, names.home()).await?;
    let free = images.into_iter().filter(|image| !used.contains(&image.id));
    let ours = free.filter_map(|image| {
        let slug: Slug = image.labels.get(KEPT_SLUG)?.parse().ok()?;
        Some(Resource::new(&slug, IMAGE, image.id))
    });
    Ok(ours.collect())
}

/// Whether this image belongs to the resource's bottle. `None` if the image does not exist.
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

/// The image of a container, if that image was committed from a kept container of this home.
///
/// # Errors
/// [`EngineError`] when the engine cannot be queried.
pub(super) async fn base_image(
    engine: &Engine,
    names: &Names,
    container: &str,
) -> Result<Option<String>, EngineError> {
    let asked = engine.docker().inspect_container(container, None::<InspectContainerOptions>);
    let container = engine.call(asked).await?;
    let labels = container.config.and_then(|config| config.labels).unwrap_or_default();
    // A container inherits the labels of its image.
    Ok(container.image.filter(|_| labels.get(KEPT_HOME).is_some_and(|home| home == names.home())))
}

/// Removes the image of a kept container. An image in use stays, which is no error.
///
/// # Errors
/// [`EngineError`] when the image cannot be removed for another reason.
pub(super) async fn remove_image(engine: &Engine, id: &str) -> Result<(), EngineError> {
    match engine.call(engine.docker().remove_image(id, None::<RemoveImageOptions>, None)).await {
        Err(EngineError::Refused { status: 404 | 409, .. }) => Ok(()),
        other => other.map(drop),
    }
}
