//! Tests that an agent cannot write kernel settings.

use std::path::Path;

use crate::fixture::every_isolating_backend;

/// Kernel settings that an attacker could use, on at least one kernel version.
const SETTINGS: [&str; 14] = [
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/domainname",
    "/proc/sys/kernel/yama/ptrace_scope",
    "/proc/sys/kernel/unprivileged_bpf_disabled",
    "/proc/sys/kernel/shmmax",
    "/proc/sys/fs/binfmt_misc/register",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/vm/drop_caches",
    "/proc/sys/user/max_user_namespaces",
    "/proc/sys/net/ipv4/ip_forward",
    "/proc/sysrq-trigger",
    "/sys/kernel/uevent_helper",
];

#[tokio::test(flavor = "multi_thread")]
async fn kernel_settings_cannot_be_written() {
    let there: Vec<&str> = SETTINGS.into_iter().filter(|path| Path::new(path).exists()).collect();
    assert!(there.len() > 5, "the control: {there:?}");
    let values = || -> Vec<_> {
        let read = |path: &&&str| !["/proc/sysrq-trigger", "/proc/sys/vm/drop_caches"].contains(path);
        there.iter().filter(read).map(|path| std::fs::read(path).ok()).collect()
    };
    let before = values();
    for fixture in every_isolating_backend().await {
        let bottle = fixture.bottle("tuner").await;
        let said = bottle
            .shell(&format!(
                "echo 300 >/proc/self/oom_score_adj && echo control; \
                 for f in {} /proc/1/oom_score_adj /proc/self/uid_map /proc/self/setgroups; do \
                     cat $f >/tmp/was 2>/dev/null; for v in 0 1 x; do \
                     (echo $v >$f) 2>/dev/null && echo wrote $f; done; done; \
                 (echo -1000 >/proc/self/oom_score_adj) 2>/dev/null && echo spared; true",
                there.join(" ")
            ))
            .await;
        assert_eq!(said, "control\n", "{}", fixture.name());
        bottle.remove().await;
    }
    assert_eq!(values(), before);
}
