//! Snapshots of bottles, and the origin of a launch's files.
//!
//! ```text
//!   a running or kept bottle ──make_snapshot──► snapshot, complete or absent ──remove_snapshot──► (nothing)
//!                                                  │
//!   make_network, start_guest with [`Origin`] ◄────┘  New │ Kept │ Snapshot
//! ```
//! A snapshot contains the files that belong to the bottle: installed software and the agent's work. It never contains
//! data that only one launch uses (certificates, secrets, the proxy's sockets, `/tmp`).

use bottle_policy::names::{Name, Slug};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// A complete snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The slug of the bottle from which the snapshot was made.
    pub slug: Slug,
    /// The backend's unique name for the snapshot: a directory name or an image tag.
    pub reference: String,
    /// The time at which the creation of the snapshot began.
    pub made_at: Timestamp,
    /// The size of the snapshot in bytes, if it is known without reading the complete snapshot. Removing the snapshot
    /// frees at most this many bytes, because the snapshot can share files with other snapshots.
    pub bytes: Option<u64>,
    /// The name that the user gave to the snapshot. `None` for the snapshot that the next commit without a name
    /// replaces. A bottle has at most one snapshot of each name.
    #[serde(default)]
    pub name: Option<Name>,
    /// The reference of the last earlier snapshot in which the bottle's files were stored, or from which they were
    /// restored. That earlier snapshot may have been removed since.
    #[serde(default)]
    pub parent: Option<String>,
}

impl Snapshot {
    /// Whether `other` describes the same snapshot. Two descriptions of a snapshot can differ in [`Snapshot::bytes`].
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        (&self.slug, &self.reference) == (&other.slug, &other.reference)
    }
}

/// The snapshot to create.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NewSnapshot {
    /// The name, as in [`Snapshot::name`].
    pub name: Option<Name>,
    /// The parent, as in [`Snapshot::parent`].
    pub parent: Option<String>,
    /// The last earlier snapshot in which the bottle's files were stored, or from which they were restored. The caller
    /// may replace this earlier snapshot with the new one. The new snapshot may share unchanged files with it.
    pub previous: Option<Snapshot>,
    /// The reference of the snapshot that the caller removes after this snapshot was made.
    pub replaced: Option<String>,
}

/// The result of [`crate::Snapshots::make_snapshot`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MadeSnapshot {
    /// The complete, durable snapshot.
    pub snapshot: Snapshot,
    /// Whether the snapshot contains the workspace. An image can have a volume at the workspace, and a commit excludes
    /// volumes.
    pub has_workspace: bool,
    /// Notes for the user, as sentence fragments; for example, which files changed during the copy.
    pub notes: Vec<String>,
}

/// Where a bottle's files come from at launch.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// Home and workspace are empty.
    #[default]
    New,
    /// The kept files of the bottle with this slug. The launch uses the files in place and does not copy them.
    Kept,
    /// A copy of this snapshot.
    Snapshot(Snapshot),
}
