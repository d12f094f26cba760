//! Builds the request that creates the bundle's container, which runs the sidecars. The module has no side effects.
//!
//! The container has secrets that the agent must not get. The container can therefore write only to its own volume, to
//! the volume of the proxy's sockets, and to small tmpfs directories. It listens only on the bottle's network or on the
//! proxy's sockets. The container mounts no directory of the host: an engine can run in a virtual machine without these
//! directories, or can map user ids so that the sidecars may not write to them.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use bollard::models::{
    ContainerCreateBody, EndpointSettings, HostConfig, Mount, MountVolumeOptions, NetworkingConfig,
};
use bottle_backend::memory;
use bottle_bundle::{BundleConfig, Control, ListenerConfig};
use bottle_policy::names::{LISTENER_DIR, RUN_DIR, Slug};
use bottle_protocol::usage::WAITING_FILE;

use super::agent::{fixed, volume_mount};
use super::container_entry::{BUNDLE_FLAG, SIDECARS_PROGRAM, to_argument};
use super::hardened::{Tmpfs, container, host_config};
use super::limits::Enforced;
use super::names::{Names, Part};
use super::network::{Net, Transport};
use super::subnets;

/// The maximum number of processes and threads of the bundle. No more can be started. The number is enough for the
/// sidecars, and for the git and ssh processes of a few simultaneous pushes.
const PROCESSES: u64 = 512;

/// The memory limit in bytes, above which the kernel kills processes of the bundle. The sidecars' own limits are far
/// lower, so only an attack reaches this limit.
const MEMORY: u64 = 2 << 30;

/// The size limit in bytes of the tmpfs for the sidecars' temporary files.
const SCRATCH_SIZE: u64 = 64 << 20;

/// The user id and group id of the sidecars. `Dockerfile.sidecars` gives them an account and the directories in
/// [`STATE`]. The host has no account with these ids.
const USER: (u32, u32) = (64_242, 64_242);

/// The mount point of the volume with the sidecars' files. The engine copies the image's directory at this path into a
/// new volume. The sidecars therefore own the volume's directories, even if the engine maps user ids.
const STATE: &str = "/var/lib/bottle";

/// The directory of the sidecars' buffered bodies and of the usage records that no keeper has received.
const LOGS: &str = "/var/lib/bottle/logs";

/// The git gate's directory, with its mirrors.
const GATE: &str = "/var/lib/bottle/git-gate";

/// Returns the path, in the container, of the usage records that no keeper has received.
pub(super) fn waiting_usage() -> String {
    format!("{LOGS}/{WAITING_FILE}")
}

/// The parameters of the bundle's container.
pub(super) struct Bundle<'a> {
    pub(super) names: &'a Names,
    pub(super) slug: &'a Slug,
    /// The hash of `$BOTTLE_HOME` and the slug. Both are arguments of the bundle's processes, so that process lists
    /// show the bottle.
    pub(super) labels: [String; 2],
    /// The id of the sidecars' image.
    pub(super) image: &'a str,
    /// The volume of the sidecars' files.
    pub(super) state: &'a str,
    /// Whether the bottle has a git gate.
    pub(super) gate: bool,
    /// Whether the bottle has a supervise queue.
    pub(super) supervise: bool,
    /// The address of the user's machine, for routes to services on the machine.
    pub(super) machine: Option<Ipv4Addr>,
    pub(super) transport: &'a Transport,
    /// The limits that the engine enforces.
    pub(super) enforced: Enforced,
    /// Whether the engine is Podman.
    pub(super) on_podman: bool,
    /// The network that the create request names.
    pub(super) network: FirstNetwork<'a>,
}

