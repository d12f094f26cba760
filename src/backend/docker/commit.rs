//! An image of a bottle's container, as the engine commits it.
//!
//! What belongs to one launch is in no image: it lies in memory. What would make a container of it look like a
//! bottle is taken out: our labels, our program as the entrypoint.

use std::collections::HashMap;
use std::time::Duration;

use bollard::models::ContainerConfig;
use bollard::query_parameters::CommitContainerOptionsBuilder;

use super::engine::{Engine, EngineError};
use super::{freeze, kept, listing, names};

/// How long a commit may take: every changed file of the bottle is copied.
const COMMITTED_WITHIN: Duration = Duration::from_secs(15 * 60);

/// Labels that say what a container or image is to its bottle. One of a container stays in its image unless
/// another value takes its place.
const OURS: [&str; 8] =
    [names::HOME, names::SLUG, names::ROLE, freeze::HOME, freeze::OF, freeze::MADE_AT, kept::HOME, kept::OF];

/// An image that was committed, as the engine lists it or says of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Committed {
    /// The engine's id.
    pub(super) id: String,
    /// Its tags, with their repository.
    pub(super) tags: Vec<String>,
    /// Its labels.
    pub(super) labels: HashMap<String, String>,
}

/// Commits a container under this tag, with these labels instead of ours. One that runs stands still for the
/// moment, so that all its files are of the same one.
///
/// # Errors
/// [`EngineError`]; there is no such image then.
pub(super) async fn commit(
    engine: &Engine,
    container: &str,
    (repository, tag): (&str, &str),
    labels: &[(&str, &str)],
) -> Result<String, EngineError> {
    let options = CommitContainerOptionsBuilder::new()
        .container(container)
        .repo(repository)
        .tag(tag)
        .pause(true)
        .build();
    let cleared = OURS.map(|label| (label, ""));
    let labels = cleared.iter().chain(labels).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let config = ContainerConfig {
        labels: Some(labels.collect()),
        entrypoint: Some(Vec::new()),
        cmd: Some(vec!["/bin/sh".to_owned()]),
        ..ContainerConfig::default()
    };
    let patient = engine.docker().clone().with_timeout(COMMITTED_WITHIN);
    let committed = engine.ask_within(COMMITTED_WITHIN, patient.commit_container(options, config)).await?;
    Ok(committed.id)
}

/// Every image with this label, the oldest first.
///
/// # Errors
/// [`EngineError`] when the engine cannot be asked.
pub(super) async fn labelled(
    engine: &Engine,
    label: &str,
    value: &str,
) -> Result<Vec<Committed>, EngineError> {
    let listed = listing::images(engine.docker(), "label", vec![format!("{label}={value}")]);
    let mut images = engine.ask(listed).await?;
    images.sort_by_key(|image| image.created);
    Ok(images
        .into_iter()
        .map(|image| Committed { id: image.id, tags: image.repo_tags, labels: image.labels })
        .collect())
}

/// The image of this id or name; none when it is not there.
///
/// # Errors
/// [`EngineError`] when the engine cannot be asked.
pub(super) async fn inspected(engine: &Engine, image: &str) -> Result<Option<Committed>, EngineError> {
    match engine.ask(engine.docker().inspect_image(image)).await {
        Ok(found) => Ok(Some(Committed {
            id: found.id.unwrap_or_default(),
            tags: found.repo_tags.unwrap_or_default(),
            labels: found.config.and_then(|config| config.labels).unwrap_or_default(),
        })),
        Err(error) if error.is_missing() => Ok(None),
        Err(error) => Err(error),
    }
}

impl Committed {
    /// Bytes it adds to the image that bottles of its kind share.
    ///
    /// A bottle that goes on from an image of ours leaves that one as a layer of the next. Its bytes count here
    /// too, unless it is a snapshot by itself, other than the one that this one takes the place of.
    ///
    /// # Errors
    /// [`EngineError`] when the engine cannot be asked.
    pub(super) async fn own_size(
        &self,
        engine: &Engine,
        home: &str,
        replaced: Option<&str>,
    ) -> Result<u64, EngineError> {
        let layers = engine.ask(engine.docker().image_history(&self.id)).await?;
        let mut bytes = 0_u64;
        for (index, layer) in layers.iter().enumerate() {
            if index > 0 && !is_below(engine, home, replaced, &layer.id).await? {
                break;
            }
            bytes = bytes.saturating_add(u64::try_from(layer.size).unwrap_or_default());
        }
        Ok(bytes)
    }
}

/// Whether this layer's image is one of ours that nothing but the images on it holds.
async fn is_below(
    engine: &Engine,
    home: &str,
    replaced: Option<&str>,
    id: &str,
) -> Result<bool, EngineError> {
    // An engine that does not know the image of a layer says `<missing>`.
    if !id.starts_with("sha256:") {
        return Ok(false);
    }
    let image = match engine.ask(engine.docker().inspect_image(id)).await {
        Ok(image) => image,
        Err(error) if error.is_missing() => return Ok(false),
        Err(error) => return Err(error),
    };
    let labels = image.config.and_then(|config| config.labels).unwrap_or_default();
    let ours = [freeze::HOME, kept::HOME].iter().any(|label| labels.get(*label).is_some_and(|of| of == home));
    let mut tags = image.repo_tags.iter().flatten();
    let stays = tags.any(|tag| tag.starts_with(freeze::REPOSITORY) && replaced != Some(tag.as_str()));
    Ok(ours && !stays)
}
