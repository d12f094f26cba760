//! Whether this machine can make a sandbox, tried rather than guessed, and the fix where it cannot.

use std::fs;
use std::path::Path;

use rustix::io::Errno;

use super::super::local::cgroups::{self, Controller, Groups};
use super::landlock;
use crate::backend::Finding;
use crate::backend::local::spawn_ipc::SetupFailure;

/// The oldest kernel with every call the setup makes: `mount_setattr` and `close_range` came last.
const OLDEST_KERNEL: (u32, u32) = (5, 12);

/// What of the machine decides whether bottles can be made, and how well they are guarded.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Facts {
    /// The kernel's release.
    release: String,
    /// Whether root asks.
    root: bool,
    /// `user.max_user_namespaces`, where there is such a switch, like those below.
    max_user_namespaces: Option<u64>,
    /// `kernel.unprivileged_userns_clone`, of Debian's kernels.
    unprivileged_userns_clone: Option<u64>,
    /// `kernel.apparmor_restrict_unprivileged_userns`, of Ubuntu's.
    apparmor_restricts: Option<u64>,
    /// What this machine is a container of.
    container: Option<&'static str>,
    /// Whether SELinux enforces its policy.
    selinux_enforces: bool,
    /// Whether Landlock guards files.
    landlock_files: bool,
    /// Whether Landlock guards abstract sockets and signals.
    landlock_scopes: bool,
    /// Whether there are overlays that an ordinary user can mount.
    overlays: bool,
    /// Whether control groups can limit a bottle's memory.
    limits_memory: bool,
    /// Whether they can limit its processors.
    limits_cpus: bool,
}

impl Facts {
    fn read() -> Self {
        let groups = Groups::here();
        let file_systems = fs::read_to_string("/proc/filesystems").unwrap_or_default();
        let switch = |path: &str| read_number(&format!("/proc/sys/{path}"));
        Self {
            overlays: file_systems.lines().any(|line| line.trim_start_matches("nodev").trim() == "overlay"),
            release: rustix::system::uname().release().to_string_lossy().into_owned(),
            root: rustix::process::geteuid().is_root(),
            max_user_namespaces: switch("user/max_user_namespaces"),
            unprivileged_userns_clone: switch("kernel/unprivileged_userns_clone"),
            apparmor_restricts: switch("kernel/apparmor_restrict_unprivileged_userns"),
            container: CONTAINERS
                .into_iter()
                .find(|(mark, _)| Path::new(mark).exists())
                .map(|(_, engine)| engine),
            selinux_enforces: read_number("/sys/fs/selinux/enforce") == Some(1),
            landlock_files: landlock::restricts_files(),
            landlock_scopes: landlock::restricts_scopes(),
            limits_memory: groups.can_limit(Controller::Memory),
            limits_cpus: groups.can_limit(Controller::Cpu),
        }
    }

    /// What keeps a setup from working at all, the most likely cause first.
    fn hindrances(&self) -> Vec<Finding> {
        let old = kernel(&self.release).is_some_and(|version| version < OLDEST_KERNEL);
        let (major, minor) = OLDEST_KERNEL;
        let kernel = || {
            finding(
                format!("the kernel is {}, and {major}.{minor} is the oldest that works", self.release),
                "update the kernel, or use the docker backend",
            )
        };
        old.then(kernel).into_iter().chain(self.user_namespaces()).collect()
    }

    /// The switches by which distributions turn user namespaces off.
    fn user_namespaces(&self) -> Option<Finding> {
        if self.max_user_namespaces == Some(0) {
            return Some(finding(
                "user namespaces are switched off (user.max_user_namespaces is 0)",
                "sudo sysctl -w user.max_user_namespaces=15000",
            ));
        }
        if !self.root && self.unprivileged_userns_clone == Some(0) {
            return Some(finding(
                "user namespaces are for root only (kernel.unprivileged_userns_clone is 0)",
                "sudo sysctl -w kernel.unprivileged_userns_clone=1",
            ));
        }
        if !self.root && self.apparmor_restricts.is_some_and(|restricts| restricts != 0) {
            return Some(finding(
                "AppArmor lets no ordinary program use user namespaces \
                 (kernel.apparmor_restrict_unprivileged_userns is 1)",
                "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile for \
                 bottle with `userns,`",
            ));
        }
        None
    }

