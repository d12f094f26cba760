//! Finds or pulls the base image of the bundled Dockerfiles.

use bollard::Docker;
use bollard::models::ImageInspect;
use bottle_backend::{BackendError, ProgressSink, Step};
use bottle_host::Host;

use super::image_error::{failed, is_missing, unsupported};
use super::{image_facts, pull};

/// The reference of the base image, which is also the default of `ARG BASE` in the Dockerfiles.
pub(super) const REFERENCE: &str = "debian:bookworm-slim";
const BASE_HINT: &str = "where no image registry answers, `scripts/base-image` of bottle's sources makes it from Debian's packages";

/// Returns the base image's id. Pulls the image if the engine does not have it. With `renew`, pulls the image again, to
/// get a newer version.
///
/// # Errors
/// [`BackendError`] with a hint on how to get the image.
pub(super) async fn find(
    docker: &Docker,
    host: &Host,
    architecture: &str,
    renew: bool,
    progress: &ProgressSink<Step>,
) -> Result<String, BackendError> {
    let image = docker.inspect_image(REFERENCE).await;
    let missing = image.as_ref().is_err_and(is_missing);
    if !missing && !renew {
        return id(image, architecture);
    }
    let why = if missing { " is not on this engine and" } else { "" };
    pull::pull(docker, host, REFERENCE, &format!("the base image {REFERENCE}{why}"), progress)
        .await
        .map_err(|error| error.with_hint(BASE_HINT))?;
    id(docker.inspect_image(REFERENCE).await, architecture)
}

/// Returns the id of the base image from the engine's answer, after a check that the engine can run the image.
///
/// # Errors
/// The errors of [`find`].
pub(super) fn id(
    answer: Result<ImageInspect, bollard::errors::Error>,
    architecture: &str,
) -> Result<String, BackendError> {
    let image =
        answer.map_err(|error| failed(format!("cannot look at the base image {REFERENCE}"), error))?;
    let facts = image_facts::facts(&image, architecture);
    let refused = |why| unsupported(format!("the base image {REFERENCE} {why}"));
    facts.map(|facts| facts.id).map_err(|why| refused(why).with_hint(format!("pull it anew; {BASE_HINT}")))
}
