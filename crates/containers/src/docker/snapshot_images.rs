//! Stores snapshots as images on the engine.
//!
//! A snapshot is named `bottle-snapshot:<home>-<slug>-<microseconds>`, and its labels contain the same data. Each
//! snapshot is a separate image that can be removed alone, even if it shares layers with other snapshots.

use std::path::Path;

use bollard::models::ContainerConfig;
use bollard::query_parameters::RemoveImageOptionsBuilder;
use bottle_backend::{BackendError, Copied, MadeSnapshot, NewSnapshot, Snapshot};
use bottle_policy::names::{Name, Slug, WORKSPACE};
use jiff::Timestamp;

use super::commit::{
    Committed, KEPT_HOME, KEPT_SLUG, SNAPSHOT_HOME, SNAPSHOT_MADE_AT, SNAPSHOT_NAME, SNAPSHOT_PARENT,
    SNAPSHOT_REPOSITORY, SNAPSHOT_SLUG, commit, inspect, list_labelled,
};
use super::container::{Found, find_agent};
use super::engine::{Engine, EngineError, PART_REMOVED_HINT, REMOVED_HINT};
use super::flatten::{MAX_LAYERS, Source};
use super::names::Names;
use super::snapshot_pause::{Pauser, SnapshotPause};
use super::{kept, live, shared_objects};

/// Implements [`bottle_backend::Snapshots::make_snapshot`]. `state` is the directory with the bottles' directories.
///
/// # Errors
/// [`BackendError`] when the bottle has no container, or the engine fails.
pub(super) async fn make(
    source: &Source<'_>,
    state: &Path,
    new: &NewSnapshot,
) -> Result<MadeSnapshot, BackendError> {
    let Source { engine, names, slug, progress } = *source;
    let failed = |error: EngineError| error.during(&format!("make a snapshot of {slug}"));
    let found = find_agent(engine, names, slug).await.map_err(failed)?;
    let gone = || {
        BackendError::failed(format!("cannot make a snapshot of {slug}: it has no container"))
            .with_hint(PART_REMOVED_HINT)
    };
    let container = found.ok_or_else(gone)?;
    let made_at = Timestamp::now();
    let tag = format!("{}-{slug}-{}", names.home(), made_at.as_microsecond());
    let moment = made_at.to_string();
    let labels = [
        (SNAPSHOT_HOME, names.home()),
        (SNAPSHOT_SLUG, slug.as_str()),
        (SNAPSHOT_MADE_AT, &moment),
        (SNAPSHOT_NAME, new.name.as_ref().map_or("", Name::as_str)),
        (SNAPSHOT_PARENT, new.parent.as_deref().unwrap_or_default()),
    ];
    let named = (SNAPSHOT_REPOSITORY, tag.as_str());
    let state = state.join(slug.as_str());
    let mounted = live::mounted(engine, &container.id).await.map_err(failed)?;
    mounted.require_covered(slug, &format!("make a snapshot of {slug}"))?;
    let parts = Parts {
        repository: mounted.repository,
        objects: shared_objects::are_mounted(engine, &container.id).await.map_err(failed)?,
    };
    let by = if parts.repository { Pauser::Keeper } else { Pauser::Engine };
    let pauses = container.running && !container.paused;
    let pause = pauses.then(|| SnapshotPause::record(&state, by)).transpose()?;
    let id = whole_image(source, &container, (parts, &state), named, &labels).await.map_err(failed)?;
    drop(pause);
    let image = inspect(engine, &id).await.map_err(failed)?;
    let gone =
        || BackendError::failed(format!("the new snapshot of {slug} was removed")).with_hint(REMOVED_HINT);
    let image = image.ok_or_else(gone)?;
    let replaced = new.replaced.as_deref();
    let snapshot = snapshot_from_image(engine, names.home(), image, replaced).await.map_err(failed)?;
    let snapshot = snapshot.ok_or_else(|| BackendError::failed("the engine lost the snapshot's labels"))?;
    progress.report(Copied { files: 0, bytes: snapshot.bytes.unwrap_or_default() });
    let volumes = volumes_of(engine, &container.id).await.map_err(failed)?;
    let has_workspace = !volumes.iter().any(|path| overlaps(path, WORKSPACE));
    Ok(MadeSnapshot { snapshot, has_workspace, notes: Vec::new() })
}

/// The files of a bottle that are not in the container's file system, because the container only mounts them.
#[derive(Debug, Clone, Copy)]
struct Parts {
    /// Whether the bottle's repository is in a volume.
    repository: bool,
    /// Whether the shared git objects are in a directory of this machine.
    objects: bool,
}

