//! Builds the request that creates the agent's container. The module has no side effects.
//!
//! The container starts only `bottle` as pid 1, and no program of the image. The agent's work is in the container's
//! writable layer. Data that only one launch uses is only in tmpfs directories (`/run`, `/tmp`), so a snapshot cannot
//! contain this data.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use bollard::models::{
    ContainerCreateBody, EndpointIpamConfig, EndpointSettings, HostConfig, Mount, MountType,
    MountVolumeOptions, NetworkingConfig,
};
use bottle_backend::memory;
use bottle_plan::Resources;
use bottle_policy::names::{
    EGRESS_HOST, GIT_GATE_HOST, LISTENER_DIR, PROXY_LOOPBACK, RUN_DIR, SUPERVISE_HOST, Slug, WORKSPACE,
};

use super::container_entry::{GUEST_FLAG, GuestSpec, PROGRAM_DIR, PROGRAM_FILE, to_argument};
use super::hardened::{Tmpfs, container, host_config};
use super::limits::Enforced;
use super::live::WorkspaceFiles;
use super::names::{Names, Part};
use super::network::Transport;
use super::{shared_objects, subnets};

/// The size in bytes of the tmpfs `/run`, which contains the provisioned certificates, the prompt and the task.
const RUN_SIZE: u64 = 64 << 20;

/// The parameters of an agent's container.
#[derive(Clone, Copy)]
pub(super) struct Agent<'a> {
    pub(super) names: &'a Names,
    pub(super) slug: &'a Slug,
    /// The part of the bottle that runs in the container.
    pub(super) part: Part,
    /// The id of the agent's image.
    pub(super) image: &'a str,
    /// The user id and group id in the container. Never 0.
    pub(super) user: (u32, u32),
    /// The volume that contains the `bottle` program, which runs as pid 1.
    pub(super) program: &'a str,
    /// The connection to the proxy. `None` for a container that only opens kept files: this container has no network
    /// and no proxy.
    pub(super) transport: Option<&'a Transport>,
    /// The content of the workspace.
    pub(super) workspace: WorkspaceFiles<'a>,
    /// The directory of this machine with the git objects that the bottle shares. `None` if the bottle shares no git
    /// objects.
    pub(super) objects: Option<&'a str>,
    /// Whether the container's files are read-only.
    pub(super) read_only: bool,
    pub(super) limits: &'a Resources,
    /// The limits that the engine enforces.
    pub(super) enforced: Enforced,
    /// Whether the engine is Podman.
    pub(super) on_podman: bool,
    /// The container runtime, if it is not the engine's default.
    pub(super) runtime: Option<&'a str>,
    /// The engine's newest API version, as the number after `1.`.
    pub(super) api: u32,
}

