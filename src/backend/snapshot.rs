//! What a backend freezes a bottle into, and what a later launch begins with.
//!
//! ```text
//!   a bottle that runs, or was kept ──freeze──► snapshot, whole or not there ──remove_snapshot──► (nothing)
//!                                                  │
//!   make_network, start_guest with [`Origin`] ◄────┘  New │ Kept │ Snapshot
//! ```
//! A snapshot is the bottle's own files: what an agent installed, wrote and was working on. What belongs to
//! one launch only (certificates, secrets, the proxy, `/tmp`) is never in it.

use bottle_contract::names::Slug;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// A whole snapshot, as its backend knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The bottle it was made of.
    pub slug: Slug,
    /// The backend's own name for it, never used twice: a folder's name, an image's tag.
    pub reference: String,
    /// When it was begun.
    pub made_at: Timestamp,
    /// Bytes it would free when removed, when the backend can tell without reading all of it.
    pub bytes: Option<u64>,
}

/// What came of a freeze.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frozen {
    /// Whole, and durable.
    pub snapshot: Snapshot,
    /// What the user should know of it, a sentence fragment each: files that changed while they were
    /// copied, for one.
    pub notes: Vec<String>,
}

/// What the files of a bottle are when it is launched.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// Nothing yet: home and workspace are empty.
    #[default]
    New,
    /// What the bottle of this slug left behind when it was preserved; it is gone on with, in place.
    Kept,
    /// A copy of this snapshot, which stays as it is.
    Snapshot(Snapshot),
}
