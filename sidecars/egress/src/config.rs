//! The daemon's name, and its configuration.

use std::net::IpAddr;
use std::path::PathBuf;

use bottle_daemon::ListenerConfig;
use bottle_harden::identity::Identity;
use serde::{Deserialize, Serialize};

/// The daemon's name in health responses and events.
pub const NAME: &str = "egress";

/// The configuration that the bundle passes on the command line, without secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EgressConfig {
    /// The listeners to which the bottle connects.
    pub proxy: ListenerConfig,
    /// An existing directory for the log files.
    pub logs: PathBuf,
    /// Whether the access log goes to the keeper process over the channel, and not to files in `logs`.
    #[serde(default)]
    pub relay_log: bool,
    /// The user and group that the daemon switches to if it starts as root. This user or group needs write access to
    /// the listener's directory and `logs`.
    #[serde(default)]
    pub identity: Option<Identity>,
    /// The address of the user's machine as seen from this process; `None` means loopback.
    #[serde(default)]
    pub machine: Option<IpAddr>,
    /// Number of hits after which the bottle is locked ([`bottle_policy::lock_out::HITS`]); `None` disables the
    /// lock-out.
    pub lock_after: Option<usize>,
}
