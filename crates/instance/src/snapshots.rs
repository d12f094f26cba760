//! Commits a bottle to a snapshot. The steps of a commit are the same on every backend.
//!
//! ```text
//!   make_snapshot ──► committed-image names the new snapshot ──► the snapshot that it replaces is removed
//!     │ on failure: the old snapshot stays                │ if killed before: cleanup removes it
//! ```
//! A commit with a name adds a snapshot; a commit without a name replaces the snapshot that has no name. At every
//! moment, `committed-image` names only complete snapshots.

use std::io;
use std::path::Path;

use bottle_backend::{Backend, BackendError, NewSnapshot, ProgressSink, Snapshot};
use bottle_guest::file_clock::before_any_change;
use bottle_host::causes;
use bottle_host::clock;
use bottle_policy::names::{Name, Slug};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::committed::{self, Committed, CommittedList, MAX_SNAPSHOTS};
use super::record::Record;
use super::store::Claim;

/// The options of a commit.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CommitOptions {
    /// The snapshot's name. If it is `None`, the commit replaces the snapshot without a name.
    pub name: Option<Name>,
    /// The process that removes the snapshot after use, as [`Committed::removed_by`].
    #[serde(default)]
    pub removed_by: Option<String>,
}

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
    /// The bottle has a snapshot of that name.
    #[error("there is a snapshot {slug}@{name} already")]
    Exists {
        /// The bottle.
        slug: Slug,
        /// The snapshot's name.
        name: Name,
    },
    /// The bottle has [`MAX_SNAPSHOTS`] snapshots.
    #[error("{0} has {MAX_SNAPSHOTS} snapshots already")]
    TooMany(Slug),
}

impl SnapshotError {
    /// Returns what the user can do next.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Backend(error) => error.hint.clone(),
            Self::State(_) => Some("check the directory's permissions and the disk's free space".to_owned()),
            Self::Exists { slug, name } => Some(format!(
                "choose another name, or remove that snapshot with `bottle snapshots rm {slug}@{name}`"
            )),
            Self::TooMany(slug) => Some(format!("remove some with `bottle snapshots rm {slug}@NAME`")),
        }
    }
}

/// Creates a snapshot of the bottle and records it. A snapshot that the new snapshot replaces stays usable until the
/// new snapshot is recorded.
///
/// # Errors
/// Returns [`SnapshotError`]. The bottle and its snapshots are then unchanged.
pub async fn commit(
    backend: &dyn Backend,
    claim: &Claim,
    CommitOptions { name, removed_by }: CommitOptions,
    progress: ProgressSink,
) -> Result<Commit, SnapshotError> {
    let slug = claim.record().slug;
    let name = name.as_ref();
    remove_abandoned(backend, claim).await?;
    let mut list = committed::read(claim.directory())?;
    let replaced = list.find(name).cloned();
    if let (Some(name), Some(_)) = (name, &replaced) {
        return Err(SnapshotError::Exists { slug, name: name.clone() });
    }
    if replaced.is_none() && list.snapshots.len() >= MAX_SNAPSHOTS {
        return Err(SnapshotError::TooMany(slug));
    }
    // A change that is made after this moment may be missing in the snapshot.
    let covers = before_any_change();
    let made = backend.make_snapshot(&slug, &new_snapshot(&list, name, replaced.as_ref()), progress).await?;
    // Work stays unsaved if the snapshot does not contain the workspace, or if a process will remove the snapshot.
    let saves_work = made.has_workspace && removed_by.is_none();
    let covers = if saves_work { covers } else { Timestamp::MIN };
    let snapshot = made.snapshot;
    list.snapshots.retain(|entry| Some(&entry.snapshot) != replaced.as_ref());
    list.snapshots.push(Committed { snapshot: snapshot.clone(), covers, removed_by });
    list.current = Some(snapshot.reference.clone());
    if let Err(error) = claim.mark_kept().and_then(|()| committed::write(claim.directory(), &list)) {
        // No state names the new snapshot. If removing it fails, a cleanup finds it.
        let _ = backend.remove_snapshot(&snapshot).await;
        return Err(error.into());
    }
    let mut notes = made.notes;
    // If the commit is killed before this removal, a cleanup finds the replaced snapshot.
    if let Some(replaced) = replaced.filter(|replaced| replaced.reference != snapshot.reference) {
        let removed = backend.remove_snapshot(&replaced).await;
        notes.extend(removed.err().map(|error| causes::one_line(&error)));
    }
    Ok(Commit { snapshot, notes })
}

