//! Lists an engine's images.

use std::collections::HashMap;

use bollard::Docker;
use bollard::errors::Error;
use bollard::models::ImageSummary;
use bollard::query_parameters::ListImagesOptionsBuilder;

use super::podman::short_name;

/// The maximum number of retries. An attempt fails only if an image is removed while the engine lists the images.
const TRIES: u32 = 16;

/// Returns every image that matches all values of one filter, for example of `label`.
///
/// # Errors
/// The engine's error, after the last retry.
pub(super) async fn images(
    docker: &Docker,
    filter: &str,
    values: Vec<String>,
) -> Result<Vec<ImageSummary>, Error> {
    let options = ListImagesOptionsBuilder::new().filters(&HashMap::from([(filter, values)])).build();
    let mut tries = 0..TRIES;
    loop {
        match docker.list_images(Some(options.clone())).await {
            Err(Error::DockerResponseServerError { status_code: 404, .. }) if tries.next().is_some() => {}
            listed => return listed.map(|images| images.into_iter().map(with_short_names).collect()),
        }
    }
}

fn with_short_names(image: ImageSummary) -> ImageSummary {
    ImageSummary { repo_tags: image.repo_tags.into_iter().map(short_name).collect(), ..image }
}
