//! Which images an engine has.

use std::collections::HashMap;

use bollard::Docker;
use bollard::errors::Error;
use bollard::models::ImageSummary;
use bollard::query_parameters::ListImagesOptionsBuilder;

/// How often an engine is asked again that failed over an image which went while it listed. Each time one more
/// has to go at that moment.
const TRIES: u32 = 16;

/// Every image that meets all of these filters of one kind, such as `label`.
///
/// # Errors
/// What the engine says, when it cannot list them.
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
            listed => return listed,
        }
    }
}