    /// What else refuses a setup, when the switches do not.
    fn outer(&self) -> Option<Finding> {
        if let Some(engine) = self.container {
            return Some(finding(
                format!("this machine is itself a container ({engine}) whose profile refuses namespaces"),
                "start it with --security-opt seccomp=unconfined --security-opt apparmor=unconfined \
                 --security-opt systempaths=unconfined, or use another backend",
            ));
        }
        self.selinux_enforces.then(|| {
            finding(
                "SELinux enforces a policy, which may refuse namespaces and mounts",
                "`sudo ausearch -m avc -ts recent` shows what it refused and `audit2allow` what would allow \
                 it; or use the docker backend",
            )
        })
    }

    /// What a bottle does without here.
    fn lacks(&self) -> Vec<Finding> {
        const BOOT: &str = "boot a kernel that has it, with `landlock` in the boot option `lsm=` \
            (`cat /sys/kernel/security/lsm` shows what is there)";
        let mut lacks = Vec::new();
        if !self.landlock_files {
            lacks.push(finding(
                "the kernel's Landlock does not guard files (5.19 or later does): a bottle's mounts alone do",
                BOOT,
            ));
        }
        if !self.landlock_scopes {
            lacks.push(finding(
                "the kernel's Landlock does not guard signals and abstract sockets (6.12 or later does): a \
                 bottle's namespaces alone do",
                if self.landlock_files { "update the kernel" } else { BOOT },
            ));
        }
        if !self.overlays {
            lacks.push(finding(
                "the kernel has no overlay file system loaded: `/usr/local` is read-only in a bottle",
                "sudo modprobe overlay",
            ));
        }
        let limits = match (self.limits_memory, self.limits_cpus) {
            (true, true) => None,
            (true, false) => Some("no control group of this user limits processors: `cpus` is refused"),
            (false, true) => Some(
                "no control group of this user limits memory: it is looked at a few times a second, and what \
                 fills it fast gets beyond its limit first",
            ),
            (false, false) => Some(
                "no control group of this user limits a bottle: memory is looked at a few times a second, and \
                 what fills it fast gets beyond its limit first; `cpus` is refused",
            ),
        };
        lacks.extend(limits.map(|what| finding(what, cgroups::FIX)));
        lacks
    }
}

/// Files that a container has, by the engine that made it.
const CONTAINERS: [(&str, &str); 3] =
    [("/.dockerenv", "Docker"), ("/run/.containerenv", "Podman"), ("/run/systemd/container", "systemd")];

fn finding(what: impl Into<String>, fix: impl Into<String>) -> Finding {
    Finding { what: what.into(), fix: fix.into() }
}

/// What can be read off the machine: for one where a trial failed, what may be why; then what a bottle does
/// without.
pub(crate) fn findings(usable: bool) -> Vec<Finding> {
    let facts = Facts::read();
    let mut findings = facts.hindrances();
    if !usable && findings.is_empty() {
        findings.extend(facts.outer());
    }
    findings.extend(facts.lacks());
    findings
}

/// All of that in one line, for whoever asks whether it has changed.
pub(super) fn facts() -> String {
    format!("{:?}", Facts::read())
}

/// The fix for a setup that failed, when a user can do something about it.
pub(crate) fn fix_for(failure: &SetupFailure) -> Option<String> {
    let errno = failure.errno.map(Errno::from_raw_os_error)?;
    if !matches!(errno, Errno::PERM | Errno::ACCESS | Errno::NOSPC | Errno::NOSYS | Errno::INVAL) {
        return None;
    }
    let facts = Facts::read();
    if let Some(finding) = facts.hindrances().into_iter().next() {
        return Some(finding.fix);
    }
    match (failure.step.as_str(), errno) {
        ("make /proc", _) => Some(
            "this machine is itself a container that hides parts of /proc: start it with an unmasked /proc \
             (Docker: --security-opt systempaths=unconfined), or use another backend"
                .to_owned(),
        ),
        ("make namespaces" | "map its ids", _) => {
            let unknown = "this machine refuses user namespaces: allow them, or use the docker backend";
            Some(facts.outer().map_or(unknown.to_owned(), |outer| outer.fix))
        }
        (_, Errno::PERM | Errno::ACCESS) => facts.outer().map(|outer| outer.fix),
        _ => None,
    }
}

