//! Defines the paths in a bottle's containers, and the command lines that run this program in the containers. The
//! module `roles` implements these command lines.
//!
//! Every user of the machine can read a container's configuration. A command line therefore contains only how the
//! processes are connected; all other data is sent over the channels.

use serde::{Deserialize, Serialize};

/// The first argument of pid 1 in the agent's container.
pub(super) const GUEST_FLAG: &str = "__apple-guest";

/// The first argument of pid 1 in the bundle's container.
pub(super) const BUNDLE_FLAG: &str = "__apple-bundle";

/// The first argument of the process that sends the files of the agent's container to [`ARCHIVE_SOCKET`].
pub(super) const ARCHIVE_FLAG: &str = "__apple-archive";

/// The first word of the line that pid 1 prints when its sockets accept connections. A failed connection can
/// permanently end a relay of `container`, so nothing connects before pid 1 has printed this line. The rest of the line
/// differs at each start.
pub(super) const READY: &str = "bottle-is-ready";

/// The mount point of the directory with the `bottle` program.
pub(super) const PROGRAM_DIR: &str = "/.bottle/bin";

/// The path of the `bottle` program in the agent's container.
pub(super) const PROGRAM: &str = "/.bottle/bin/bottle";

/// The path of the `bottle` program in the sidecars' image.
pub(super) const SIDECARS_PROGRAM: &str = "/usr/local/bin/bottle";

/// The directory of the proxy's sockets. The name of each socket is its port.
pub(super) const PROXY: &str = "/.bottle/proxy";

/// The socket on which the guest listens. Only root may enter the directory of the socket, so that no process of the
/// agent can connect.
pub(super) const GUEST_SOCKET: &str = "/.bottle/guest/socket";

/// The socket to which the process with [`ARCHIVE_FLAG`] connects. The host listens on the other side while it makes a
/// snapshot. The socket is in the directory of [`GUEST_SOCKET`], so that no process of the agent can connect.
pub(super) const ARCHIVE_SOCKET: &str = "/.bottle/guest/archive";

/// The socket on which the bundle listens.
pub(super) const BUNDLE_SOCKET: &str = "/.bottle/bundle/socket";

/// The directories for everything that the backend puts into a container. Every image contains these directories, and
/// snapshots exclude them. Sockets that a container publishes must be on the container's root file system.
pub(super) const DIRECTORIES: [&str; 5] =
    ["/.bottle", "/.bottle/bin", "/.bottle/proxy", "/.bottle/guest", "/.bottle/bundle"];

/// The mount point of the volume with the sidecars' files.
pub(super) const STATE: &str = "/var/lib/bottle";

/// The directory of the sidecars' buffered bodies and of the usage records that no keeper has received.
pub(super) const LOGS: &str = "/var/lib/bottle/logs";

/// The git gate's directory, with its mirrors.
pub(super) const GATE: &str = "/var/lib/bottle/git-gate";

/// The argument of pid 1 in the agent's container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct GuestSpec {
    /// The agent's user id. Never 0.
    pub(super) uid: u32,
    /// The agent's group id.
    pub(super) gid: u32,
    /// Whether the guest forwards the proxy's ports.
    pub(super) proxy: bool,
    /// The amount of used memory, in bytes, at which the guest stops the bottle, before the machine's kernel kills
    /// processes.
    pub(super) memory: u64,
    /// Whether the manifest sets the limit `memory`.
    pub(super) memory_asked: bool,
}

/// Encodes the specification as the one argument of a role.
pub(super) fn to_argument<S: Serialize>(spec: &S) -> String {
    // The encoding never fails for these types, because their map keys are strings.
    serde_json::to_string(spec).unwrap_or_default()
}
