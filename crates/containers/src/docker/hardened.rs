//! The hardening settings that all containers of a bottle share.

use std::collections::HashMap;

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigLogConfig, ResourcesUlimits, RestartPolicy,
    RestartPolicyNameEnum,
};
use bottle_policy::names::Slug;

use super::names::{Names, Part};

/// The engine's default masked paths, and further paths in `/proc` and `/sys` that reveal or change the machine's
/// disks, hardware, locks or load. Machine size and kernel features stay visible, because programs read them. The
/// engine ignores paths that do not exist.
const MASKED: [&str; 65] = [
    "/proc/acpi",
    "/proc/allocinfo",
    "/proc/asound",
    "/proc/bootconfig",
    "/proc/buddyinfo",
    "/proc/bus",
    "/proc/cmdline",
    "/proc/config.gz",
    "/proc/consoles",
    "/proc/crypto",
    "/proc/device-tree",
    "/proc/devices",
    "/proc/diskstats",
    "/proc/dma",
    "/proc/driver",
    "/proc/dynamic_debug",
    "/proc/execdomains",
    "/proc/fb",
    "/proc/fs",
    "/proc/interrupts",
    "/proc/iomem",
    "/proc/ioports",
    "/proc/irq",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/key-users",
    "/proc/keys",
    "/proc/kmsg",
    "/proc/kpagecgroup",
    "/proc/kpagecount",
    "/proc/kpageflags",
    "/proc/latency_stats",
    "/proc/locks",
    "/proc/mdstat",
    "/proc/misc",
    "/proc/modules",
    "/proc/mtrr",
    "/proc/pagetypeinfo",
    "/proc/partitions",
    "/proc/pressure",
    "/proc/sched_debug",
    "/proc/schedstat",
    "/proc/scsi",
    "/proc/slabinfo",
    "/proc/softirqs",
    "/proc/swaps",
    "/proc/sysrq-trigger",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/tty",
    "/proc/version_signature",
    "/proc/vmallocinfo",
    "/proc/zoneinfo",
    "/sys/block",
    "/sys/bus",
    "/sys/class",
    "/sys/dev",
    "/sys/devices",
    "/sys/firmware",
    "/sys/fs/bpf",
    "/sys/fs/ext4",
    "/sys/hypervisor",
    "/sys/kernel",
    "/sys/module",
    "/sys/power",
];

/// The paths that are mounted read-only. They contain the machine's settings, which many programs read.
const READ_ONLY: [&str; 1] = ["/proc/sys"];

/// Builds the settings that the agent's and the bundle's container share, as the engine's `HostConfig`.
///
/// For Podman the settings contain no limit of core files, because Podman adds a limit of open files to any other
/// limit. On some machines, the added limit exceeds the number of files that the engine itself may open. Pid 1 also
/// sets the limit of core files.
pub(super) fn host_config(on_podman: bool) -> HostConfig {
    let no_core_files = ResourcesUlimits { name: Some("core".to_owned()), soft: Some(0), hard: Some(0) };
    let owned = |paths: &[&str]| Some(paths.iter().map(|path| (*path).to_owned()).collect());
    HostConfig {
        cap_drop: Some(vec!["ALL".to_owned()]),
        security_opt: Some(vec!["no-new-privileges:true".to_owned()]),
        privileged: Some(false),
        // The engine adds no init process, because `bottle` is pid 1.
        init: Some(false),
        ipc_mode: Some("private".to_owned()),
        masked_paths: owned(&MASKED),
        readonly_paths: owned(&READ_ONLY),
        ulimits: (!on_podman).then(|| vec![no_core_files]),
        // The container's standard output carries the data of the keeper's channel. An engine's log of standard output
        // would therefore contain secrets.
        log_config: Some(HostConfigLogConfig { typ: Some("none".to_owned()), config: Some(HashMap::new()) }),
        restart_policy: Some(RestartPolicy {
            name: Some(RestartPolicyNameEnum::NO),
            maximum_retry_count: None,
        }),
        // IPv6 is disabled. Otherwise both the container and the host would have a link-local address on the network.
        sysctls: Some(
            ["all", "default"]
                .map(|which| (format!("net.ipv6.conf.{which}.disable_ipv6"), "1".to_owned()))
                .into(),
        ),
        ..HostConfig::default()
    }
}

/// A tmpfs of a container. The tmpfs contains no files of the image.
pub(super) struct Tmpfs {
    /// Whether programs in the tmpfs can be run.
    pub(super) exec: bool,
    /// The permissions of the tmpfs root directory, in octal.
    pub(super) mode: &'static str,
    /// The owner of the tmpfs root directory, if this owner is the container's user. `None` if root is the owner.
    pub(super) owner: Option<(u32, u32)>,
    /// The size limit in bytes.
    pub(super) size: u64,
    /// The maximum number of files.
    pub(super) files: u64,
}

impl Tmpfs {
    /// The mount options. Podman accepts no owner ids: Podman makes the container's user the owner of the tmpfs. Podman
    /// also does not limit the number of files.
    pub(super) fn options(&self, on_podman: bool) -> String {
        let Self { mode, size, files, .. } = self;
        let exec = if self.exec { "exec" } else { "noexec" };
        let common = format!("rw,nosuid,nodev,{exec},mode={mode},size={size}");
        match (on_podman, self.owner) {
            (true, Some(_)) => format!("{common},notmpcopyup,U"),
            (true, None) => format!("{common},notmpcopyup"),
            (false, Some((uid, gid))) => format!("{common},uid={uid},gid={gid},nr_inodes={files}"),
            (false, None) => format!("{common},nr_inodes={files}"),
        }
    }
}

/// Builds the common part of the create requests for agent and bundle. `command` runs as pid 1, and its standard
/// streams carry the keeper's channel.
pub(super) fn container(
    names: &Names,
    part: Part,
    slug: &Slug,
    image: &str,
    (uid, gid): (u32, u32),
    [program, flag, argument]: [&str; 3],
) -> ContainerCreateBody {
    ContainerCreateBody {
        hostname: Some(slug.to_string()),
        user: Some(format!("{uid}:{gid}")),
        image: Some(image.to_owned()),
        entrypoint: Some(vec![program.to_owned()]),
        cmd: Some(vec![flag.to_owned(), argument.to_owned()]),
        healthcheck: Some(no_health_check()),
        labels: Some(names.labels(part, slug)),
        open_stdin: Some(true),
        stdin_once: Some(false),
        tty: Some(false),
        ..ContainerCreateBody::default()
    }
}

/// Disables the image's health check, which would run a program of the image.
pub(super) fn no_health_check() -> HealthConfig {
    HealthConfig { test: Some(vec!["NONE".to_owned()]), ..HealthConfig::default() }
}
