//! What a new sandbox is made of, handed to its first process ([`crate::backend::local::handoff`]).

use std::path::PathBuf;

use bottle_contract::names::AGENT_UID;
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
    /// The image whose files are its system; absent when that is the host's.
    pub(crate) image: Option<ImageSpec>,
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

/// Who the agent is inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Inside {
    /// Its user id.
    pub(crate) uid: u32,
    /// Its group id.
    pub(crate) gid: u32,
}

/// The image that a bottle works in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImageSpec {
    /// Its files, which nobody writes to; absent when the bottle has a copy of its own.
    pub(crate) root: Option<PathBuf>,
    /// The bottle's layers: what it changed, or its copy.
    pub(crate) layers: PathBuf,
    /// Who the agent is in it.
    pub(crate) inside: Inside,
}

impl SandboxSpec {
    /// Who the agent is inside.
    pub(crate) fn inside(&self) -> Inside {
        self.image.as_ref().map_or(Inside { uid: AGENT_UID, gid: AGENT_UID }, |image| image.inside)
    }
}

/// A bottle's own folders on the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OwnFolders {
    /// Becomes the agent's home; an image has one.
    pub(crate) home: Option<PathBuf>,
    /// Becomes the workspace.
    pub(crate) workspace: PathBuf,
    /// Holds the proxy's sockets.
    pub(crate) proxy: PathBuf,
}
