//! The base image that ours are built on.

use bollard::Docker;
use bollard::models::ImageInspect;
use bollard::query_parameters::CreateImageOptionsBuilder;
use bottle_contract::terminal::inert;
use futures_util::StreamExt;

use super::{check, failed, is_missing, unsupported};
use crate::backend::{BackendError, ProgressSink, Step};

/// Its reference: the default of `ARG BASE` in the Dockerfiles.
pub(super) const REFERENCE: &str = "debian:bookworm-slim";
const MAKE_IT: &str = "where no image registry answers, `scripts/base-image` of bottle's sources makes it from Debian's packages";

/// Its id; pulled when the engine has none.
///
/// # Errors
/// [`BackendError`] that says how to come by it.
pub(super) async fn find(
    docker: &Docker,
    architecture: &str,
    told: &ProgressSink<Step>,
) -> Result<String, BackendError> {
    let image = match docker.inspect_image(REFERENCE).await {
        Err(error) if is_missing(&error) => {
            pull(docker, REFERENCE, told).await.map_err(|error| {
                failed(
                    format!("the base image {REFERENCE} is not on this engine and cannot be pulled"),
                    error,
                )
                .with_hint(MAKE_IT)
            })?;
            docker.inspect_image(REFERENCE).await
        }
        other => other,
    };
    id(image, architecture)
}

/// The id that an engine's answer for it gives.
///
/// # Errors
/// As [`find`].
pub(super) fn id(
    answer: Result<ImageInspect, bollard::errors::Error>,
    architecture: &str,
) -> Result<String, BackendError> {
    let image =
        answer.map_err(|error| failed(format!("cannot look at the base image {REFERENCE}"), error))?;
    let facts = check::facts(&image, architecture);
    let refused = |why| unsupported(format!("the base image {REFERENCE} {why}"));
    facts.map(|facts| facts.id).map_err(|why| refused(why).with_hint(format!("pull it anew; {MAKE_IT}")))
}

/// Fetches an image by its reference from the registry that the reference names.
///
/// # Errors
/// The engine's.
pub(super) async fn pull(
    docker: &Docker,
    reference: &str,
    told: &ProgressSink<Step>,
) -> Result<(), bollard::errors::Error> {
    let tell = |line: String, begins| told.tell(Step { of: format!("the image {reference}"), line, begins });
    tell("fetching it".to_owned(), true);
    let mut options = CreateImageOptionsBuilder::new().from_image(reference);
    // Without one the engine would fetch every tag there is.
    if !reference.rsplit('/').next().is_some_and(|name| name.contains([':', '@'])) {
        options = options.tag("latest");
    }
    let mut events = docker.create_image(Some(options.build()), None, None);
    while let Some(event) = events.next().await {
        let event = event?;
        if let Some(status) = event.status {
            let layer = event.id.map(|id| format!("{id}: ")).unwrap_or_default();
            tell(inert(&format!("{layer}{status}")), false);
        }
    }
    Ok(())
}