/// Makes an image of a bottle's container, with this tag and these labels. The image also contains the files of
/// `parts`, so that it is complete. `state` is the bottle's state directory.
async fn whole_image(
    source: &Source<'_>,
    container: &Found,
    (parts, state): (Parts, &Path),
    tag: (&str, &str),
    labels: &[(&str, &str)],
) -> Result<String, EngineError> {
    if !parts.objects && !parts.repository {
        return own_image(source, container, tag, labels).await;
    }
    let engine = source.engine;
    let (partial, scratch) = match parts.repository {
        true => while_paused(engine, container, copy_of(source, container, parts)).await?,
        false => copy_of(source, container, parts).await?,
    };
    let committed = async {
        if parts.objects {
            shared_objects::copy_into(engine, &scratch, state).await?;
        }
        commit(engine, &scratch, tag, labels).await
    };
    let committed = committed.await;
    source.remove(&scratch).await?;
    if committed.is_err() {
        // The error of the commit is more important than an error of this removal. If the removal fails, a cleanup
        // removes the image.
        let _ = kept::remove_image(engine, &partial).await;
    }
    committed
}

/// Runs `work` while no program of the container runs. The engine copies the repository separately from the other
/// files, and cannot copy a file that changes.
async fn while_paused<T>(
    engine: &Engine,
    container: &Found,
    work: impl Future<Output = Result<T, EngineError>>,
) -> Result<T, EngineError> {
    if !container.running || container.paused {
        return work.await;
    }
    engine.call(engine.docker().pause_container(&container.id)).await?;
    let done = work.await;
    let continued = engine.call(engine.docker().unpause_container(&container.id)).await;
    let done = done?;
    continued.map(|()| done)
}

/// Copies the container's own files and its repository into a new container that is not started. Returns the image, and
/// the id of the new container.
async fn copy_of(
    source: &Source<'_>,
    container: &Found,
    parts: Parts,
) -> Result<(String, String), EngineError> {
    let Source { engine, names, slug, .. } = *source;
    // A cleanup finds this image by its label until the complete image is based on it.
    let labels = [(KEPT_HOME, names.home()), (KEPT_SLUG, slug.as_str())];
    let image = own_image(source, container, ("", ""), &labels).await?;
    let filled = async {
        let scratch = source.scratch(&image, ContainerConfig::default()).await?;
        if parts.repository
            && let Err(error) = live::copy_repository(engine, &container.id, &scratch).await
        {
            source.remove(&scratch).await?;
            return Err(error);
        }
        Ok(scratch)
    };
    match filled.await {
        Ok(scratch) => Ok((image, scratch)),
        Err(error) => {
            let _ = kept::remove_image(engine, &image).await;
            Err(error)
        }
    }
}

/// Makes an image of the container's own files, without the files that it mounts.
async fn own_image(
    source: &Source<'_>,
    container: &Found,
    tag: (&str, &str),
    labels: &[(&str, &str)],
) -> Result<String, EngineError> {
    if container.running {
        return commit(source.engine, &container.id, tag, labels).await;
    }
    source.image_of_container(&container.id, MAX_LAYERS, tag, labels).await
}

/// Implements [`bottle_backend::Snapshots::snapshots`].
///
/// # Errors
/// [`EngineError`] when the engine cannot be queried.
pub(super) async fn snapshots(engine: &Engine, names: &Names) -> Result<Vec<Snapshot>, EngineError> {
    let mut snapshots = Vec::new();
    for image in list_labelled(engine, SNAPSHOT_HOME, names.home()).await? {
        snapshots.extend(snapshot_from_image(engine, names.home(), image, None).await?);
    }
    snapshots.sort_by_key(|snapshot| snapshot.made_at);
    Ok(snapshots)
}

/// Returns the snapshot that the image of this name stores. `None` if the image stores no snapshot.
///
/// # Errors
/// [`EngineError`] when the engine cannot be queried.
pub(super) async fn snapshot_of_image(
    engine: &Engine,
    names: &Names,
    reference: &str,
) -> Result<Option<Snapshot>, EngineError> {
    let Some(image) = inspect(engine, reference).await? else { return Ok(None) };
    snapshot_from_image(engine, names.home(), image, None).await
}

/// Implements [`bottle_backend::Snapshots::remove_snapshot`].
///
/// # Errors
/// [`BackendError`] when the snapshot belongs to another `$BOTTLE_HOME` or cannot be removed.
pub(super) async fn remove(engine: &Engine, names: &Names, snapshot: &Snapshot) -> Result<(), BackendError> {
    let doing = format!("remove the snapshot {}", snapshot.reference);
    let failed = |error: EngineError| error.during(&doing);
    if !is_ours(names, snapshot) {
        return Err(BackendError::failed(format!("{} is not a snapshot of this home", snapshot.reference)));
    }
    // The labels are checked too, because any image can have a snapshot's name.
    let image = inspect(engine, &snapshot.reference).await.map_err(failed)?;
    if image.is_none_or(|image| image.labels.get(SNAPSHOT_HOME).is_none_or(|home| home != names.home())) {
        return Ok(());
    }
    // The request removes only the image's name. Layers that bottles and other snapshots use stay.
    let options = RemoveImageOptionsBuilder::new().force(true).build();
    let removed = engine.docker().remove_image(&snapshot.reference, Some(options), None);
    engine.call_if_there(removed).await.map(drop).map_err(failed)
}