impl Agent<'_> {
    /// The body of the create request.
    pub(super) fn body(&self) -> ContainerCreateBody {
        let by_socket = matches!(self.transport, Some(Transport::Socket(_)));
        let command =
            [PROGRAM_FILE, GUEST_FLAG, &to_argument(&GuestSpec { by_socket, live: self.workspace.spec() })];
        let common = container(self.names, self.part, self.slug, self.image, self.user, command);
        ContainerCreateBody {
            working_dir: Some(WORKSPACE.to_owned()),
            networking_config: Some(self.networking()),
            host_config: Some(self.host_config()),
            ..common
        }
    }

    fn host_config(&self) -> HostConfig {
        let common = host_config(self.on_podman);
        let mut mounts = vec![program_mount(self.program)];
        mounts.extend(self.objects.map(shared_objects::mount));
        mounts.extend(self.workspace.mounts(self.read_only));
        let (network, proxy) = match self.transport {
            Some(Transport::Network(net)) => (net.id.clone(), subnets::bundle(net.subnet)),
            Some(Transport::Socket(volume)) => {
                mounts.push(volume_mount(volume, LISTENER_DIR, true));
                ("none".to_owned(), PROXY_LOOPBACK)
            }
            // No process listens at this address.
            None => ("none".to_owned(), PROXY_LOOPBACK),
        };
        let memory = self.enforced.memory(self.limits.memory);
        let mut sysctls = common.sysctls.unwrap_or_default();
        sysctls.extend(self.neighbour_sysctls());
        HostConfig {
            network_mode: Some(network),
            dns: Some(vec![proxy.to_string()]),
            dns_options: Some(Vec::new()),
            dns_search: Some(Vec::new()),
            extra_hosts: Some(hosts(proxy)),
            mounts: Some(mounts),
            tmpfs: Some(self.tmpfs()),
            sysctls: Some(sysctls),
            shm_size: i64::try_from(memory::shared(self.scratch())).ok(),
            pids_limit: self.enforced.processes(self.limits.pids),
            memory,
            // The limit of memory and swap together equals the memory limit, so the container can use no swap.
            memory_swap: memory,
            nano_cpus: self.enforced.processors(self.limits.cpus),
            runtime: self.runtime.map(str::to_owned),
            readonly_rootfs: self.read_only.then_some(true),
            ..common
        }
    }

    /// Returns the size in bytes of `/tmp`, which is a tmpfs.
    fn scratch(&self) -> u64 {
        memory::scratch(self.limits.disk)
    }

    fn tmpfs(&self) -> HashMap<String, String> {
        let run = Tmpfs {
            exec: false,
            mode: "0755",
            owner: Some(self.user),
            size: RUN_SIZE,
            files: memory::files(RUN_SIZE),
        };
        let size = self.scratch();
        // Programs are built and run in `/tmp`.
        let scratch = Tmpfs { exec: true, mode: "1777", owner: None, size, files: memory::files(size) };
        // This tmpfs covers the user's directory, which the container inherits together with another container's
        // volumes.
        let empty = matches!(self.workspace, WorkspaceFiles::Repository).then_some((WORKSPACE, &run));
        [("/run", &run), (RUN_DIR, &run), ("/tmp", &scratch)]
            .into_iter()
            .chain(empty)
            .map(|(path, tmpfs)| (path.to_owned(), tmpfs.options(self.on_podman)))
            .collect()
    }

    fn networking(&self) -> NetworkingConfig {
        let Some(Transport::Network(net)) = self.transport else { return NetworkingConfig::default() };
        let endpoint =
            EndpointSettings { driver_opts: self.neighbour_options(), ..fixed(subnets::agent(net.subnet)) };
        NetworkingConfig { endpoints_config: Some(HashMap::from([(net.id.clone(), endpoint)])) }
    }

    /// Returns the kernel settings that shorten a failing neighbour lookup on `interface`. Without a host address on
    /// the network, an engine before 28 adds a route through a gateway that does not exist. With these settings, the
    /// lookup of that gateway fails after 30 ms instead of 3 s. `None` if the engine adds no such route.
    fn neighbour(&self, interface: &str) -> Option<[(String, &'static str); 2]> {
        let needed = matches!(self.transport, Some(Transport::Network(_))) && self.api < 48;
        let name = |what: &str| format!("net.ipv4.neigh.{interface}.{what}");
        needed.then(|| [(name("mcast_solicit"), "2"), (name("retrans_time_ms"), "10")])
    }

    /// Returns the settings of `neighbour` as sysctls of the container, for engines up to 26.x.
    fn neighbour_sysctls(&self) -> HashMap<String, String> {
        let settings = self.neighbour("eth0").filter(|_| self.api < 46);
        settings.into_iter().flatten().map(|(name, value)| (name, value.to_owned())).collect()
    }

    /// Returns the settings of `neighbour` as options of the endpoint, for engines from 27 on.
    fn neighbour_options(&self) -> Option<HashMap<String, String>> {
        let settings = self.neighbour("IFNAME").filter(|_| self.api >= 46)?;
        let text = settings.map(|(name, value)| format!("{name}={value}")).join(",");
        Some(HashMap::from([("com.docker.network.endpoint.sysctls".to_owned(), text)]))
    }
}

/// Mounts the volume with the `bottle` program read-only, so that nothing in the container can change the program.
pub(super) fn program_mount(volume: &str) -> Mount {
    volume_mount(volume, PROGRAM_DIR, true)
}

