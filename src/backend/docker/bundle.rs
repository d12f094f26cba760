//! The container of the sidecars, as the engine is asked for it. Pure.
//!
//! It holds what the agent must not have: so nothing in it can be written but the logs and a little memory,
//! and it listens on the bottle's own side only.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::path::Path;

use bollard::models::{
    ContainerCreateBody, EndpointSettings, HostConfig, Mount, MountType, NetworkingConfig,
};
use bottle_bundle::{BundleConfig, Control, ListenerConfig};
use bottle_contract::names::{LISTENER_DIR, RUN_DIR, Slug};

use super::agent::{fixed, volume_mount};
use super::contained::{BUNDLE_FLAG, SIDECARS_PROGRAM, to_argument};
use super::hardened::{host_config, no_health_check};
use super::names::{Names, Part};
use super::network::Net;
use super::subnets;

/// Processes and threads: the daemons, and the gits and sshs of a few pushes.
const PROCESSES: i64 = 512;

/// Memory, above which a hostile bottle has filled it: the daemons' own bounds end far below.
const MEMORY: i64 = 2 << 30;

/// Memory for the daemons' scratch files.
const SCRATCH_SIZE: &str = "64m";

/// Where the logs are seen inside.
const LOGS: &str = "/run/bottle/logs";

/// Where the git gate's folder is seen inside.
const GATE: &str = "/run/bottle/git-gate";

/// The file in it that names the user.
pub(super) const PASSWD: &str = "passwd";

/// How the bundle is reached from inside the bottle.
#[derive(Debug, Clone, Copy)]
pub(super) enum BundleTransport<'a> {
    /// On this network, at its own address there.
    Network(&'a Net),
    /// By sockets in a volume.
    Socket {
        /// Its name.
        volume: &'a str,
        /// The only network that the bundle is on.
        outside: &'a Net,
    },
}

/// What differs between two bundles' containers.
pub(super) struct Bundle<'a> {
    pub(super) names: &'a Names,
    pub(super) slug: &'a Slug,
    /// Home and slug, as its processes are labelled.
    pub(super) labels: [String; 2],
    /// The image's id.
    pub(super) image: &'a str,
    /// User and group id inside; never 0.
    pub(super) user: (u32, u32),
    /// The host's folder for its logs, which that user may write to.
    pub(super) logs: &'a Path,
    /// The host's folder for the git gate, where the bottle has one; the same may write to it.
    pub(super) gate: Option<&'a Path>,
    /// Whether the agent can ask a user.
    pub(super) supervise: bool,
    /// Where the user's machine is, for routes that lead to it.
    pub(super) machine: Option<Ipv4Addr>,
    pub(super) way: BundleTransport<'a>,
}

