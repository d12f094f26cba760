//! Shares the objects of a copied git repository with a bottle, if the bottle's container can mount a directory of this
//! machine.
//!
//! ```text
//!   .git/objects ─links─► $BOTTLE_HOME/state/<slug>/git-objects ─read-only mount─► /git-objects in the container
//!                                      └─────────── copied into each snapshot ───► /git-objects in the image
//! ```
//! The directory belongs to one bottle. Only the first container of the bottle, and its replacements with the same
//! files, mount the directory. A container of a snapshot has the objects in its image. Sharing exists only on Linux,
//! because on other systems an engine is in a virtual machine.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod macos;

use std::path::{Path, PathBuf};

use bollard::models::Mount;
use bollard::query_parameters::{ContainerArchiveInfoOptionsBuilder, UploadToContainerOptionsBuilder};
use bottle_policy::names::GIT_OBJECTS_DIR;

#[cfg(target_os = "linux")]
use self::linux as system;
#[cfg(not(target_os = "linux"))]
use self::macos as system;
pub(super) use self::system::{make_directory, remove, share};
use super::engine::{Engine, EngineError};
use super::host_directories::bind_mount;
use super::podman::COMMITTED_WITHIN;

/// The name of the directory in a bottle's state directory.
const DIRECTORY: &str = "git-objects";

/// The name of the file with which [`sees`] tests the mount. Git uses no file of this name.
const PROBE: &str = "bottle-probe";

/// Returns the directory of the bottle's shared objects. `state` is the bottle's state directory.
pub(super) fn directory(state: &Path) -> PathBuf {
    state.join(DIRECTORY)
}

/// Returns a read-only mount of the directory. The files in the directory are not executable and have no set-id bits.
pub(super) fn mount(directory: &str) -> Mount {
    bind_mount(directory, GIT_OBJECTS_DIR, true)
}

/// Whether the engine refused a container because the engine does not see the directory.
pub(super) fn is_unseen(error: &EngineError) -> bool {
    matches!(error, EngineError::Refused { status: 400, .. }) && error.contains("bind source path")
}

/// Whether a container mounts shared objects.
///
/// # Errors
/// [`EngineError`] when the engine cannot be queried.
pub(super) async fn are_mounted(engine: &Engine, container: &str) -> Result<bool, EngineError> {
    let mounts = engine.inspect_container(container).await?.mounts.unwrap_or_default();
    Ok(mounts.iter().any(|mount| mount.destination.as_deref() == Some(GIT_OBJECTS_DIR)))
}

/// Whether the engine mounted the directory of this machine, and not another machine's directory at the same path.
///
/// # Errors
/// [`EngineError`] when the engine cannot be queried.
pub(super) async fn sees(engine: &Engine, container: &str, directory: &Path) -> Result<bool, EngineError> {
    let probe = directory.join(PROBE);
    if std::fs::write(&probe, "").is_err() {
        return Ok(false);
    }
    let path = format!("{GIT_OBJECTS_DIR}/{PROBE}");
    let options = ContainerArchiveInfoOptionsBuilder::new().path(&path).build();
    let found =
        engine.call_if_there(engine.docker().get_container_archive_info(container, Some(options))).await;
    let removed = std::fs::remove_file(&probe).is_ok();
    Ok(found?.is_some() && removed)
}

/// Copies the shared objects of a bottle into a container that has not been started. `state` is the bottle's state
/// directory.
///
/// # Errors
/// [`EngineError`].
pub(super) async fn copy_into(engine: &Engine, container: &str, state: &Path) -> Result<(), EngineError> {
    let state = state.to_owned();
    let body = bottle_archive::stream(move |out| system::write_archive(&state, out));
    let options = UploadToContainerOptionsBuilder::new().path("/").build();
    let body = bollard::body_try_stream(body);
    engine
        .call_within(COMMITTED_WITHIN, engine.docker().upload_to_container(container, Some(options), body))
        .await
}
