//! What every container of a bottle has taken from it, whatever runs inside.

use std::collections::HashMap;

use bollard::models::{
    HealthConfig, HostConfig, HostConfigLogConfig, ResourcesUlimits, RestartPolicy, RestartPolicyNameEnum,
};

/// What an engine hides by itself, and what else of `/proc` and `/sys` tells about the machine's disks,
/// hardware, locks or load, or acts on it. What programs read of `/proc` stays: how much machine there is, and
/// what the kernel can. A name that a kernel does not have is passed over.
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

/// The settings of the machine, which many programs read.
const READ_ONLY: [&str; 1] = ["/proc/sys"];

/// Everything that agent and bundle have in common.
pub(super) fn host_config() -> HostConfig {
    let owned = |paths: &[&str]| Some(paths.iter().map(|path| (*path).to_owned()).collect());
    HostConfig {
        cap_drop: Some(vec!["ALL".to_owned()]),
        security_opt: Some(vec!["no-new-privileges:true".to_owned()]),
        privileged: Some(false),
        // Nothing between the kernel and our pid 1, whatever the engine's own default is.
        init: Some(false),
        ipc_mode: Some("private".to_owned()),
        masked_paths: owned(&MASKED),
        readonly_paths: owned(&READ_ONLY),
        ulimits: Some(vec![ResourcesUlimits { name: Some("core".to_owned()), soft: Some(0), hard: Some(0) }]),
        // What a container says is its channel's bytes: secrets, for whoever reads the engine's files.
        log_config: Some(HostConfigLogConfig { typ: Some("none".to_owned()), config: Some(HashMap::new()) }),
        restart_policy: Some(RestartPolicy {
            name: Some(RestartPolicyNameEnum::NO),
            maximum_retry_count: None,
        }),
        sysctls: Some(no_ipv6()),
        ..HostConfig::default()
    }
}

/// The image's own health check would be a program of the image's, run beside ours.
pub(super) fn no_health_check() -> HealthConfig {
    HealthConfig { test: Some(vec!["NONE".to_owned()]), ..HealthConfig::default() }
}

/// An interface with IPv6 has a link-local address, and the host one beside it.
fn no_ipv6() -> HashMap<String, String> {
    let all = ["all", "default"].map(|which| (format!("net.ipv6.conf.{which}.disable_ipv6"), "1".to_owned()));
    all.into()
}
