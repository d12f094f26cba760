//! The folder of the shared objects.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use bottle_contract::names::GIT_OBJECTS_DIR;

use super::{FOLDER, folder};
use crate::backend::local::git_objects::{self, Reader};
use crate::backend::local::layer_tar::{LayerTar, Ownership};
use crate::backend::local::layers::remove_tree;
use crate::backend::{BackendError, RepositoryObjects, run_blocking};

/// Creates the empty folder for a new bottle.
///
/// # Errors
/// When it cannot be created.
pub(in crate::backend::docker) fn make_folder(state: &Path) -> io::Result<PathBuf> {
    let folder = folder(state);
    remove_tree(&folder)?;
    git_objects::make_folder(&folder)?;
    Ok(folder)
}

/// Shares the objects with the bottle whose folder this is. The agent is another user than the one on this machine,
/// so files that not everybody can read are copied.
///
/// # Errors
/// [`BackendError`] when an object cannot be shared.
pub(in crate::backend::docker) async fn share(
    objects: &RepositoryObjects,
    folder: &Path,
) -> Result<(), BackendError> {
    let (objects, folder) = (objects.clone(), folder.to_owned());
    run_blocking(move || {
        git_objects::share_repository(&objects, &folder, Reader::Anyone).map_err(|error| {
            BackendError::failed(format!("cannot share the git objects in {}", objects.from.path().display()))
                .because(error)
        })
    })
    .await?
}

/// Removes the folder, if there is one.
///
/// # Errors
/// When a file cannot be removed.
pub(in crate::backend::docker) fn remove(state: &Path) -> io::Result<()> {
    remove_tree(&folder(state))
}

/// Archives the folder for the root of a container. The files are root's there, so that the agent cannot change them.
///
/// # Errors
/// When a file cannot be read.
pub(super) fn write_archive(state: &Path, out: &mut dyn Write) -> io::Result<()> {
    let owners = |_: &Path| Ownership::ROOT;
    let mut tar = LayerTar::new(out, &owners, &[]);
    let state = OwnedFd::from(File::open(state)?);
    tar.tree(&state, FOLDER, Path::new(GIT_OBJECTS_DIR.trim_start_matches('/')), false)?;
    tar.finish()
}