/// Returns the description of the snapshot to create. If the new snapshot replaces its own parent, that parent is about
/// to be removed. The new snapshot then gets the parent of the replaced snapshot as its parent.
fn new_snapshot(list: &CommittedList, name: Option<&Name>, replaced: Option<&Snapshot>) -> NewSnapshot {
    let replaced = replaced.map(|replaced| replaced.reference.clone());
    let current = list.current.as_ref();
    let all = || list.snapshots.iter().map(|entry| &entry.snapshot);
    let previous = all().find(|found| Some(&found.reference) == current).cloned();
    let parent = match &previous {
        Some(previous) if Some(&previous.reference) == replaced.as_ref() => previous.parent.clone(),
        _ => current.cloned(),
    };
    NewSnapshot { name: name.cloned(), parent, previous, replaced }
}

/// Which snapshots of a bottle to remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Removal {
    /// The snapshot with this name, or the snapshot without a name.
    One(Option<Name>),
    /// All snapshots, including snapshots that an interrupted commit left.
    All,
}

/// Removes snapshots of the bottle.
///
/// # Errors
/// Fails if the state cannot be written or a snapshot cannot be removed. A cleanup finds the remaining snapshots.
pub async fn remove(backend: &dyn Backend, claim: &Claim, which: &Removal) -> Result<(), SnapshotError> {
    match which {
        Removal::One(name) => remove_one(backend, claim, name.as_ref()).await,
        Removal::All => remove_all(backend, claim).await,
    }
}

/// Removes one snapshot of the bottle. Succeeds if the bottle does not have the snapshot.
async fn remove_one(backend: &dyn Backend, claim: &Claim, name: Option<&Name>) -> Result<(), SnapshotError> {
    let mut list = committed::read(claim.directory())?;
    let Some(snapshot) = list.find(name).cloned() else { return Ok(()) };
    // The state is written before the snapshot is removed, for the same reason as in `remove_all`.
    list.snapshots.retain(|entry| entry.snapshot != snapshot);
    if list.current.as_ref() == Some(&snapshot.reference) {
        list.current.clone_from(&snapshot.parent);
    }
    committed::write(claim.directory(), &list)?;
    Ok(backend.remove_snapshot(&snapshot).await?)
}

/// Removes abandoned snapshots. The process that should have removed these snapshots was killed.
///
/// # Errors
/// Fails in the same cases as [`remove`].
pub async fn remove_abandoned(backend: &dyn Backend, claim: &Claim) -> Result<(), SnapshotError> {
    let list = committed::read(claim.directory())?;
    for entry in list.snapshots.iter().filter(|entry| entry.is_abandoned()) {
        remove_one(backend, claim, entry.snapshot.name.as_ref()).await?;
    }
    Ok(())
}

/// Removes every snapshot of the bottle, and `committed-image`.
async fn remove_all(backend: &dyn Backend, claim: &Claim) -> Result<(), SnapshotError> {
    let slug = claim.record().slug;
    // The file is removed before the snapshots. After a crash, a snapshot may remain that no file names, but no file
    // names a missing snapshot.
    committed::remove(claim.directory())?;
    match remove_each(backend, &slug).await {
        failures if failures.is_empty() => Ok(()),
        failures => Err(BackendError::failed(failures.join("; ")).into()),
    }
}

/// The times after which changes in a workspace are unsaved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkSince {
    /// The time for work: the time of [`Record::work_since`]. If an existing snapshot contains all changes up to a
    /// later time, that later time.
    pub work: Timestamp,
    /// The time for files that git ignores, which no pull copies to the user.
    pub ignored: Timestamp,
}

/// Returns the times after which changes in the workspace are unsaved. `None` if no agent ran in the workspace.
pub async fn work_since(backend: &dyn Backend, directory: &Path, record: &Record) -> Option<WorkSince> {
    let offset = clock::boot_offset();
    let since = WorkSince { work: record.work_since(offset)?, ignored: record.changed_since(offset)? };
    if record.set_back(offset).is_some() {
        // A change that was made after the snapshot may have an older time stamp.
        return Some(since);
    }
    let Ok(list) = committed::read(directory) else { return Some(since) };
    if list.snapshots.is_empty() {
        return Some(since);
    }
    let there = backend.snapshots().await.unwrap_or_default();
    let exists = |entry: &&Committed| there.iter().any(|found| found.is_same(&entry.snapshot));
    let covered = list.snapshots.iter().filter(exists).map(|entry| entry.covers).max();
    Some(covered.map_or(since, |covers| WorkSince {
        work: since.work.max(covers),
        ignored: since.ignored.max(covers),
    }))
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