/// Returns the id of the image of this snapshot.
///
/// # Errors
/// [`BackendError`] when the image does not exist.
pub(super) async fn image_of(
    engine: &Engine,
    names: &Names,
    snapshot: &Snapshot,
) -> Result<String, BackendError> {
    let gone =
        || BackendError::failed(format!("the snapshot {} of {} is gone", snapshot.reference, snapshot.slug));
    if !is_ours(names, snapshot) {
        return Err(gone());
    }
    let image = engine.call_if_there(engine.docker().inspect_image(&snapshot.reference)).await;
    let image = image.map_err(|error| error.during("look at the snapshot"))?;
    image.and_then(|image| image.id).ok_or_else(gone)
}

/// Returns the data that a commit excludes, which is the data in the image's volumes.
///
/// # Errors
/// [`BackendError`] when the engine cannot be queried.
pub(super) async fn snapshot_exclusions(
    engine: &Engine,
    names: &Names,
    slug: &Slug,
) -> Result<Vec<String>, BackendError> {
    let failed = |error: EngineError| error.during(&format!("look at the container of {slug}"));
    let Some(found) = find_agent(engine, names, slug).await.map_err(failed)? else {
        return Ok(Vec::new());
    };
    let volumes = volumes_of(engine, &found.id).await.map_err(failed)?;
    Ok(volumes.into_iter().map(|path| format!("the volume {path}")).collect())
}

/// Returns the paths of the volumes of a container's image.
async fn volumes_of(engine: &Engine, container: &str) -> Result<Vec<String>, EngineError> {
    let config = engine.inspect_container(container).await?.config;
    let mut volumes = config.and_then(|config| config.volumes).unwrap_or_default();
    volumes.sort();
    Ok(volumes)
}

/// Whether the paths are equal or one path contains the other.
fn overlaps(one: &str, other: &str) -> bool {
    let (one, other) = (Path::new(one), Path::new(other));
    one.starts_with(other) || other.starts_with(one)
}

/// Reads a snapshot from its image's labels. `replaced` has the same meaning as in [`Committed::own_size`].
async fn snapshot_from_image(
    engine: &Engine,
    home: &str,
    image: Committed,
    replaced: Option<&str>,
) -> Result<Option<Snapshot>, EngineError> {
    let label = |name: &str| image.labels.get(name);
    let parsed = (|| {
        let slug: Slug = label(SNAPSHOT_SLUG)?.parse().ok()?;
        let made_at: Timestamp = label(SNAPSHOT_MADE_AT)?.parse().ok()?;
        let reference =
            image.tags.iter().find(|tag| tag.starts_with(&format!("{SNAPSHOT_REPOSITORY}:")))?.clone();
        Some((slug, made_at, reference))
    })();
    let Some((slug, made_at, reference)) = parsed else { return Ok(None) };
    match image.own_size(engine, home, replaced).await {
        Ok(bytes) => {
            let name = label(SNAPSHOT_NAME).and_then(|name| name.parse().ok());
            let parent = label(SNAPSHOT_PARENT).filter(|parent| !parent.is_empty()).cloned();
            Ok(Some(Snapshot { slug, reference, made_at, bytes: Some(bytes), name, parent }))
        }
        // The image was removed after it was listed.
        Err(error) if error.is_missing() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the snapshot's reference has the form that this `$BOTTLE_HOME` gives to snapshots of that slug. The backend
/// never uses other references in a request.
fn is_ours(names: &Names, snapshot: &Snapshot) -> bool {
    let start = format!("{SNAPSHOT_REPOSITORY}:{}-{}-", names.home(), snapshot.slug);
    snapshot.reference.strip_prefix(&start).is_some_and(|moment| {
        !moment.is_empty() && moment.len() <= 20 && moment.bytes().all(|byte| byte.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_only_references_of_this_home_and_bottle() {
        let names = Names::new("0123abcd".to_owned());
        for (slug, reference, ours) in [
            ("a-1", "bottle-snapshot:0123abcd-a-1-1764000000000000", true),
            ("a", "bottle-snapshot:0123abcd-a-1-1764000000000000", false),
            ("a-1", "bottle-snapshot:ffffffff-a-1-1764000000000000", false),
            ("a-1", "bottle-snapshot:0123abcd-a-1-", false),
            ("a-1", "bottle-snapshot:0123abcd-a-1-1/../x", false),
            ("a-1", "debian:bookworm-slim", false),
        ] {
            let snapshot = Snapshot {
                slug: slug.parse().expect("slug"),
                reference: reference.to_owned(),
                made_at: Timestamp::UNIX_EPOCH,
                bytes: None,
                name: None,
                parent: None,
            };
            assert_eq!(is_ours(&names, &snapshot), ours, "{slug} {reference}");
        }
    }
}
