//! Snapshots of bottles, and the origin of a launch's files.
//!
//! ```text
//!   a running or kept bottle ──freeze──► snapshot, complete or absent ──remove_snapshot──► (nothing)
//!                                                  │
//!   make_network, start_guest with [`Origin`] ◄────┘  New │ Kept │ Snapshot
//! ```
//! A snapshot contains the bottle's own files: installed software and the agent's work. It never contains data of a
//! single launch (certificates, secrets, the proxy, `/tmp`).

use bottle_contract::names::Slug;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// A complete snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The bottle of the snapshot.
    pub slug: Slug,
    /// The backend's unique name for it: a folder name or an image tag.
    pub reference: String,
    /// When the freeze started.
    pub made_at: Timestamp,
    /// Bytes that its removal would free, if known without reading all of it.
    pub bytes: Option<u64>,
}

/// The result of a freeze.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frozen {
    /// The complete, durable snapshot.
    pub snapshot: Snapshot,
    /// Notes for the user, a sentence fragment each; for example, files that changed during the copy.
    pub notes: Vec<String>,
}

/// The origin of a bottle's files at launch.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// Home and workspace are empty.
    #[default]
    New,
    /// The preserved files of the bottle of this slug, used in place.
    Kept,
    /// A copy of this snapshot.
    Snapshot(Snapshot),
}
