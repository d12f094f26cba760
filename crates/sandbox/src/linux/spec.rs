//! The specification of a sandbox, which the backend sends to the first process ([`crate::local::spawn_ipc`]).

use std::path::PathBuf;

use bottle_guest::Limits;
use bottle_plan::LiveDirectory;
use bottle_policy::names::AGENT_UID;
use serde::{Deserialize, Serialize};

/// The specification of one sandbox. Contains no secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SandboxSpec {
    /// The bottle's slug, which becomes the host name.
    pub(crate) hostname: String,
    /// The machine id as 32 hexadecimal digits, independent of the host's machine id.
    pub(crate) machine_id: String,
    /// The agent's unprivileged host user id if root starts the bottle. `None` if an ordinary user starts the bottle,
    /// because the agent then runs under the user's own id.
    pub(crate) outside_id: Option<u32>,
    /// The bottle's directories on the host. `None` for a trial sandbox.
    pub(crate) own: Option<OwnDirectories>,
    /// The image that contains the system files. `None` if the bottle uses the host's system.
    pub(crate) image: Option<ImageSpec>,
    /// Host paths that are visible read-only at the same path.
    pub(crate) exposed: Vec<PathBuf>,
    /// The maximum number of processes and threads at one time.
    pub(crate) processes: u64,
    /// Whether programs may create nested sandboxes.
    pub(crate) nested: bool,
    /// The limits that the guest enforces by polling.
    pub(crate) limits: Limits,
    /// The `cgroup.procs` files of the control groups that the process joins.
    pub(crate) groups: Vec<PathBuf>,
    /// The size limit in bytes of the tmpfs `/tmp`.
    pub(crate) scratch: u64,
}

/// The agent's ids in the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AgentIds {
    /// The agent's user id.
    pub(crate) uid: u32,
    /// The agent's group id.
    pub(crate) gid: u32,
}

/// A bottle's image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImageSpec {
    /// The read-only files of the image. `None` if the bottle has a copy of the image.
    pub(crate) root: Option<PathBuf>,
    /// The bottle's layers: its changes to the image, or its copy of the image.
    pub(crate) layers: PathBuf,
    /// The agent's ids in the image.
    pub(crate) inside: AgentIds,
}

impl SandboxSpec {
    /// Whether the bottle's files are read-only.
    pub(crate) fn is_read_only(&self) -> bool {
        self.own.as_ref().is_some_and(|own| own.read_only)
    }

    /// The agent's ids in the sandbox.
    pub(crate) fn inside(&self) -> AgentIds {
        self.image.as_ref().map_or(AgentIds { uid: AGENT_UID, gid: AGENT_UID }, |image| image.inside)
    }
}

/// The bottle's directories on the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OwnDirectories {
    /// The agent's home. `None` if the bottle runs from an image, which contains the home.
    pub(crate) home: Option<PathBuf>,
    /// The directory of the workspace.
    pub(crate) workspace: PathBuf,
    /// The directory of the user that is mounted as the workspace. If there is one, the directory
    /// [`OwnDirectories::workspace`] contains only the bottle's repository.
    #[serde(default)]
    pub(crate) live: Option<LiveDirectory>,
    /// The git objects that the bottle's repository shares with the host's repository. `None` if the two repositories
    /// share no objects.
    #[serde(default)]
    pub(crate) objects: Option<PathBuf>,
    /// The directory of the proxy's sockets. `None` if the sandbox has no proxy.
    pub(crate) proxy: Option<PathBuf>,
    /// Whether the bottle's files are read-only, including its changes to an image or its copy of an image.
    pub(crate) read_only: bool,
}
