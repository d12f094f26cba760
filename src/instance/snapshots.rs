//! Commits a bottle to a snapshot. These steps are the same on every backend.
//!
//! ```text
//!   freeze ──► committed-image names the new snapshot ──► the old snapshot is removed
//!     │ on failure: the old snapshot stays                │ if killed before: cleanup removes it
//! ```
//! At every moment, `committed-image` either names a complete snapshot or does not exist.

use std::io;
use std::path::Path;

use bottle_contract::names::Slug;
use bottle_guest::file_clock::before_any_change;
use jiff::Timestamp;

use super::committed::{self, Committed};
use super::record::Record;
use super::store::Claim;
use crate::backend::{Backend, BackendError, ProgressSink, Snapshot};
use crate::causes;
use crate::host::clock;

/// The result of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// The new snapshot.
    pub snapshot: Snapshot,
    /// Notes for the user, as sentence fragments.
    pub notes: Vec<String>,
}

/// Why a commit or a removal failed.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The backend failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The bottle's state cannot be read or written.
    #[error("cannot write the bottle's state")]
    State(#[from] io::Error),
}

/// Creates a snapshot of the bottle and records it. The previous snapshot stays usable until the new one is recorded.
///
/// # Errors
/// [`SnapshotError`]. The bottle and its previous snapshot are then unchanged.
pub async fn commit(
    backend: &dyn Backend,
    claim: &Claim,
    progress: ProgressSink,
) -> Result<Commit, SnapshotError> {
    let slug = claim.record().slug;
    let previous = committed::read(claim.folder())?.map(|committed| committed.snapshot);
    // A change that is made from here on may be missing in the snapshot.
    let covers = before_any_change();
    let frozen = backend.freeze(&slug, previous.as_ref(), progress).await?;
    // Work that the snapshot does not contain stays unsaved.
    let covers = if frozen.has_workspace { covers } else { Timestamp::MIN };
    let committed = Committed { snapshot: frozen.snapshot, covers };
    if let Err(error) = claim.mark_preserved().and_then(|()| committed::write(claim.folder(), &committed)) {
        // No state names the new snapshot. If removing it fails, a cleanup finds it.
        let _ = backend.remove_snapshot(&committed.snapshot).await;
        return Err(error.into());
    }
    let mut notes = frozen.notes;
    // If the commit is killed here, a cleanup finds the previous snapshot.
    if let Some(previous) = previous.filter(|previous| previous.reference != committed.snapshot.reference) {
        let removed = backend.remove_snapshot(&previous).await;
        notes.extend(removed.err().map(|error| causes::one_line(&error)));
    }
    Ok(Commit { snapshot: committed.snapshot, notes })
}

/// Removes every snapshot of the bottle, and `committed-image`.
///
/// # Errors
/// When the file or a snapshot cannot be removed. A cleanup finds the remaining snapshots.
pub async fn remove_all(backend: &dyn Backend, claim: &Claim) -> Result<(), SnapshotError> {
    let slug = claim.record().slug;
    // The file is removed first. A crash can then leave a snapshot that no state names, but no state that names a
    // missing snapshot.
    committed::remove(claim.folder())?;
    match remove_each(backend, &slug).await {
        failures if failures.is_empty() => Ok(()),
        failures => Err(BackendError::failed(failures.join("; ")).into()),
    }
}

/// The time after which a change in the workspace counts as unsaved work: the time of [`Record::work_since`], or, if an
/// existing snapshot contains later changes, the time up to which it contains them.
pub async fn work_since(backend: &dyn Backend, folder: &Path, record: &Record) -> Option<Timestamp> {
    let offset = clock::boot_offset();
    let since = record.work_since(offset)?;
    if record.set_back(offset).is_some() {
        // A change that was made after the snapshot may have an older time stamp.
        return Some(since);
    }
    let Ok(Some(Committed { snapshot, covers })) = committed::read(folder) else { return Some(since) };
    let same = |found: &Snapshot| (&found.slug, &found.reference) == (&snapshot.slug, &snapshot.reference);
    let exists = backend.snapshots().await.is_ok_and(|all| all.iter().any(same));
    Some(if exists { since.max(covers) } else { since })
}

/// Removes every snapshot of this bottle. Returns the failures, as sentence fragments.
async fn remove_each(backend: &dyn Backend, slug: &Slug) -> Vec<String> {
    let all = match backend.snapshots().await {
        Ok(all) => all,
        Err(error) => return vec![causes::one_line(&error)],
    };
    let mut failures = Vec::new();
    for snapshot in all.iter().filter(|found| found.slug == *slug) {
        if let Err(error) = backend.remove_snapshot(snapshot).await {
            failures.push(causes::one_line(&error));
        }
    }
    failures
}
