//! What the backend says at start. Nothing in it is secret.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use bottle_daemon::ListenerConfig;
use bottle_harden::HardenError;
use bottle_harden::identity::Identity;
use bottle_harden::reach::Held;
use serde::{Deserialize, Serialize};

/// Where a bundle stands and what it is called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BundleConfig {
    /// Home and slug of the bottle, as they stand on the command lines of its processes, by which the
    /// backend finds them again; each daemon gets them as its first arguments.
    pub labels: [String; 2],
    /// How the bottle reaches the daemons. A folder must exist and be writable for [`Self::identity`].
    pub proxy: ListenerConfig,
    /// Where keepers speak from.
    pub control: Control,
    /// An existing folder for the daemons' logs, writable for [`Self::identity`].
    pub logs: PathBuf,
    /// Whom bundle and daemons become. For a backend that runs as root; anyone else may not. The way to
    /// proxy and logs may be closed to that user.
    #[serde(default)]
    pub identity: Option<Identity>,
    /// Where the user's machine is, seen from here; none: this is it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<IpAddr>,
    /// An existing folder for the git gate's mirrors, writable for [`Self::identity`]; none: there is no gate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<PathBuf>,
    /// Whether the agent can ask a user: then there is an MCP server.
    #[serde(default)]
    pub supervise: bool,
}

/// Where keepers speak from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Control {
    /// A unix socket; a stale one is replaced. Only peers of the user that started the bundle are heard.
    Socket {
        /// Its path.
        path: PathBuf,
    },
    /// The bundle's own standard input and output, two pipes, joined again and again
    /// ([`bottle_channel::rejoin`]). When they end, so does the bundle: nobody could ever reach it again.
    Stdio,
}

impl BundleConfig {
    /// Keeps the proxy within reach of the user that this process will be, while the answer lives.
    ///
    /// # Errors
    /// When there is no way to it now.
    pub(crate) fn hold(&mut self) -> Result<Option<Held>, HardenError> {
        if self.identity.is_some() { self.proxy.hold() } else { Ok(None) }
    }

    /// The folders in which it removes unix sockets.
    pub(crate) fn socket_folders(&self) -> Vec<PathBuf> {
        let control = match &self.control {
            // Another user's folder stays as it is.
            Control::Socket { path } => path.parent().filter(|_| self.identity.is_none()),
            Control::Stdio => None,
        };
        let proxy = match &self.proxy {
            ListenerConfig::Socket { folder } => Some(folder.as_path()),
            ListenerConfig::Network { .. } => None,
        };
        control.into_iter().chain(proxy).map(Path::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_socket() -> BundleConfig {
        BundleConfig {
            labels: ["0123abcd".into(), "a-1".into()],
            proxy: ListenerConfig::Socket { folder: "/run/x/proxy".into() },
            control: Control::Socket { path: "/run/x/bundle.sock".into() },
            logs: "/state/x/logs".into(),
            identity: Some(Identity { uid: 4000, gid: 4000 }),
            machine: None,
            gate: Some("/state/x/git-gate".into()),
            supervise: true,
        }
    }

    #[test]
    fn it_is_read_back_and_unknown_words_are_errors() {
        let [address, bottle] = [2, 3].map(|last| std::net::Ipv4Addr::new(10, 213, 0, last));
        let by_network = BundleConfig {
            proxy: ListenerConfig::Network { address, bottle },
            control: Control::Stdio,
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