impl Bundle<'_> {
    /// The whole request. Older engines take only one network with it, so it is the one that is there first: the
    /// shared one, where there is one. Then the outward one is connected ([`Bundle::endpoint`]) before it starts.
    pub(super) fn body(&self) -> ContainerCreateBody {
        let net = self.first();
        ContainerCreateBody {
            hostname: Some(self.slug.to_string()),
            user: Some(format!("{}:{}", self.user.0, self.user.1)),
            image: Some(self.image.to_owned()),
            entrypoint: Some(vec![SIDECARS_PROGRAM.to_owned()]),
            cmd: Some(vec![BUNDLE_FLAG.to_owned(), self.config()]),
            working_dir: Some("/".to_owned()),
            healthcheck: Some(no_health_check()),
            labels: Some(self.names.labels(Part::Bundle, self.slug)),
            open_stdin: Some(true),
            stdin_once: Some(false),
            tty: Some(false),
            networking_config: Some(NetworkingConfig {
                endpoints_config: Some(HashMap::from([(net.id.clone(), fixed(subnets::bundle(net.subnet)))])),
            }),
            host_config: Some(self.host_config(net)),
            ..ContainerCreateBody::default()
        }
    }

    /// The network that it is made on.
    fn first(&self) -> &Net {
        match self.way {
            BundleTransport::Network(shared) => shared,
            BundleTransport::Socket { outside, .. } => outside,
        }
    }

    /// Its place on the outward network.
    pub(super) fn endpoint(outside: &Net) -> EndpointSettings {
        fixed(subnets::bundle(outside.subnet))
    }

    /// What the bundle is told on its command line; nothing in it is secret.
    fn config(&self) -> String {
        let proxy = match self.way {
            BundleTransport::Network(net) => ListenerConfig::Network {
                address: subnets::bundle(net.subnet),
                bottle: subnets::agent(net.subnet),
            },
            BundleTransport::Socket { .. } => ListenerConfig::Socket { folder: LISTENER_DIR.into() },
        };
        let config = BundleConfig {
            labels: self.labels.clone(),
            proxy,
            control: Control::Stdio,
            logs: LOGS.into(),
            identity: None,
            machine: self.machine.map(Into::into),
            gate: self.gate.map(|_| GATE.into()),
            supervise: self.supervise,
        };
        to_argument(&config)
    }

    fn host_config(&self, net: &Net) -> HostConfig {
        let common = host_config();
        let mut mounts = vec![bind(self.logs, LOGS, false)];
        if let Some(gate) = self.gate {
            mounts.push(bind(gate, GATE, false));
            // ssh asks for the name of its user.
            mounts.push(bind(&gate.join(PASSWD), "/etc/passwd", true));
        }
        if let BundleTransport::Socket { volume, .. } = self.way {
            mounts.push(volume_mount(volume, LISTENER_DIR, false));
        }
        let mut sysctls = common.sysctls.unwrap_or_default();
        // It stands on two networks and must not be a way from one to the other.
        sysctls.insert("net.ipv4.ip_forward".to_owned(), "0".to_owned());
        // 53, 80 and 443 without a capability.
        sysctls.insert("net.ipv4.ip_unprivileged_port_start".to_owned(), "0".to_owned());
        HostConfig {
            network_mode: Some(net.id.clone()),
            readonly_rootfs: Some(true),
            mounts: Some(mounts),
            tmpfs: Some(self.tmpfs()),
            sysctls: Some(sysctls),
            pids_limit: Some(PROCESSES),
            memory: Some(MEMORY),
            memory_swap: Some(MEMORY),
            ..common
        }
    }

    fn tmpfs(&self) -> HashMap<String, String> {
        let (uid, gid) = self.user;
        let own = format!("rw,nosuid,nodev,noexec,mode=0700,uid={uid},gid={gid},size={SCRATCH_SIZE}");
        ["/tmp", RUN_DIR].map(|path| (path.to_owned(), own.clone())).into()
    }
}

/// A path of the host, seen inside.
fn bind(source: &Path, target: &str, read_only: bool) -> Mount {
    Mount {
        typ: Some(MountType::BIND),
        source: Some(source.to_string_lossy().into_owned()),
        target: Some(target.to_owned()),
        read_only: Some(read_only),
        ..Mount::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(way: BundleTransport<'_>) -> serde_json::Value {
        let names = Names::of("0123abcd".to_owned());
        let slug: Slug = "a-1".parse().expect("slug");
        let bundle = Bundle {
            names: &names,
            slug: &slug,
            labels: ["0123abcd".to_owned(), "a-1".to_owned()],
            image: "sha256:def",
            user: (64_242, 64_242),
            logs: Path::new("/state/a-1/logs"),
            gate: None,
            supervise: false,
            machine: None,
            way,
        };
        serde_json::to_value(bundle.body()).expect("JSON")
    }

    fn net(id: &str, subnet: &str) -> Net {
        Net { id: id.to_owned(), subnet: subnet.parse().expect("a network") }
    }

    #[test]
    fn the_whole_request_by_network() {
        let endpoint = Bundle::endpoint(&net("n2", "10.213.0.32/28"));
        let body = json(BundleTransport::Network(&net("n1", "10.213.0.16/28")));
        insta::assert_json_snapshot!(serde_json::json!({"body": body, "endpoint": endpoint}));
    }

    #[test]
    fn the_whole_request_by_socket() {
        let outside = net("n2", "10.213.0.32/28");
        insta::assert_json_snapshot!(json(BundleTransport::Socket { volume: "v1", outside: &outside }));
    }
}
