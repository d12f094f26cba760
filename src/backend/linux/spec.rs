//! What a new sandbox is made of, handed to its first process ([`crate::backend::local::handoff`]).

use std::path::PathBuf;

use bottle_guest::Limits;
use serde::{Deserialize, Serialize};

/// One sandbox. Holds no secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SandboxSpec {
    /// The bottle's slug; its host name.
    pub(crate) hostname: String,
    /// 32 hex digits that say nothing about the host.
    pub(crate) machine_id: String,
    /// The unprivileged user outside that the agent is, when root starts it; else whoever starts it.
    pub(crate) outside_id: Option<u32>,
    /// What of the host a bottle has of its own; absent in a trial, which ends when it is set up.
    pub(crate) own: Option<OwnFolders>,
    /// Paths of the host that are seen read-only at the same place.
    pub(crate) exposed: Vec<PathBuf>,
    /// The most processes and threads at a time.
    pub(crate) processes: u64,
    /// Whether sandboxes may be made inside.
    pub(crate) nested: bool,
    /// What the guest watches.
    pub(crate) limits: Limits,
    /// Files by which the first process joins the groups that limit it.
    pub(crate) groups: Vec<PathBuf>,
    /// The most bytes in `/tmp`, which is memory.
    pub(crate) scratch: u64,
}

/// A bottle's own folders on the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OwnFolders {
    /// Becomes the agent's home.
    pub(crate) home: PathBuf,
    /// Becomes the workspace.
    pub(crate) workspace: PathBuf,
    /// Holds the door's sockets.
    pub(crate) door: PathBuf,
}
