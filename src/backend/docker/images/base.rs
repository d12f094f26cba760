//! Finds or pulls the base image of the bundled Dockerfiles.

use bollard::Docker;
use bollard::models::ImageInspect;
use bollard::query_parameters::CreateImageOptionsBuilder;
use bottle_contract::terminal::inert;
use futures_util::StreamExt;

use super::{failed, image_facts, is_missing, unsupported};
use crate::backend::{BackendError, ProgressSink, Step};

/// The reference of the base image. It is the default of `ARG BASE` in the Dockerfiles.
pub(super) const REFERENCE: &str = "debian:bookworm-slim";
const BASE_HINT: &str = "where no image registry answers, `scripts/base-image` of bottle's sources makes it from Debian's packages";

/// Returns the base image's id. Pulls the image if the engine does not have it.
///
/// # Errors
/// [`BackendError`] with a hint on how to get the image.
pub(super) async fn find(
    docker: &Docker,
    architecture: &str,
    progress: &ProgressSink<Step>,
) -> Result<String, BackendError> {
    let image = match docker.inspect_image(REFERENCE).await {
        Err(error) if is_missing(&error) => {
            pull(docker, REFERENCE, progress).await.map_err(|error| {
                failed(
                    format!("the base image {REFERENCE} is not on this engine and cannot be pulled"),
                    error,
                )
                .with_hint(BASE_HINT)
            })?;
            docker.inspect_image(REFERENCE).await
        }
        other => other,
    };
    id(image, architecture)
}

/// Returns the id of the base image from the engine's answer, after a check that the engine can run the image.
///
/// # Errors
/// As [`find`].
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

/// Pulls an image by its reference, from the registry that the reference names.
///
/// # Errors
/// The engine's error.
pub(super) async fn pull(
    docker: &Docker,
    reference: &str,
    progress: &ProgressSink<Step>,
) -> Result<(), bollard::errors::Error> {
    let report = |line: String, starts_stage| {
        progress.report(Step { subject: format!("the image {reference}"), line, starts_stage })
    };
    report("fetching it".to_owned(), true);
    let mut options = CreateImageOptionsBuilder::new().from_image(reference);
    // If the reference had no tag, the engine would pull all tags.
    if !reference.rsplit('/').next().is_some_and(|name| name.contains([':', '@'])) {
        options = options.tag("latest");
    }
    let mut events = docker.create_image(Some(options.build()), None, None);
    while let Some(event) = events.next().await {
        let event = event?;
        if let Some(status) = event.status {
            let layer = event.id.map(|id| format!("{id}: ")).unwrap_or_default();
            report(inert(&format!("{layer}{status}")), false);
        }
    }
    Ok(())
}
