//! Manages the directory of the shared objects.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use bottle_backend::trees::git_objects::{self, Reader};
use bottle_backend::trees::layer_tar::{LayerTar, Ownership};
use bottle_backend::trees::remove_tree;
use bottle_backend::{BackendError, RepositoryObjects, run_blocking};
use bottle_policy::names::GIT_OBJECTS_DIR;

use super::{DIRECTORY, directory};

/// Creates the empty directory for a new bottle.
///
/// # Errors
/// When the directory cannot be created.
pub(in crate::docker) fn make_directory(state: &Path) -> io::Result<PathBuf> {
    let directory = directory(state);
    remove_tree(&directory)?;
    git_objects::make_directory(&directory)?;
    Ok(directory)
}

/// Shares the objects with a bottle. `directory` is the bottle's directory of shared objects. The agent's user differs
/// from the user of this machine, so files that are not readable by everyone are copied.
///
/// # Errors
/// [`BackendError`] when an object cannot be shared.
pub(in crate::docker) async fn share(
    objects: &RepositoryObjects,
    directory: &Path,
) -> Result<(), BackendError> {
    let (objects, directory) = (objects.clone(), directory.to_owned());
    run_blocking(move || {
        git_objects::share_repository(&objects, &directory, Reader::Anyone).map_err(|error| {
            BackendError::failed(format!("cannot share the git objects in {}", objects.from.path().display()))
                .because(error)
        })
    })
    .await?
}

/// Removes the directory, if it exists.
///
/// # Errors
/// When a file cannot be removed.
pub(in crate::docker) fn remove(state: &Path) -> io::Result<()> {
    remove_tree(&directory(state))
}

/// Archives the directory. The archive is unpacked at the root of a container. Root owns the files, so that the agent
/// cannot change them.
///
/// # Errors
/// When a file cannot be read.
pub(super) fn write_archive(state: &Path, out: &mut dyn Write) -> io::Result<()> {
    let owners = |_: &Path| Ownership::ROOT;
    let mut tar = LayerTar::new(out, &owners, &[]);
    let state = OwnedFd::from(File::open(state)?);
    tar.tree(&state, DIRECTORY, Path::new(GIT_OBJECTS_DIR.trim_start_matches('/')), false)?;
    tar.finish()
}
