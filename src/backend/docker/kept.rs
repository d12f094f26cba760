//! Resumes a kept container.
//!
//! The container's network and addresses no longer exist. A new container with the same files therefore replaces it:
//!
//! ```text
//!   agent (stopped) ─commit─► image ─rename─► agent, set aside ─create─► agent (new) ─remove─► only the new one
//! ```
//! After a crash, either the old or the new container is complete. Both have the same label.

use bollard::query_parameters::{
    InspectContainerOptions, RemoveContainerOptionsBuilder, RemoveImageOptions, RenameContainerOptions,
};
use bottle_contract::names::Slug;

use super::commit::{KEPT_HOME, KEPT_SLUG, commit, inspect, list_labelled};
use super::container::{find, find_agent};
use super::engine::{Engine, EngineError, PART_REMOVED_HINT};
use super::names::{Names, Part};
use crate::backend::{BackendError, Launch, Resource};

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
    let kept = find_agent(engine, names, slug).await.map_err(failed)?;
    let gone = || {
        BackendError::failed(format!("cannot resume {slug}: it has no kept container"))
            .with_hint(PART_REMOVED_HINT)
    };
    let kept = kept.ok_or_else(gone)?;
    set_aside(engine, names, slug).await.map_err(failed)?;
    let tag = format!("{}-{slug}", names.home());
    let labels = [(KEPT_HOME, names.home()), (KEPT_SLUG, slug.as_str())];
    // Until a container uses the image, cleanup finds it by its label. Afterwards the image is removed with that
    // container.
    commit(engine, &kept.id, (REPOSITORY, &tag), &labels).await.map_err(failed)
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
