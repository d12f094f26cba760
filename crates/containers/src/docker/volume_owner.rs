//! Makes the agent the owner of the image volumes in which it works.
//!
//! The engine creates an empty volume for each `VOLUME` of the image, and copies the owner of the image's directory.
//! This owner is root if the image declares a volume at the agent's workspace or home.

use std::path::Path;

use bollard::query_parameters::UploadToContainerOptionsBuilder;
use bottle_backend::{BackendError, ImageInfo};
use bottle_plan::LiveDirectory;
use bottle_policy::names::{REPOSITORY, WORKSPACE};

use super::engine::Engine;
use super::images::writable::owned_directories;
use super::live::WorkspaceFiles;

/// Changes the owner of the volumes at or below the workspace and the home, in a container that has not been started.
/// If the workspace is a directory of the user, changes only the owner of the repository's volume and of the volumes in
/// the home.
///
/// # Errors
/// [`BackendError`] when the engine refuses the change.
pub(super) async fn give_to_agent(
    engine: &Engine,
    container: &str,
    image: &ImageInfo,
    workspace: WorkspaceFiles<'_>,
) -> Result<(), BackendError> {
    let directories = match workspace {
        WorkspaceFiles::Live(live) => beside_live(&image.volumes, &image.home, live),
        WorkspaceFiles::Own | WorkspaceFiles::Repository => at_work(&image.volumes, &image.home),
    };
    if directories.is_empty() {
        return Ok(());
    }
    let doing = "give the image's volumes to the agent";
    let archive = owned_directories(&directories, workspace.user(image))
        .map_err(|error| BackendError::failed(format!("cannot {doing}")).because(error))?;
    let options = UploadToContainerOptionsBuilder::new().path("/").build();
    let upload = engine.docker().upload_to_container(container, Some(options), bollard::body_full(archive));
    engine.call(upload).await.map_err(|error| error.during(doing))
}

/// Returns the volumes at or below the workspace and the home.
fn at_work<'a>(volumes: &'a [String], home: &str) -> Vec<&'a str> {
    let works_in =
        |volume: &str| [WORKSPACE, home].iter().any(|directory| Path::new(volume).starts_with(directory));
    volumes.iter().map(String::as_str).filter(|volume| works_in(volume)).collect()
}

/// Returns the volume of the repository, and the volumes at or below the home.
fn beside_live<'a>(volumes: &'a [String], home: &str, live: &LiveDirectory) -> Vec<&'a str> {
    let in_home = volumes.iter().map(String::as_str).filter(|volume| Path::new(volume).starts_with(home));
    live.repository.map(|_| REPOSITORY).into_iter().chain(in_home).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_volumes_at_work_become_the_agents() {
        let volumes =
            ["/workspace", "/workspaces", "/home/agent/.cache", "/home", "/data"].map(str::to_owned);
        assert_eq!(at_work(&volumes, "/home/agent"), ["/workspace", "/home/agent/.cache"]);
        let mut live = LiveDirectory {
            path: "/p".into(),
            device: 1,
            inode: 2,
            uid: 1000,
            gid: 1000,
            repository: Some(3),
        };
        assert_eq!(beside_live(&volumes, "/home/agent", &live), ["/workspace/.git", "/home/agent/.cache"]);
        live.repository = None;
        assert_eq!(beside_live(&volumes, "/home/agent", &live), ["/home/agent/.cache"]);
    }
}
