//! Gives the agent the folders of the image's volumes in which it works.
//!
//! The engine creates an empty volume for each `VOLUME` of the image, and copies the owner of the image's folder. This
//! owner is root if the image declares a volume at the agent's workspace or home.

use std::path::Path;

use bollard::query_parameters::UploadToContainerOptionsBuilder;
use bottle_contract::names::WORKSPACE;

use super::engine::Engine;
use super::images::writable::owned_folders;
use crate::backend::{BackendError, ImageInfo};

/// Changes the owner of the volumes at or below the workspace and the home, in a container that is not started yet.
///
/// # Errors
/// [`BackendError`] when the engine refuses the change.
pub(super) async fn give_to_agent(
    engine: &Engine,
    container: &str,
    image: &ImageInfo,
) -> Result<(), BackendError> {
    let folders = at_work(&image.volumes, &image.home);
    if folders.is_empty() {
        return Ok(());
    }
    let doing = "give the image's volumes to the agent";
    let archive = owned_folders(&folders, (image.uid, image.gid))
        .map_err(|error| BackendError::failed(format!("cannot {doing}")).because(error))?;
    let options = UploadToContainerOptionsBuilder::new().path("/").build();
    let upload = engine.docker().upload_to_container(container, Some(options), bollard::body_full(archive));
    engine.call(upload).await.map_err(|error| error.during(doing))
}

/// The volumes at or below the workspace and the home.
fn at_work<'a>(volumes: &'a [String], home: &str) -> Vec<&'a str> {
    let works_in =
        |volume: &str| [WORKSPACE, home].iter().any(|folder| Path::new(volume).starts_with(folder));
    volumes.iter().map(String::as_str).filter(|volume| works_in(volume)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_volumes_at_work_become_the_agents() {
        let volumes =
            ["/workspace", "/workspaces", "/home/agent/.cache", "/home", "/data"].map(str::to_owned);
        assert_eq!(at_work(&volumes, "/home/agent"), ["/workspace", "/home/agent/.cache"]);
    }
}