/// Mounts a volume without copying files of the image into it.
pub(super) fn volume_mount(volume: &str, target: &str, read_only: bool) -> Mount {
    Mount {
        typ: Some(MountType::VOLUME),
        source: Some(volume.to_owned()),
        target: Some(target.to_owned()),
        read_only: Some(read_only),
        volume_options: Some(MountVolumeOptions { no_copy: Some(true), ..MountVolumeOptions::default() }),
        ..Mount::default()
    }
}

/// Returns an endpoint with this fixed address. Without fixed addresses, two containers of a network may swap their
/// addresses between two starts.
pub(super) fn fixed(address: Ipv4Addr) -> EndpointSettings {
    let ipam =
        EndpointIpamConfig { ipv4_address: Some(address.to_string()), ..EndpointIpamConfig::default() };
    EndpointSettings { ipam_config: Some(ipam), ..EndpointSettings::default() }
}

fn hosts(proxy: Ipv4Addr) -> Vec<String> {
    [EGRESS_HOST, SUPERVISE_HOST, GIT_GATE_HOST].map(|name| format!("{name}:{proxy}")).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::docker::network::Net;

    fn json(transport: Option<&Transport>, api: u32) -> serde_json::Value {
        let names = Names::new("0123abcd".to_owned());
        let slug: Slug = "a-1".parse().expect("slug");
        let limits = Resources {
            memory: Some(1 << 30),
            cpus: Some(1500),
            // `/tmp` has this size if half of the machine's memory is larger. Every machine has that much memory, so
            // the request is the same on every machine.
            disk: Some(64 << 20),
            ..Resources::default()
        };
        let agent = Agent {
            names: &names,
            slug: &slug,
            part: if transport.is_none() { Part::Reader } else { Part::Agent },
            image: "sha256:abc",
            user: (1000, 1001),
            program: "bottle-program",
            transport,
            workspace: WorkspaceFiles::Own,
            objects: None,
            read_only: transport.is_none(),
            limits: &limits,
            enforced: Enforced::of(&bollard::models::SystemInfo::default()),
            on_podman: false,
            runtime: None,
            api,
        };
        serde_json::to_value(agent.body()).expect("JSON")
    }

    fn transports() -> [Transport; 2] {
        let subnet = "10.213.0.16/28".parse().expect("a network");
        [Transport::Network(Net { id: "n1".to_owned(), subnet }), Transport::Socket("v1".to_owned())]
    }

    #[test]
    fn the_whole_request_by_network() {
        insta::assert_json_snapshot!(json(Some(&transports()[0]), 41));
    }

    #[test]
    fn the_whole_request_by_socket() {
        insta::assert_json_snapshot!(json(Some(&transports()[1]), 41));
    }

    #[test]
    fn the_whole_request_of_a_reader() {
        insta::assert_json_snapshot!(json(None, 41));
    }

    #[test]
    fn neighbour_settings_depend_on_the_engines_version() {
        let [net, socket] = transports();
        let sysctls = |value: &serde_json::Value| value["HostConfig"]["Sysctls"].to_string();
        let options = |value: &serde_json::Value| {
            value["NetworkingConfig"]["EndpointsConfig"]["n1"]["DriverOpts"].to_string()
        };
        for (api, old, middle) in
            [(41, true, false), (45, true, false), (46, false, true), (48, false, false)]
        {
            let asked = json(Some(&net), api);
            assert_eq!(sysctls(&asked).contains("neigh.eth0"), old, "1.{api}");
            assert_eq!(options(&asked).contains("neigh.IFNAME"), middle, "1.{api}");
            assert!(!sysctls(&json(Some(&socket), api)).contains("neigh"), "1.{api}");
        }
    }

    #[test]
    fn the_agent_is_not_root_and_gains_no_privileges() {
        let [net, socket] = transports();
        for transport in [Some(&net), Some(&socket), None] {
            let asked = json(transport, 48);
            assert_eq!(asked["User"], "1000:1001");
            assert_eq!(asked["HostConfig"]["CapDrop"], serde_json::json!(["ALL"]));
            assert_eq!(asked["HostConfig"]["SecurityOpt"], serde_json::json!(["no-new-privileges:true"]));
            assert_eq!(asked["Env"], serde_json::Value::Null, "the configuration contains no secrets");
        }
    }
}
