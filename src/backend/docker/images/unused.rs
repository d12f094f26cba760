//! What nobody needs any more of what is made here, and removing it.

use bollard::Docker;
use bollard::query_parameters::{RemoveImageOptions, RemoveVolumeOptions};

use super::{failed, is_missing, scratch_container};
use crate::backend::image::building;
use crate::backend::{BackendError, Unused};
use crate::host::Host;

/// [`Unused::kind`] of a container that was made to reach files through.
pub(super) const CONTAINER: &str = "container";
/// [`Unused::kind`] of a volume with a program in it, or of one that says so.
pub(super) const VOLUME: &str = "volume";
/// [`Unused::kind`] of a container that a step of a build ran in.
pub(super) const STEP: &str = "build-container";
/// [`Unused::kind`] of an image.
pub(super) const IMAGE: &str = "image";

/// Removes these, one after the other, and answers with those that are gone now. What came into use since it
/// was found stays, and so does what builds left while a start of this home makes one.
///
/// # Errors
/// [`BackendError`] when the engine refuses for another reason.
pub(super) async fn remove(
    docker: &Docker,
    host: &Host,
    unused: Vec<Unused>,
) -> Result<Vec<Unused>, BackendError> {
    if unused.is_empty() {
        return Ok(Vec::new());
    }
    let alone = building::none_goes_on(host)
        .map_err(|error| BackendError::failed(format!("cannot lock the builds of this home: {error}")))?;
    let mut removed = Vec::new();
    for one in unused {
        if (![STEP, IMAGE].contains(&one.kind.as_str()) || alone.is_some())
            && remove_one(docker, &one).await?
        {
            removed.push(one);
        }
    }
    Ok(removed)
}

/// Removes one, unless it is in use; whether it is gone.
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
