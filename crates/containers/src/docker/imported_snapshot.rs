//! Creates the labels of a snapshot that an import makes, and finds the snapshot.

use bottle_backend::{BackendError, Snapshot};
use bottle_policy::names::Slug;
use jiff::Timestamp;

use super::commit::{SNAPSHOT_HOME, SNAPSHOT_MADE_AT, SNAPSHOT_NAME, SNAPSHOT_PARENT, SNAPSHOT_SLUG};
use super::engine::{Engine, EngineError, REMOVED_HINT};
use super::names::Names;
use super::snapshot_images::snapshot_of_image;

/// Returns the labels of a new snapshot without a name.
pub(super) fn snapshot_labels(names: &Names, slug: &Slug, made_at: Timestamp) -> Vec<(&'static str, String)> {
    vec![
        (SNAPSHOT_HOME, names.home().to_owned()),
        (SNAPSHOT_SLUG, slug.to_string()),
        (SNAPSHOT_MADE_AT, made_at.to_string()),
        (SNAPSHOT_NAME, String::new()),
        (SNAPSHOT_PARENT, String::new()),
    ]
}

/// Returns the snapshot that the image of this name stores.
///
/// # Errors
/// [`BackendError`] when the image stores no snapshot, or the engine fails.
pub(super) async fn find(
    engine: &Engine,
    names: &Names,
    reference: &str,
    slug: &Slug,
) -> Result<Snapshot, BackendError> {
    let failed = |error: EngineError| error.during(&format!("import {slug}"));
    let found = snapshot_of_image(engine, names, reference).await.map_err(failed)?;
    found.ok_or_else(|| {
        BackendError::failed(format!("the imported snapshot of {slug} was removed")).with_hint(REMOVED_HINT)
    })
}
