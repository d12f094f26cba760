//! An image of a bottle's container, as the engine commits it.
//!
//! What belongs to one launch is in no image: it lies in memory. What would make a container of it look like a
//! bottle is taken out: our labels, our program as the entrypoint.

use std::collections::HashMap;
use std::time::Duration;

use bollard::models::ContainerConfig;
use bollard::query_parameters::{CommitContainerOptionsBuilder, ListImagesOptions};

use super::engine::{Engine, EngineError};
use super::{freeze, kept, names};

/// How long a commit may take: every changed file of the bottle is copied.
const COMMITTED_WITHIN: Duration = Duration::from_secs(15 * 60);

/// Labels that say what a container or image is to its bottle. One of a container stays in its image unless
/// another value takes its place.
const OURS: [&str; 8] =
    [names::HOME, names::SLUG, names::ROLE, freeze::HOME, freeze::OF, freeze::MADE_AT, kept::HOME, kept::OF];

/// An image that was committed, as it is listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Committed {
    /// The engine's id.
    pub(super) id: String,
    /// Its tags, with their repository.
    pub(super) tags: Vec<String>,
    /// Its labels.
    pub(super) labels: HashMap<String, String>,
    /// Bytes, those it shares with others included.
    pub(super) size: i64,
    /// The image it was made on, when the engine tells.
    pub(super) parent: Option<String>,
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
    let filters = HashMap::from([("label".to_owned(), vec![format!("{label}={value}")])]);
    let options = ListImagesOptions { filters: Some(filters), ..ListImagesOptions::default() };
    let mut images = engine.ask(engine.docker().list_images(Some(options))).await?;
    images.sort_by_key(|image| image.created);
    Ok(images
        .into_iter()
        .map(|image| Committed {
            id: image.id,
            tags: image.repo_tags,
            labels: image.labels,
            size: image.size,
            parent: Some(image.parent_id).filter(|parent| !parent.is_empty()),
        })
        .collect())
}

impl Committed {
    /// Bytes it would free, when the engine tells what it was made on.
    ///
    /// # Errors
    /// [`EngineError`] when the engine cannot be asked.
    pub(super) async fn own_size(&self, engine: &Engine) -> Result<Option<u64>, EngineError> {
        let Some(parent) = &self.parent else { return Ok(None) };
        let parent = match engine.ask(engine.docker().inspect_image(parent)).await {
            Ok(parent) => parent.size,
            Err(error) if error.is_missing() => None,
            Err(error) => return Err(error),
        };
        Ok(parent.and_then(|parent| u64::try_from(self.size - parent).ok()))
    }
}
