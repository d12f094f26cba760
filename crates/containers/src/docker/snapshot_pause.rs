//! Records in a bottle's state directory that a snapshot pauses the bottle's container. If the keeper is killed during
//! the pause, the next keeper can distinguish this pause from a pause that the user made.

use std::path::{Path, PathBuf};

use bottle_backend::BackendError;
use bottle_host::files;
use bottle_policy::names::Slug;

use super::container::find_unpaused;
use super::engine::Engine;
use super::names::{Names, Part};
use super::run_state;

/// Who pauses the container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pauser {
    /// The keeper, which continues the container itself.
    Keeper,
    /// The engine, which continues the container even if the keeper is killed.
    Engine,
}

impl Pauser {
    /// Returns the name of the empty file in the bottle's state directory that marks a pause. The file exists as long
    /// as the container may be paused.
    fn file(self) -> &'static str {
        match self {
            Self::Keeper => "paused-by-keeper",
            Self::Engine => "paused-by-engine",
        }
    }
}

/// The record of a pause, which is removed when this value is dropped.
#[derive(Debug)]
pub(super) struct SnapshotPause(PathBuf);

impl SnapshotPause {
    /// Records the pause before it begins. `directory` is the bottle's state directory.
    ///
    /// # Errors
    /// [`BackendError`] when the file cannot be created.
    pub(super) fn record(directory: &Path, by: Pauser) -> Result<Self, BackendError> {
        let path = directory.join(by.file());
        match files::private_file().write(true).create(true).truncate(true).open(&path) {
            Ok(_) => Ok(Self(path)),
            Err(error) => {
                Err(BackendError::failed(format!("cannot create {}", path.display())).because(error))
            }
        }
    }
}

impl Drop for SnapshotPause {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path) {
        tracing::warn!("cannot remove {}: {error}", path.display());
    }
}

/// Ends the pause of an interrupted snapshot. `directory` is the bottle's state directory.
///
/// # Errors
/// [`BackendError`] when the engine fails.
pub(super) async fn end(
    engine: &Engine,
    names: &Names,
    slug: &Slug,
    directory: &Path,
) -> Result<(), BackendError> {
    for by in [Pauser::Keeper, Pauser::Engine] {
        let path = directory.join(by.file());
        if !path.exists() {
            continue;
        }
        match by {
            Pauser::Keeper => run_state::unpause(engine, names, slug).await?,
            Pauser::Engine => {
                let found = find_unpaused(engine, names, Part::Agent, slug).await;
                drop(found.map_err(|error| error.during(&format!("wait for a snapshot of {slug}")))?);
            }
        }
        remove(&path);
    }
    Ok(())
}
