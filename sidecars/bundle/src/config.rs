//! Defines the bundle's configuration, which the backend passes to the bundle. The configuration contains no secrets.

use std::net::IpAddr;
use std::path::PathBuf;

use bottle_daemon::ListenerConfig;
use bottle_harden::identity::Identity;
use serde::{Deserialize, Serialize};

/// The configuration of one bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BundleConfig {
    /// The home directory and the slug of the bottle. The bundle passes both as the first arguments to each daemon, so
    /// that the backend can find the daemons' processes.
    pub labels: [String; 2],
    /// The listeners for the bottle. The directory of their sockets must exist and be writable for
    /// [`Self::identity`].
    pub proxy: ListenerConfig,
    /// Whether keepers connect to a socket or over the bundle's standard streams.
    pub control: Control,
    /// An existing directory for the daemons' logs. The directory must be writable for [`Self::identity`].
    pub logs: PathBuf,
    /// Whether the access log is sent to the keeper ([`BundleRequest::Log`]) instead of being written to
    /// [`Self::logs`]. A backend sets this flag if the keeper cannot read the directory [`Self::logs`].
    ///
    /// [`BundleRequest::Log`]: bottle_protocol::session::bundle::BundleRequest::Log
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub relay_log: bool,
    /// The user that the bundle and the daemons switch to. Only a backend that runs as root sets this field. The user
    /// needs no access to the parent directories of the listeners' directory and of the logs.
    #[serde(default)]
    pub identity: Option<Identity>,
    /// The address at which the bundle reaches the user's machine. `None` means the loopback address, because the
    /// bundle runs on the user's machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<IpAddr>,
    /// An existing directory for the git gate's mirrors. The directory must be writable for [`Self::identity`]. `None`
    /// disables the git gate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<PathBuf>,
    /// Whether the bundle starts the supervise daemon.
    #[serde(default)]
    pub supervise: bool,
}

/// The two ways in which keepers can connect to a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Control {
    /// Keepers connect to a unix socket. The bundle replaces a stale socket file. The bundle accepts only connections
    /// from the user that started the bundle.
    Socket {
        /// The path of the socket.
        path: PathBuf,
    },
    /// Keepers use the bundle's standard input and output, one keeper after another ([`bottle_channel::rejoin()`]). The
    /// bundle exits when its standard streams end, because no keeper could connect after that.
    Stdio,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_socket() -> BundleConfig {
        BundleConfig {
            labels: ["0123abcd".into(), "a-1".into()],
            proxy: ListenerConfig::Socket { directory: "/run/x/proxy".into() },
            control: Control::Socket { path: "/run/x/bundle.sock".into() },
            logs: "/state/x/logs".into(),
            relay_log: false,
            identity: Some(Identity { uid: 4000, gid: 4000 }),
            machine: None,
            gate: Some("/state/x/git-gate".into()),
            supervise: true,
        }
    }

    #[test]
    fn round_trips_and_refuses_unknown_fields() {
        let [address, bottle] = [2, 3].map(|last| std::net::Ipv4Addr::new(10, 213, 0, last));
        let by_network = BundleConfig {
            proxy: ListenerConfig::Network { address, bottle },
            control: Control::Stdio,
            relay_log: true,
            identity: None,
            machine: Some(address.into()),
            gate: None,
            ..by_socket()
        };
        for config in [by_socket(), by_network] {
            let text = serde_json::to_string(&config).expect("text");
            assert_eq!(serde_json::from_str::<BundleConfig>(&text).expect("read"), config);
            let unknown = text.replacen('{', "{\"secret\":1,", 1);
            assert!(serde_json::from_str::<BundleConfig>(&unknown).is_err());
        }
    }
}
