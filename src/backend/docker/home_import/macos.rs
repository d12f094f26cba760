//! Refuses archives without an image.

use std::path::Path;

use bottle_contract::names::Slug;

use crate::backend::docker::engine::Engine;
use crate::backend::docker::names::Names;
use crate::backend::{BackendError, ImageInfo, ProgressSink, Snapshot};

/// Always fails.
///
/// # Errors
/// [`BackendError`] that names the alternative.
pub(in crate::backend::docker) async fn add_home(
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