/// The network in a bundle's create request.
#[derive(Debug, Clone, Copy)]
pub(super) enum FirstNetwork<'a> {
    /// A network that exists.
    Made(&'a Net),
    /// The network of this name, on which the engine chooses the address. The network need not exist before the
    /// container starts. Podman does not support this.
    Named(&'a str),
}

impl Bundle<'_> {
    /// Builds the body of the create request. Older engines accept only one network in the body. If the bottle has an
    /// inner network, the body names the inner network, and the caller connects the container to the outer network
    /// ([`Bundle::endpoint`]) before it starts the container.
    pub(super) fn body(&self) -> ContainerCreateBody {
        let endpoint = match self.network {
            FirstNetwork::Made(net) => Self::endpoint(net),
            FirstNetwork::Named(_) => EndpointSettings::default(),
        };
        let endpoints = HashMap::from([(self.network_mode(), endpoint)]);
        let command = [SIDECARS_PROGRAM, BUNDLE_FLAG, &self.config()];
        ContainerCreateBody {
            working_dir: Some("/".to_owned()),
            networking_config: Some(NetworkingConfig { endpoints_config: Some(endpoints) }),
            host_config: Some(self.host_config()),
            ..container(self.names, Part::Bundle, self.slug, self.image, USER, command)
        }
    }

    /// Returns the id or the name of the first network.
    fn network_mode(&self) -> String {
        match self.network {
            FirstNetwork::Made(net) => net.id.clone(),
            FirstNetwork::Named(name) => name.to_owned(),
        }
    }

    /// Returns the bundle's settings on a network, which contain the bundle's fixed address.
    pub(super) fn endpoint(net: &Net) -> EndpointSettings {
        fixed(subnets::bundle(net.subnet))
    }

    /// Returns the configuration in the bundle's command line. The configuration contains no secrets.
    fn config(&self) -> String {
        let proxy = match self.transport {
            Transport::Network(net) => ListenerConfig::Network {
                address: subnets::bundle(net.subnet),
                bottle: subnets::agent(net.subnet),
            },
            Transport::Socket(_) => ListenerConfig::Socket { directory: LISTENER_DIR.into() },
        };
        let config = BundleConfig {
            labels: self.labels.clone(),
            proxy,
            control: Control::Stdio,
            logs: LOGS.into(),
            relay_log: true,
            identity: None,
            machine: self.machine.map(Into::into),
            gate: self.gate.then(|| GATE.into()),
            supervise: self.supervise,
        };
        to_argument(&config)
    }

    fn host_config(&self) -> HostConfig {
        let common = host_config(self.on_podman);
        let memory = self.enforced.memory(Some(MEMORY));
        let mut mounts = vec![state_mount(self.state)];
        if let Transport::Socket(volume) = self.transport {
            mounts.push(volume_mount(volume, LISTENER_DIR, false));
        }
        let mut sysctls = common.sysctls.unwrap_or_default();
        // The container is on two networks and must not forward packets between them.
        sysctls.insert("net.ipv4.ip_forward".to_owned(), "0".to_owned());
        // With `ip_unprivileged_port_start=0`, listening on the ports 53, 80 and 443 needs no capability.
        sysctls.insert("net.ipv4.ip_unprivileged_port_start".to_owned(), "0".to_owned());
        HostConfig {
            network_mode: Some(self.network_mode()),
            readonly_rootfs: Some(true),
            mounts: Some(mounts),
            tmpfs: Some(self.tmpfs()),
            sysctls: Some(sysctls),
            pids_limit: self.enforced.processes(Some(PROCESSES)),
            memory,
            memory_swap: memory,
            ..common
        }
    }

    fn tmpfs(&self) -> HashMap<String, String> {
        let own = Tmpfs {
            exec: false,
            mode: "0700",
            owner: Some(USER),
            size: SCRATCH_SIZE,
            files: memory::files(SCRATCH_SIZE),
        };
        ["/tmp", RUN_DIR].map(|path| (path.to_owned(), own.options(self.on_podman))).into()
    }
}

/// Mounts the volume of the sidecars' files. A new volume gets the directories of the image.
fn state_mount(volume: &str) -> Mount {
    let copies = MountVolumeOptions { no_copy: Some(false), ..MountVolumeOptions::default() };
    Mount { volume_options: Some(copies), ..volume_mount(volume, STATE, false) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(transport: &Transport, network: FirstNetwork<'_>) -> serde_json::Value {
        let names = Names::new("0123abcd".to_owned());
        let slug: Slug = "a-1".parse().expect("slug");
        let bundle = Bundle {
            names: &names,
            slug: &slug,
            labels: ["0123abcd".to_owned(), "a-1".to_owned()],
            image: "sha256:def",
            state: "v2",
            gate: true,
            supervise: false,
            machine: None,
            transport,
            enforced: Enforced::of(&bollard::models::SystemInfo::default()),
            on_podman: false,
            network,
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
        let body = json(&Transport::Network(inner.clone()), FirstNetwork::Made(&inner));
        insta::assert_json_snapshot!(serde_json::json!({"body": body, "endpoint": endpoint}));
    }

    #[test]
    fn the_whole_request_by_socket() {
        let outside = net("n2", "10.213.0.32/28");
        insta::assert_json_snapshot!(json(&Transport::Socket("v1".to_owned()), FirstNetwork::Made(&outside)));
    }

    #[test]
    fn the_request_by_socket_can_name_a_network_that_does_not_exist_yet() {
        let body = json(&Transport::Socket("v1".to_owned()), FirstNetwork::Named("bottle-outer"));
        assert_eq!(body["HostConfig"]["NetworkMode"], "bottle-outer");
        let endpoints = &body["NetworkingConfig"]["EndpointsConfig"];
        assert_eq!(*endpoints, serde_json::json!({"bottle-outer": {}}), "no address");
    }

    #[test]
    fn the_image_has_the_sidecars_account_and_directories() {
        let (uid, gid) = USER;
        let dockerfile = include_str!("../../../../Dockerfile.sidecars");
        for part in [format!("gate:x:{uid}:{gid}:"), format!("-o {uid} -g {gid} "), LOGS.into(), GATE.into()]
        {
            assert!(dockerfile.contains(&part), "{part}");
        }
    }
}
