//! Unpacks an archive that contains no image, and commits its files on top of the bottle's image.

use std::path::Path;

use bollard::query_parameters::UploadToContainerOptionsBuilder;
use bottle_backend::trees::portable;
use bottle_backend::{BackendError, ImageInfo, ProgressSink, Snapshot, run_blocking};
use bottle_policy::names::Slug;
use jiff::Timestamp;

use crate::docker::commit::{SNAPSHOT_REPOSITORY, commit};
use crate::docker::engine::{Engine, EngineError};
use crate::docker::flatten::Source;
use crate::docker::imported_snapshot::{find, snapshot_labels};
use crate::docker::names::Names;
use crate::docker::podman::COMMITTED_WITHIN;

/// Makes a snapshot that contains the files of the bottle's image, and the home and the workspace of an archive's OCI
/// layout.
///
/// # Errors
/// [`BackendError`] when the archive is damaged or hostile, or the engine fails.
pub(in crate::docker) async fn add_home(
    engine: &Engine,
    names: &Names,
    slug: &Slug,
    layout: &Path,
    inside: &ImageInfo,
    progress: &ProgressSink,
) -> Result<Snapshot, BackendError> {
    let doing = format!("import {slug}");
    let failed = |error: EngineError| error.during(&doing);
    let unpacked = {
        let layout = layout.to_owned();
        let unpacked = run_blocking(move || portable::Unpacked::of(&layout)).await?;
        unpacked.map_err(|error| portable::not_imported(slug, error))?
    };
    let source = Source { engine, names, slug, progress };
    let container = source.scratch(&inside.image, Default::default()).await.map_err(failed)?;
    let (home, owner) = (inside.home.clone(), (inside.uid, inside.gid));
    let filled = async {
        let body = bottle_archive::stream(move |out| unpacked.write(out, &home, owner));
        let options = UploadToContainerOptionsBuilder::new().path("/").build();
        let uploaded =
            engine.docker().upload_to_container(&container, Some(options), bollard::body_try_stream(body));
        engine.call_within(COMMITTED_WITHIN, uploaded).await?;
        let made_at = Timestamp::now();
        let tag = format!("{}-{slug}-{}", names.home(), made_at.as_microsecond());
        let labels = snapshot_labels(names, slug, made_at);
        let labels: Vec<(&str, &str)> = labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
        commit(engine, &container, (SNAPSHOT_REPOSITORY, &tag), &labels).await?;
        Ok::<_, EngineError>(format!("{SNAPSHOT_REPOSITORY}:{tag}"))
    };
    let filled = filled.await;
    source.remove(&container).await.map_err(failed)?;
    find(engine, names, &filled.map_err(failed)?, slug).await
}
