//! Builds the create request of the bundle's container, which runs the sidecars. Pure.
//!
//! It has secrets that the agent must not get. So only its logs and small tmpfs folders are writable, and it listens only
//! on the bottle's network.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::path::Path;

use bollard::models::{
    ContainerCreateBody, EndpointSettings, HostConfig, Mount, MountType, NetworkingConfig,
};
use bottle_bundle::{BundleConfig, Control, ListenerConfig};
use bottle_contract::names::{LISTENER_DIR, RUN_DIR, Slug};

use super::agent::{fixed, volume_mount};
use super::container_entry::{BUNDLE_FLAG, SIDECARS_PROGRAM, to_argument};
use super::hardened::{host_config, no_health_check};
use super::names::{Names, Part};
use super::network::Net;
use super::subnets;

/// Processes and threads: the daemons, and the git and ssh processes of a few pushes.
const PROCESSES: i64 = 512;

/// Memory. The daemons' own bounds are far lower, so only an attack reaches it.
const MEMORY: i64 = 2 << 30;

/// Size of the tmpfs for the daemons' scratch files.
const SCRATCH_SIZE: &str = "64m";

/// The logs inside the container.
const LOGS: &str = "/run/bottle/logs";

/// The git gate's folder inside the container.
const GATE: &str = "/run/bottle/git-gate";

/// The passwd file in that folder.
pub(super) const PASSWD: &str = "passwd";

/// How the agent connects to the bundle.
#[derive(Debug, Clone, Copy)]
pub(super) enum BundleTransport<'a> {
    /// Over this network, at the bundle's address there.
    Network(&'a Net),
    /// By sockets in a volume.
    Socket {
        /// The volume's name.
        volume: &'a str,
        /// The bundle's only network.
        outside: &'a Net,
    },
}

/// The parameters of a bundle's container.
pub(super) struct Bundle<'a> {
    pub(super) names: &'a Names,
    pub(super) slug: &'a Slug,
    /// Home and slug, the labels of its processes.
    pub(super) labels: [String; 2],
    /// The image's id.
    pub(super) image: &'a str,
    /// User and group id inside; never 0.
    pub(super) user: (u32, u32),
    /// The host folder for its logs, writable by that user.
    pub(super) logs: &'a Path,
    /// The host folder for the git gate, if the bottle has one; writable by that user.
    pub(super) gate: Option<&'a Path>,
    /// Whether the bottle has a supervise queue.
    pub(super) supervise: bool,
    /// The address of the user's machine, for routes to it.
    pub(super) machine: Option<Ipv4Addr>,
    pub(super) transport: BundleTransport<'a>,
}

impl Bundle<'_> {
    /// The create request. Older engines accept only one network in it, so it contains the inner one if there is one;
    /// the outer one is then connected ([`Bundle::endpoint`]) before the start.
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

    /// The network in the create request.
    fn first(&self) -> &Net {
        match self.transport {
            BundleTransport::Network(shared) => shared,
            BundleTransport::Socket { outside, .. } => outside,
        }
    }

    /// Its endpoint on the outer network.
    pub(super) fn endpoint(outside: &Net) -> EndpointSettings {
        fixed(subnets::bundle(outside.subnet))
    }

    /// The configuration on the bundle's command line; it contains no secrets.
    fn config(&self) -> String {
        let proxy = match self.transport {
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
            // ssh needs the name of its user.
            mounts.push(bind(&gate.join(PASSWD), "/etc/passwd", true));
        }
        if let BundleTransport::Socket { volume, .. } = self.transport {
            mounts.push(volume_mount(volume, LISTENER_DIR, false));
        }
        let mut sysctls = common.sysctls.unwrap_or_default();
        // It is on two networks and must not forward between them.
        sysctls.insert("net.ipv4.ip_forward".to_owned(), "0".to_owned());
        // Allows ports 53, 80 and 443 without a capability.
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

/// A bind mount of a host path.
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

    fn json(transport: BundleTransport<'_>) -> serde_json::Value {
        let names = Names::new("0123abcd".to_owned());
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
            transport,
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
