//! Builds the request that creates the bundle's container, which runs the sidecars. The module has no side effects.
//!
//! The container has secrets that the agent must not get. Therefore it can write only to its logs, the git gate's
//! folder, the volume of the proxy's sockets and small tmpfs folders, and it listens only on the bottle's network or on
//! those sockets.

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
use super::hardened::{container, host_config};
use super::names::{Names, Part};
use super::network::{Net, Transport};
use super::subnets;

/// The maximum number of processes and threads; beyond it, none can be started. It allows the sidecars, and the git and
/// ssh processes of a few simultaneous pushes.
const PROCESSES: i64 = 512;

/// The memory limit in bytes, above which the kernel kills processes of the bundle. The sidecars' own limits are far
/// lower, so only an attack reaches this one.
const MEMORY: i64 = 2 << 30;

/// The size limit of the tmpfs for the sidecars' temporary files.
const SCRATCH_SIZE: &str = "64m";

/// The log folder inside the container.
const LOGS: &str = "/run/bottle/logs";

/// The git gate's folder inside the container.
const GATE: &str = "/run/bottle/git-gate";

/// The name of the passwd file in the git gate's folder.
pub(super) const PASSWD: &str = "passwd";

/// The parameters of the bundle's container.
pub(super) struct Bundle<'a> {
    pub(super) names: &'a Names,
    pub(super) slug: &'a Slug,
    /// The hash of `$BOTTLE_HOME` and the slug. They are arguments of the bundle's processes, by which process lists
    /// show the bottle.
    pub(super) labels: [String; 2],
    /// The id of the sidecars' image.
    pub(super) image: &'a str,
    /// The user id and group id in the container. Never 0.
    pub(super) user: (u32, u32),
    /// The host folder for the sidecars' logs. The bundle's user can write to it.
    pub(super) logs: &'a Path,
    /// The host folder for the git gate, if the bottle has one. The bundle's user can write to it.
    pub(super) gate: Option<&'a Path>,
    /// Whether the bottle has a supervise queue.
    pub(super) supervise: bool,
    /// The address of the user's machine, for routes that lead to services on the machine.
    pub(super) machine: Option<Ipv4Addr>,
    pub(super) transport: &'a Transport,
    /// The network that the create request names: the inner network, or the outer one if the bottle has no inner
    /// network.
    pub(super) net: &'a Net,
}

impl Bundle<'_> {
    /// Builds the body of the create request. Older engines accept only one network in it. If the bottle has an inner
    /// network, the body names that one, and the caller connects the container to the outer network
    /// ([`Bundle::endpoint`]) before it starts the container.
    pub(super) fn body(&self) -> ContainerCreateBody {
        let endpoints = HashMap::from([(self.net.id.clone(), Self::endpoint(self.net))]);
        let command = [SIDECARS_PROGRAM, BUNDLE_FLAG, &self.config()];
        ContainerCreateBody {
            working_dir: Some("/".to_owned()),
            networking_config: Some(NetworkingConfig { endpoints_config: Some(endpoints) }),
            host_config: Some(self.host_config()),
            ..container(self.names, Part::Bundle, self.slug, self.image, self.user, command)
        }
    }

    /// Returns the bundle's settings on a network: its fixed address.
    pub(super) fn endpoint(net: &Net) -> EndpointSettings {
        fixed(subnets::bundle(net.subnet))
    }

    /// The configuration in the bundle's command line. It contains no secrets.
    fn config(&self) -> String {
        let proxy = match self.transport {
            Transport::Network(net) => ListenerConfig::Network {
                address: subnets::bundle(net.subnet),
                bottle: subnets::agent(net.subnet),
            },
            Transport::Socket(_) => ListenerConfig::Socket { folder: LISTENER_DIR.into() },
        };
        let config = BundleConfig {
            labels: self.labels.clone(),
            proxy,
            control: Control::Stdio,
            logs: LOGS.into(),
            relay_log: false,
            identity: None,
            machine: self.machine.map(Into::into),
            gate: self.gate.map(|_| GATE.into()),
            supervise: self.supervise,
        };
        to_argument(&config)
    }

    fn host_config(&self) -> HostConfig {
        let common = host_config();
        let mut mounts = vec![bind(self.logs, LOGS, false)];
        if let Some(gate) = self.gate {
            mounts.push(bind(gate, GATE, false));
            // ssh looks up the name of its user in `/etc/passwd`.
            mounts.push(bind(&gate.join(PASSWD), "/etc/passwd", true));
        }
        if let Transport::Socket(volume) = self.transport {
            mounts.push(volume_mount(volume, LISTENER_DIR, false));
        }
        let mut sysctls = common.sysctls.unwrap_or_default();
        // The container is on two networks and must not forward packets between them.
        sysctls.insert("net.ipv4.ip_forward".to_owned(), "0".to_owned());
        // With `ip_unprivileged_port_start=0`, listening on the ports 53, 80 and 443 needs no capability.
        sysctls.insert("net.ipv4.ip_unprivileged_port_start".to_owned(), "0".to_owned());
        HostConfig {
            network_mode: Some(self.net.id.clone()),
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

    fn json(transport: &Transport, net: &Net) -> serde_json::Value {
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
            net,
        };
        serde_json::to_value(bundle.body()).expect("JSON")
    }

    fn net(id: &str, subnet: &str) -> Net {
        Net { id: id.to_owned(), subnet: subnet.parse().expect("a network") }
    }

    #[test]
    fn the_whole_request_by_network() {
        let endpoint = Bundle::endpoint(&net("n2", "10.213.0.32/28"));
        let inner = net("n1", "10.213.0.16/28");
        let body = json(&Transport::Network(inner.clone()), &inner);
        insta::assert_json_snapshot!(serde_json::json!({"body": body, "endpoint": endpoint}));
    }

    #[test]
    fn the_whole_request_by_socket() {
        let outside = net("n2", "10.213.0.32/28");
        insta::assert_json_snapshot!(json(&Transport::Socket("v1".to_owned()), &outside));
    }
}
