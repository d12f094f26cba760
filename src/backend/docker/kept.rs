//! Going on with a container that was kept.
//!
//! Its network is gone and its addresses with it, so a new container takes its place, made of its files:
//!
//! ```text
//!   agent (stopped) ─commit─► image ─rename─► agent, kept aside ─create─► agent (new) ─remove─► new one only
//! ```
//! Whoever kills this process finds the old container or the new one whole, by the same label.

use bollard::query_parameters::{
    InspectContainerOptions, RemoveContainerOptionsBuilder, RemoveImageOptions, RenameContainerOptions,
};
use bottle_contract::names::Slug;

use super::commit::{commit, labelled};
use super::container::{find, find_agent};
use super::engine::{Engine, EngineError, LEFT};
use super::inventory::{IMAGE, resource};
use super::names::{Names, Part};
use crate::backend::{BackendError, Resource, Site};

/// The repository of these images.
const REPOSITORY: &str = "bottle-kept";
/// The label with the home's hash.
pub(super) const HOME: &str = "bottle.kept";
/// The label with the bottle's slug.
pub(super) const OF: &str = "bottle.kept.of";

/// Makes an image of what was kept, and clears the container's name. The answer is the image's id.
///
/// # Errors
/// [`BackendError`] when nothing was kept, or the engine cannot.
pub(super) async fn image_of(
    engine: &Engine,
    names: &Names,
    site: &Site<'_>,
) -> Result<String, BackendError> {
    let slug = &site.plan.identity.slug;
    let failed = |error: EngineError| error.during(&format!("go on with what was kept of {slug}"));
    let kept = find_agent(engine, names, slug).await.map_err(failed)?;
    let gone = || BackendError::failed(format!("nothing was kept of {slug}")).with_hint(LEFT);
    let kept = kept.ok_or_else(gone)?;
    clear_the_name(engine, names, slug).await.map_err(failed)?;
    let tag = format!("{}-{slug}", names.home());
    let labels = [(HOME, names.home()), (OF, slug.as_str())];
    // Found by its label until a container stands on it, and removed with that one after.
    commit(engine, &kept.id, (REPOSITORY, &tag), &labels).await.map_err(failed)
}

/// Sets the agent's container aside, where there is one. There is none when a launch that was killed came as
/// far as this.
///
/// # Errors
/// [`EngineError`] when the engine cannot.
pub(super) async fn clear_the_name(engine: &Engine, names: &Names, slug: &Slug) -> Result<(), EngineError> {
    let Some(agent) = find(engine, names, Part::Agent, slug).await? else { return Ok(()) };
    // One that was set aside already is older: this one began with it.
    remove_aside(engine, names, slug).await?;
    let options = RenameContainerOptions { name: names.name(Part::Kept, slug) };
    engine.ask(engine.docker().rename_container(&agent.id, options)).await
}

/// Removes what was set aside, now that another container has its files.
///
/// # Errors
/// [`EngineError`] when the engine cannot.
pub(super) async fn remove_aside(engine: &Engine, names: &Names, slug: &Slug) -> Result<(), EngineError> {
    let Some(aside) = find(engine, names, Part::Kept, slug).await? else { return Ok(()) };
    let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
    match engine.ask(engine.docker().remove_container(&aside.id, Some(options))).await {
        Err(error) if !error.is_missing() => Err(error),
        _ => Ok(()),
    }
}

/// The images of this home that bottles went on with, but for those in `used`.
///
/// # Errors
/// [`EngineError`] when the engine cannot be asked.
pub(super) async fn unused(
    engine: &Engine,
    names: &Names,
    used: &[String],
) -> Result<Vec<Resource>, EngineError> {
    let images = labelled(engine, HOME, names.home()).await?;
    let free = images.into_iter().filter(|image| !used.contains(&image.id));
    let ours = free.filter_map(|image| {
        let slug: Slug = image.labels.get(OF)?.parse().ok()?;
        Some(resource(&slug, IMAGE, image.id))
    });
    Ok(ours.collect())
}

/// Whether such an image exists; an error when it does and is another's.
///
/// # Errors
/// A sentence fragment.
pub(super) async fn is_there(engine: &Engine, names: &Names, resource: &Resource) -> Result<bool, String> {
    let image = match engine.ask(engine.docker().inspect_image(&resource.id)).await {
        Ok(image) => image,
        Err(error) if error.is_missing() => return Ok(false),
        Err(error) => return Err(error.to_string()),
    };
    let labels = image.config.and_then(|config| config.labels).unwrap_or_default();
    let label = |name: &str| labels.get(name).map(String::as_str);
    let ours = label(HOME) == Some(names.home()) && label(OF) == Some(resource.slug.as_str());
    if ours { Ok(true) } else { Err("it is not this bottle's, by its labels".to_owned()) }
}

/// The image of ours that a container stands on.
///
/// # Errors
/// [`EngineError`] when the engine cannot be asked.
pub(super) async fn image_under(
    engine: &Engine,
    names: &Names,
    container: &str,
) -> Result<Option<String>, EngineError> {
    let asked = engine.docker().inspect_container(container, None::<InspectContainerOptions>);
    let container = engine.ask(asked).await?;
    let labels = container.config.and_then(|config| config.labels).unwrap_or_default();
    // A container has the labels of its image.
    Ok(container.image.filter(|_| labels.get(HOME).is_some_and(|home| home == names.home())))
}

/// Removes an image of ours; one that a container stands on stays until that is removed.
///
/// # Errors
/// [`EngineError`] when the engine cannot.
pub(super) async fn remove_image(engine: &Engine, id: &str) -> Result<(), EngineError> {
    match engine.ask(engine.docker().remove_image(id, None::<RemoveImageOptions>, None)).await {
        Err(EngineError::Refused { status: 404 | 409, .. }) => Ok(()),
        other => other.map(drop),
    }
}
