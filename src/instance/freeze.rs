//! Committing a bottle: the part that every backend shares.
//!
//! ```text
//!   freeze ──► committed-image names the new one ──► what the old one was is removed
//!     │ fails: the old one stands                     │ killed before: cleanup removes it
//! ```
//! At every moment `committed-image` names a whole snapshot or there is none.

use std::io;
use std::path::Path;

use bottle_contract::names::Slug;
use bottle_guest::file_clock::before_any_change;
use jiff::Timestamp;

use super::committed::{self, Committed};
use super::record::Record;
use super::store::Claim;
use crate::backend::{Backend, BackendError, ProgressSink, Snapshot};
use crate::host::clock;

/// What a commit came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// The new snapshot.
    pub snapshot: Snapshot,
    /// What the user should know of it, a sentence fragment each.
    pub notes: Vec<String>,
}

/// Why there is no new snapshot.
#[derive(Debug, thiserror::Error)]
pub enum FreezeError {
    /// The backend could not.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The bottle's state cannot be read or written.
    #[error("cannot write the bottle's state: {0}")]
    State(#[from] io::Error),
}

/// Freezes the bottle and records the snapshot; the one before stays usable until the new one is recorded.
///
/// # Errors
/// [`FreezeError`]; then everything is as it was.
pub async fn commit(backend: &dyn Backend, claim: &Claim, told: ProgressSink) -> Result<Commit, FreezeError> {
    let slug = claim.record().slug;
    let previous = committed::read(claim.folder())?.map(|committed| committed.snapshot);
    // What the agent does from here on may not be in it.
    let covers = before_any_change();
    let frozen = backend.freeze(&slug, previous.as_ref(), told).await?;
    let committed = Committed { snapshot: frozen.snapshot, covers };
    if let Err(error) = claim.mark_preserved().and_then(|()| committed::write(claim.folder(), &committed)) {
        // Nobody would ever know of it; a failure here leaves it to cleanup.
        let _ = backend.remove_snapshot(&committed.snapshot).await;
        return Err(error.into());
    }
    let mut notes = frozen.notes;
    // What an attempt left that was cut off is nobody's, and cleanup's to find.
    if let Some(previous) = previous.filter(|previous| previous.reference != committed.snapshot.reference) {
        let removed = backend.remove_snapshot(&previous).await;
        notes.extend(removed.err().map(|error| error.to_string()));
    }
    Ok(Commit { snapshot: committed.snapshot, notes })
}

/// Removes every snapshot of the bottle, and its record of them.
///
/// # Errors
/// When its record cannot be written, or a snapshot cannot be removed; what is left is found by cleanup.
pub async fn remove_snapshots(backend: &dyn Backend, claim: &Claim) -> Result<(), FreezeError> {
    let slug = claim.record().slug;
    // First, so that a crash leaves snapshots that nothing names, and never a name without one.
    committed::forget(claim.folder())?;
    match remove_all(backend, &slug).await {
        failures if failures.is_empty() => Ok(()),
        failures => Err(BackendError::failed(failures.join("; ")).into()),
    }
}

/// From when on a change of the workspace is work that would be lost, as [`Record::work_since`]; what is in a
/// snapshot that is still there would not be.
pub async fn work_since(backend: &dyn Backend, folder: &Path, record: &Record) -> Option<Timestamp> {
    let lead = clock::lead();
    let since = record.work_since(lead)?;
    if record.set_back(lead).is_some() {
        // What is newer than the snapshot may look older.
        return Some(since);
    }
    let Ok(Some(Committed { snapshot, covers })) = committed::read(folder) else { return Some(since) };
    let same = |found: &Snapshot| (&found.slug, &found.reference) == (&snapshot.slug, &snapshot.reference);
    let there = backend.snapshots().await.is_ok_and(|all| all.iter().any(same));
    Some(if there { since.max(covers) } else { since })
}

/// Removes every snapshot of this bottle; what could not be removed, a sentence fragment each.
async fn remove_all(backend: &dyn Backend, slug: &Slug) -> Vec<String> {
    let all = match backend.snapshots().await {
        Ok(all) => all,
        Err(error) => return vec![error.to_string()],
    };
    let mut failures = Vec::new();
    for snapshot in all.iter().filter(|found| found.slug == *slug) {
        if let Err(error) = backend.remove_snapshot(snapshot).await {
            failures.push(error.to_string());
        }
    }
    failures
}
