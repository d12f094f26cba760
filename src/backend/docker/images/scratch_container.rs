//! A container that is made to reach files through it and never started.

use std::collections::HashMap;
use std::time::Duration;

use bollard::Docker;
use bollard::models::{ContainerCreateBody, HealthConfig, HostConfig, Mount};
use bollard::query_parameters::{
    CreateContainerOptions, ListContainersOptionsBuilder, RemoveContainerOptionsBuilder,
};
use jiff::Timestamp;

use super::{failed, is_missing, owner_label, unused};
use crate::backend::{BackendError, Unused};

/// On each of them: the home whose process made it.
pub(super) const SCRATCH_LABEL: &str = "bottle.scratch";
/// One lives for as long as a file takes to be read or written; one this old was left by a process that died,
/// where it does not say which.
const CUT_OFF: Duration = Duration::from_secs(5 * 60);

/// See the module. Removed by [`ScratchContainer::remove`], or found by [`left`] when its process died.
#[derive(Debug)]
pub(super) struct ScratchContainer {
    /// Its id.
    pub(super) id: String,
}

impl ScratchContainer {
    /// Makes one of this image for the home of this hash.
    ///
    /// # Errors
    /// [`BackendError`] when the engine refuses.
    pub(super) async fn make(
        docker: &Docker,
        image: &str,
        home: &str,
        mounts: Vec<Mount>,
    ) -> Result<Self, BackendError> {
        let body = ContainerCreateBody {
            image: Some(image.to_owned()),
            // An image may have no command, and an engine makes no container without one.
            entrypoint: Some(vec!["/bottle".to_owned()]),
            healthcheck: Some(HealthConfig {
                test: Some(vec!["NONE".to_owned()]),
                ..HealthConfig::default()
            }),
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
            .map_err(|error| failed("cannot make a container for files", error))
    }

    /// Removes it and the volumes that were made with it and have no name.
    ///
    /// # Errors
    /// [`BackendError`] when the engine refuses.
    pub(super) async fn remove(self, docker: &Docker) -> Result<(), BackendError> {
        remove(docker, &self.id).await
    }
}

/// Removes one of this id, and its volumes without a name.
///
/// # Errors
/// [`BackendError`] when the engine refuses; one that is gone already is no error.
pub(super) async fn remove(docker: &Docker, id: &str) -> Result<(), BackendError> {
    let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
    match docker.remove_container(id, Some(options)).await {
        Err(error) if !is_missing(&error) => Err(failed(format!("cannot remove the container {id}"), error)),
        _ => Ok(()),
    }
}

/// Those of this home that a process left which died.
///
/// # Errors
/// [`BackendError`] when the engine cannot be asked.
pub(super) async fn left(docker: &Docker, home: &str) -> Result<Vec<Unused>, BackendError> {
    let filters = HashMap::from([
        ("label", vec![format!("{SCRATCH_LABEL}={home}")]),
        ("status", vec!["created".to_owned()]),
    ]);
    let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
    let listed = docker
        .list_containers(Some(options))
        .await
        .map_err(|error| failed("cannot list the containers that were made for files", error))?;
    let now = Timestamp::now().as_second();
    let limit = i64::try_from(CUT_OFF.as_secs()).unwrap_or(i64::MAX);
    let mut all = Vec::new();
    for container in listed {
        let old = container.created.is_some_and(|made| now.saturating_sub(made) > limit);
        let labels = container.labels.unwrap_or_default();
        let left =
            labels.get(owner_label::LABEL).map_or(Some(old), |label| owner_label::is_gone(label, home));
        if let Some(id) = container.id.filter(|_| left == Some(true)) {
            let why = "a start that was cut off made it to look into an image".to_owned();
            all.push(Unused { kind: unused::CONTAINER.to_owned(), id, why, bytes: None });
        }
    }
    Ok(all)
}
