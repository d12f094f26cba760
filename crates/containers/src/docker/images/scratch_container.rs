//! Scratch containers, through which `bottle` reads and writes files. They are created and never started.

use std::collections::HashMap;
use std::time::Duration;

use bollard::Docker;
use bollard::models::{ContainerCreateBody, HostConfig, Mount};
use bollard::query_parameters::{
    CreateContainerOptions, ListContainersOptionsBuilder, RemoveContainerOptionsBuilder,
};
use bottle_backend::{BackendError, Unused};
use jiff::Timestamp;

use super::image_error::{failed, is_missing};
use super::owner_label;
use crate::docker::hardened::no_health_check;

/// The [`Unused::kind`] of a scratch container.
pub(super) const CONTAINER: &str = "container";
/// The label that contains the hash of the `$BOTTLE_HOME` for which the container was created.
pub(super) const SCRATCH_LABEL: &str = "bottle.scratch";
/// The age at which a container is treated as a leftover if its label names no process. A scratch container exists only
/// while a file is read or written.
const INTERRUPTED_AFTER: Duration = Duration::from_secs(5 * 60);

/// A scratch container. [`ScratchContainer::remove`] removes the container. If the process that created it exits
/// earlier, [`left`] finds the container.
#[derive(Debug)]
pub(super) struct ScratchContainer {
    /// The container's id.
    pub(super) id: String,
}

impl ScratchContainer {
    /// Creates a scratch container from this image, for the `$BOTTLE_HOME` with the hash `home`.
    ///
    /// # Errors
    /// [`BackendError`] when the engine refuses to create the container.
    pub(super) async fn make(
        docker: &Docker,
        image: &str,
        home: &str,
        mounts: Vec<Mount>,
    ) -> Result<Self, BackendError> {
        let body = ContainerCreateBody {
            image: Some(image.to_owned()),
            // The engine refuses to create a container without a command, and the image may lack one.
            entrypoint: Some(vec!["/bottle".to_owned()]),
            healthcheck: Some(no_health_check()),
            labels: Some(HashMap::from([
                (SCRATCH_LABEL.to_owned(), home.to_owned()),
                (owner_label::LABEL.to_owned(), owner_label::this_process(home)),
            ])),
            host_config: Some(HostConfig {
                mounts: Some(mounts),
                network_mode: Some("none".to_owned()),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        };
        let made = docker.create_container(None::<CreateContainerOptions>, body).await;
        made.map(|made| Self { id: made.id })
            .map_err(|error| failed("cannot make a scratch container", error))
    }

    /// Removes the container and its anonymous volumes.
    ///
    /// # Errors
    /// [`BackendError`] when the engine refuses the removal.
    pub(super) async fn remove(self, docker: &Docker) -> Result<(), BackendError> {
        remove(docker, &self.id).await
    }
}

/// Removes the container with this id and its anonymous volumes. A missing container is no error.
///
/// # Errors
/// [`BackendError`] when the engine refuses the removal.
pub(super) async fn remove(docker: &Docker, id: &str) -> Result<(), BackendError> {
    let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
    match docker.remove_container(id, Some(options)).await {
        Err(error) if !is_missing(&error) => Err(failed(format!("cannot remove the container {id}"), error)),
        _ => Ok(()),
    }
}

/// Returns the scratch containers of this `$BOTTLE_HOME` whose creating process has exited.
///
/// # Errors
/// [`BackendError`] when the engine cannot be queried.
pub(super) async fn left(docker: &Docker, home: &str) -> Result<Vec<Unused>, BackendError> {
    let filters = HashMap::from([
        ("label", vec![format!("{SCRATCH_LABEL}={home}")]),
        ("status", vec!["created".to_owned()]),
    ]);
    let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
    let listed = docker
        .list_containers(Some(options))
        .await
        .map_err(|error| failed("cannot list the scratch containers", error))?;
    let now = Timestamp::now().as_second();
    let limit = i64::try_from(INTERRUPTED_AFTER.as_secs()).unwrap_or(i64::MAX);
    let mut all = Vec::new();
    for container in listed {
        let old = container.created.is_some_and(|made| now.saturating_sub(made) > limit);
        let labels = container.labels.unwrap_or_default();
        let left =
            labels.get(owner_label::LABEL).map_or(Some(old), |label| owner_label::has_exited(label, home));
        if let Some(id) = container.id.filter(|_| left == Some(true)) {
            let why = "an interrupted start created it to read an image".to_owned();
            all.push(Unused { kind: CONTAINER.to_owned(), id, why, bytes: None });
        }
    }
    Ok(all)
}
