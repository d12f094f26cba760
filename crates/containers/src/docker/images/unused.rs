//! Removes unused images, volumes and containers.

use bollard::Docker;
use bollard::query_parameters::{RemoveImageOptions, RemoveVolumeOptions};
use bottle_backend::image::build_lock;
use bottle_backend::{BackendError, Unused};
use bottle_host::Host;

use super::image_error::{failed, is_missing};
use super::scratch_container::{self, CONTAINER};

/// The [`Unused::kind`] of a volume that contains the program, and of its marker volume.
pub(super) const VOLUME: &str = "volume";
/// The [`Unused::kind`] of a build step's container.
pub(super) const STEP: &str = "build-container";
/// The [`Unused::kind`] of an image.
pub(super) const IMAGE: &str = "image";

/// Removes these objects one after the other, and returns the removed objects. An object that is now in use stays.
/// Leftovers of builds stay while a build of this `$BOTTLE_HOME` is running.
///
/// # Errors
/// [`BackendError`] when the engine refuses a removal although the object is not in use.
pub(super) async fn remove(
    docker: &Docker,
    host: &Host,
    unused: Vec<Unused>,
) -> Result<Vec<Unused>, BackendError> {
    if unused.is_empty() {
        return Ok(Vec::new());
    }
    let lock = build_lock::lock_for_cleanup(host)
        .map_err(|error| BackendError::failed("cannot lock the builds of this home").because(error))?;
    let mut removed = Vec::new();
    for one in unused {
        if (![STEP, IMAGE].contains(&one.kind.as_str()) || lock.is_some()) && remove_one(docker, &one).await?
        {
            removed.push(one);
        }
    }
    Ok(removed)
}

/// Removes one object unless it is in use. Returns whether the object was removed.
pub(super) async fn remove_one(docker: &Docker, unused: &Unused) -> Result<bool, BackendError> {
    let id = &unused.id;
    let removed = match unused.kind.as_str() {
        CONTAINER | STEP => return scratch_container::remove(docker, id).await.map(|()| true),
        VOLUME => docker.remove_volume(id, None::<RemoveVolumeOptions>).await,
        _ => docker.remove_image(id, None::<RemoveImageOptions>, None).await.map(drop),
    };
    match removed {
        Ok(()) => Ok(true),
        Err(error) if is_missing(&error) => Ok(true),
        Err(bollard::errors::Error::DockerResponseServerError { status_code: 409, .. }) => Ok(false),
        Err(error) => Err(failed(format!("cannot remove the {} {id}", unused.kind), error)),
    }
}
