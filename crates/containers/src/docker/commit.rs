//! Commits a bottle's container to an image.
//!
//! The image contains no data that only one launch uses, because such data is only in tmpfs directories. The commit
//! removes the bottle's labels and the entrypoint that `bottle` set, so that a container of the image does not look
//! like a bottle.

use std::collections::HashMap;

use bollard::models::ContainerConfig;

use super::engine::{Engine, EngineError};
use super::podman::{Commit, Committer, short_name};
use super::{listing, names};

/// The repository name of all snapshots.
pub(crate) const SNAPSHOT_REPOSITORY: &str = "bottle-snapshot";
/// The snapshot label that contains the hash of `$BOTTLE_HOME`.
pub(crate) const SNAPSHOT_HOME: &str = "bottle.snapshot";
/// The snapshot label that contains the bottle's slug.
pub(crate) const SNAPSHOT_SLUG: &str = "bottle.snapshot.of";
/// The snapshot label that contains the time of the snapshot.
pub(crate) const SNAPSHOT_MADE_AT: &str = "bottle.snapshot.made-at";
/// The snapshot label that contains the name that the user gave to the snapshot. Empty for a snapshot without a name.
pub(crate) const SNAPSHOT_NAME: &str = "bottle.snapshot.name";
/// The snapshot label that contains the reference of the snapshot's parent. Empty for a snapshot without a parent.
pub(crate) const SNAPSHOT_PARENT: &str = "bottle.snapshot.parent";
/// The label, on the image of a kept container, that contains the hash of `$BOTTLE_HOME`.
pub(crate) const KEPT_HOME: &str = "bottle.kept";
/// The label, on the image of a kept container, that contains the bottle's slug.
pub(crate) const KEPT_SLUG: &str = "bottle.kept.of";

/// The labels that identify a bottle's containers and images. A commit copies a container's labels unless the request
/// overwrites them.
const OWN_LABELS: [&str; 11] = [
    names::HOME,
    names::SLUG,
    names::ROLE,
    names::WIRING,
    SNAPSHOT_HOME,
    SNAPSHOT_SLUG,
    SNAPSHOT_MADE_AT,
    SNAPSHOT_NAME,
    SNAPSHOT_PARENT,
    KEPT_HOME,
    KEPT_SLUG,
];

/// A committed image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Committed {
    /// The engine's id of the image.
    pub(super) id: String,
    /// The image's tags, including the repository name.
    pub(super) tags: Vec<String>,
    /// The image's labels.
    pub(super) labels: HashMap<String, String>,
}

/// Commits a container to an image with this tag. The image has `labels` instead of the bottle's labels. The engine
/// pauses a running container during the commit, because a commit fails if a file shrinks while the engine reads it.
///
/// # Errors
/// [`EngineError`]. No image is then created. Only if the engine completes the commit after the time limit, an image
/// exists.
pub(super) async fn commit(
    engine: &Engine,
    container: &str,
    (repository, tag): (&str, &str),
    labels: &[(&str, &str)],
) -> Result<String, EngineError> {
    let cleared = OWN_LABELS.map(|label| (label, ""));
    let labels = cleared.iter().chain(labels).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let config = ContainerConfig {
        labels: Some(labels.collect()),
        entrypoint: Some(Vec::new()),
        cmd: Some(vec!["/bin/sh".to_owned()]),
        ..ContainerConfig::default()
    };
    let commit = Commit { container, repository, tag, comment: "", config };
    Committer::new(engine.docker(), engine.podman_socket()).commit(commit).await
}

/// Lists every image with this label, oldest first.
///
/// # Errors
/// [`EngineError`] when the engine cannot be queried.
pub(super) async fn list_labelled(
    engine: &Engine,
    label: &str,
    value: &str,
) -> Result<Vec<Committed>, EngineError> {
    let listed = listing::images(engine.docker(), "label", vec![format!("{label}={value}")]);
    let mut images = engine.call(listed).await?;
    images.sort_by_key(|image| image.created);
    Ok(images
        .into_iter()
        .map(|image| Committed { id: image.id, tags: image.repo_tags, labels: image.labels })
        .collect())
}

/// Returns the image with this id or name. `None` if the image does not exist.
///
/// # Errors
/// [`EngineError`] when the engine cannot be queried.
pub(super) async fn inspect(engine: &Engine, image: &str) -> Result<Option<Committed>, EngineError> {
    let found = engine.call_if_there(engine.docker().inspect_image(image)).await?;
    Ok(found.map(|found| Committed {
        id: found.id.unwrap_or_default(),
        tags: found.repo_tags.unwrap_or_default().into_iter().map(short_name).collect(),
        labels: found.config.and_then(|config| config.labels).unwrap_or_default(),
    }))
}

impl Committed {
    /// Returns the number of bytes that this image adds to the image from which the bottle was first started.
    ///
    /// The image of a resumed bottle has the bottle's earlier committed image as a layer. The number includes the bytes
    /// of that layer, except if the layer's image is still a separate snapshot other than `replaced`.
    ///
    /// # Errors
    /// [`EngineError`] when the engine cannot be queried.
    pub(super) async fn own_size(
        &self,
        engine: &Engine,
        home: &str,
        replaced: Option<&str>,
    ) -> Result<u64, EngineError> {
        let layers = engine.call(engine.docker().image_history(&self.id)).await?;
        let mut bytes = 0_u64;
        for (index, layer) in layers.iter().enumerate() {
            if index > 0 && !is_own_layer(engine, home, replaced, &layer.id).await? {
                break;
            }
            bytes = bytes.saturating_add(u64::try_from(layer.size).unwrap_or_default());
        }
        Ok(bytes)
    }
}

/// Whether the image of this layer was committed for the `$BOTTLE_HOME` with the hash `home`, and exists only because
/// later images are based on this image.
async fn is_own_layer(
    engine: &Engine,
    home: &str,
    replaced: Option<&str>,
    id: &str,
) -> Result<bool, EngineError> {
    // If the engine does not know the image of a layer, it returns the id `<missing>`.
    if !id.starts_with("sha256:") {
        return Ok(false);
    }
    let Some(Committed { labels, tags, .. }) = inspect(engine, id).await? else { return Ok(false) };
    let ours = [SNAPSHOT_HOME, KEPT_HOME].iter().any(|label| labels.get(*label).is_some_and(|of| of == home));
    let stays = tags.iter().any(|tag| tag.starts_with(SNAPSHOT_REPOSITORY) && replaced != Some(tag.as_str()));
    Ok(ours && !stays)
}
