//! Defines the command lines of the `bottle` program inside containers. The module `container_roles` implements these
//! command lines.
//!
//! Every user of the engine can read a container's configuration. A role's command line therefore contains only how its
//! processes are connected; all other data is sent over the standard streams.

use serde::{Deserialize, Serialize};

/// The first argument of pid 1 in the agent's container.
pub(super) const GUEST_FLAG: &str = "__contained-guest";
/// The first argument of pid 1 in the bundle's container.
pub(super) const BUNDLE_FLAG: &str = "__contained-bundle";

/// In the agent's container, the mount point of the volume that contains the `bottle` program.
pub(super) const PROGRAM_DIR: &str = "/run/bottle/bin";
/// The path of the `bottle` program in the agent's container.
pub(super) const PROGRAM_FILE: &str = "/run/bottle/bin/bottle";
/// The path of the `bottle` program in the sidecars' image.
pub(super) const SIDECARS_PROGRAM: &str = "/usr/local/bin/bottle";

/// The argument of pid 1 in the agent's container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct GuestSpec {
    /// Whether the guest forwards the proxy's ports to sockets. If the agent's container reaches the bundle's container
    /// over a network, the guest forwards nothing.
    pub(super) by_socket: bool,
    /// The directory of the user that is mounted as the workspace, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) live: Option<LiveSpec>,
}

/// Identifies a directory of the user, as [`bottle_plan::LiveDirectory`] does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct LiveSpec {
    pub(super) device: u64,
    pub(super) inode: u64,
    /// The inode of the user's repository, which must not be visible.
    pub(super) repository: Option<u64>,
}

/// Encodes the specification as the one argument of a role.
pub(super) fn to_argument<S: Serialize>(spec: &S) -> String {
    // The encoding never fails for these types, because their map keys are strings.
    serde_json::to_string(spec).unwrap_or_default()
}
