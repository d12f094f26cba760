//! The specification of a sandbox, handed off to its first process ([`crate::backend::local::spawn_ipc`]).

use std::path::PathBuf;

use bottle_contract::names::AGENT_UID;
use bottle_guest::Limits;
use serde::{Deserialize, Serialize};

/// One sandbox. Contains no secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SandboxSpec {
    /// The bottle's slug; its host name.
    pub(crate) hostname: String,
    /// 32 hex digits, independent of the host's machine id.
    pub(crate) machine_id: String,
    /// The agent's unprivileged outside user when root starts it; otherwise the starting user.
    pub(crate) outside_id: Option<u32>,
    /// The bottle's folders on the host; `None` for a trial sandbox.
    pub(crate) own: Option<OwnFolders>,
    /// The image with the system files; `None` for the host's system.
    pub(crate) image: Option<ImageSpec>,
    /// Host paths visible read-only at the same path.
    pub(crate) exposed: Vec<PathBuf>,
    /// The most processes and threads at a time.
    pub(crate) processes: u64,
    /// Whether nested sandboxes are allowed.
    pub(crate) nested: bool,
    /// The limits that the guest polls.
    pub(crate) limits: Limits,
    /// `cgroup.procs` files of the control groups to join.
    pub(crate) groups: Vec<PathBuf>,
    /// The size of `/tmp` in bytes, a tmpfs.
    pub(crate) scratch: u64,
}

/// The agent's ids inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AgentIds {
    /// Its user id.
    pub(crate) uid: u32,
    /// Its group id.
    pub(crate) gid: u32,
}

/// A bottle's image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImageSpec {
    /// The image's files, read-only; `None` when the bottle has its own copy.
    pub(crate) root: Option<PathBuf>,
    /// The bottle's layers: its changes, or its copy.
    pub(crate) layers: PathBuf,
    /// The agent's ids in the image.
    pub(crate) inside: AgentIds,
}

impl SandboxSpec {
    /// The agent's ids inside.
    pub(crate) fn inside(&self) -> AgentIds {
        self.image.as_ref().map_or(AgentIds { uid: AGENT_UID, gid: AGENT_UID }, |image| image.inside)
    }
}

/// A bottle's own folders on the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OwnFolders {
    /// The agent's home; `None` with an image, which contains one.
    pub(crate) home: Option<PathBuf>,
    /// The workspace.
    pub(crate) workspace: PathBuf,
    /// The proxy's sockets.
    pub(crate) proxy: PathBuf,
}
