//! Refuses archives that contain no image.

use std::path::Path;

use bottle_backend::{BackendError, ImageInfo, ProgressSink, Snapshot};
use bottle_policy::names::Slug;

use crate::docker::engine::Engine;
use crate::docker::names::Names;

/// Always fails.
///
/// # Errors
/// [`BackendError`] that names the alternative.
pub(in crate::docker) async fn add_home(
    _: &Engine,
    _: &Names,
    _: &Slug,
    _: &Path,
    _: &ImageInfo,
    _: &ProgressSink,
) -> Result<Snapshot, BackendError> {
    Err(BackendError::unsupported(
        "the archive contains only a home and a workspace, which cannot be put into an image on this system",
        "import it on Linux into an image, and export it there again",
    ))
}