/// A number that a file holds; nothing where there is no such file.
fn read_number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn kernel(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn fine() -> Facts {
        Facts {
            release: "6.18.1".to_owned(),
            root: false,
            max_user_namespaces: Some(15000),
            unprivileged_userns_clone: Some(1),
            apparmor_restricts: Some(0),
            container: None,
            selinux_enforces: false,
            landlock_files: true,
            landlock_scopes: true,
            overlays: true,
            limits_memory: true,
            limits_cpus: true,
        }
    }

    #[test]
    fn each_hindrance_is_named_with_the_command_that_ends_it() {
        let fine = fine();
        let none: Option<(&str, &str)> = None;
        for (facts, expected) in [
            (fine.clone(), none),
            (
                Facts { release: "5.10.0-28".to_owned(), ..fine.clone() },
                Some(("5.12 is the oldest", "update the kernel")),
            ),
            (
                Facts { max_user_namespaces: Some(0), ..fine.clone() },
                Some(("user.max_user_namespaces is 0", "sysctl -w user.max_user_namespaces=15000")),
            ),
            (
                Facts { max_user_namespaces: Some(0), root: true, ..fine.clone() },
                Some(("user.max_user_namespaces is 0", "sysctl -w user.max_user_namespaces=15000")),
            ),
            (
                Facts { unprivileged_userns_clone: Some(0), ..fine.clone() },
                Some(("for root only", "sysctl -w kernel.unprivileged_userns_clone=1")),
            ),
            (Facts { unprivileged_userns_clone: Some(0), root: true, ..fine.clone() }, none),
            (
                Facts { apparmor_restricts: Some(1), ..fine.clone() },
                Some(("AppArmor", "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0")),
            ),
            (Facts { apparmor_restricts: Some(1), root: true, ..fine.clone() }, none),
            (
                Facts {
                    max_user_namespaces: None,
                    unprivileged_userns_clone: None,
                    apparmor_restricts: None,
                    ..fine.clone()
                },
                none,
            ),
        ] {
            let found = facts.hindrances();
            match expected {
                None => assert_eq!(found, [], "{facts:?}"),
                Some((what, fix)) => {
                    assert!(found.len() == 1 && found[0].what.contains(what), "{found:?}");
                    assert!(found[0].fix.contains(fix), "{found:?}");
                }
            }
        }
    }

    #[test]
    fn what_surrounds_the_machine_is_named_where_no_switch_is_off() {
        let fine = fine();
        assert_eq!(fine.outer(), None);
        let container = Facts { container: Some("Docker"), selinux_enforces: true, ..fine.clone() };
        let outer = container.outer().expect("named");
        assert!(outer.what.contains("a container (Docker)") && outer.fix.contains("seccomp=unconfined"));
        let selinux = Facts { selinux_enforces: true, ..fine }.outer().expect("named");
        assert!(selinux.what.contains("SELinux") && selinux.fix.contains("ausearch"));
    }

    #[test]
    fn what_a_bottle_does_without_is_said() {
        let fine = fine();
        for (files, scopes, expected, fix) in
            [(true, true, 0, ""), (true, false, 1, "update the kernel"), (false, false, 2, "`lsm=`")]
        {
            let lacks = Facts { landlock_files: files, landlock_scopes: scopes, ..fine.clone() }.lacks();
            assert_eq!(lacks.len(), expected, "{lacks:?}");
            assert!(lacks.iter().all(|lack| lack.what.contains("Landlock") && lack.fix.contains(fix)));
        }
    }

    #[test]
    fn a_missing_overlay_is_named_with_the_module() {
        let lacks = Facts { overlays: false, ..fine() }.lacks();
        assert!(lacks.len() == 1 && lacks[0].fix == "sudo modprobe overlay", "{lacks:?}");
    }

    #[test]
    fn limits_that_nothing_keeps_are_said() {
        for (memory, cpus, expected) in [
            (true, true, None),
            (true, false, Some("`cpus` is refused")),
            (false, true, Some("memory")),
            (false, false, Some("limits a bottle")),
        ] {
            let lacks = Facts { limits_memory: memory, limits_cpus: cpus, ..fine() }.lacks();
            assert_eq!(lacks.len(), usize::from(expected.is_some()), "{lacks:?}");
            let named = |words| lacks[0].what.contains(words) && lacks[0].fix.contains("systemd-run --user");
            assert!(expected.is_none_or(named), "{lacks:?}");
        }
    }

    #[test]
    fn kernel_versions_are_read_as_numbers() {
        for (release, version) in [
            ("6.18.44-fc", Some((6, 18))),
            ("5.4", Some((5, 4))),
            ("5.10.0-28-amd64", Some((5, 10))),
            ("x", None),
        ] {
            assert_eq!(kernel(release), version, "{release}");
        }
    }

    #[test]
    fn only_a_refusal_gets_a_fix() {
        let failure = |step: &str, errno: Errno| {
            SetupFailure::new(step, io::Error::from_raw_os_error(errno.raw_os_error()))
        };
        assert!(fix_for(&failure("make namespaces", Errno::PERM)).is_some());
        assert!(fix_for(&failure("make namespaces", Errno::NOMEM)).is_none());
    }
}
