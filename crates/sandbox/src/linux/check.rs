//! Reads the settings of the machine that affect sandboxes, and suggests a fix for each problem.

use std::fs;
use std::path::Path;

use bottle_backend::Finding;
use rustix::io::Errno;

use super::super::local::cgroups::{self, Controller, Groups};
use super::landlock;
use crate::local::spawn_ipc::{SetupFailure, SetupPart};

/// The oldest kernel that has every system call of the sandbox setup. `mount_setattr` is the newest of these calls.
const OLDEST_KERNEL: (u32, u32) = (5, 12);

/// The settings of the machine that affect whether sandboxes work and how well they isolate.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Facts {
    /// The kernel's release, for example `6.1.0-18-amd64`.
    release: String,
    /// Whether this process runs as root.
    root: bool,
    /// The value of `user.max_user_namespaces`. This field and the next two are `None` if the kernel lacks the setting.
    max_user_namespaces: Option<u64>,
    /// The value of `kernel.unprivileged_userns_clone`, which Debian's kernels have.
    unprivileged_userns_clone: Option<u64>,
    /// The value of `kernel.apparmor_restrict_unprivileged_userns`, which Ubuntu's kernels have.
    apparmor_restricts: Option<u64>,
    /// The container engine, if this machine is a container.
    container: Option<&'static str>,
    /// Whether SELinux enforces its policy.
    selinux_enforces: bool,
    /// Whether Landlock can restrict files.
    landlock_files: bool,
    /// Whether Landlock can restrict abstract sockets and signals.
    landlock_scopes: bool,
    /// Whether the kernel has the overlay file system.
    overlays: bool,
    /// Whether control groups can limit the memory of a bottle.
    limits_memory: bool,
    /// Whether control groups can limit the processor time of a bottle.
    limits_cpus: bool,
}

impl Facts {
    fn read() -> Self {
        let groups = Groups::current();
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

    /// The settings that make every sandbox fail, the most likely cause first.
    fn blockers(&self) -> Vec<Finding> {
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

    /// Checks the settings with which distributions disable user namespaces.
    fn user_namespaces(&self) -> Option<Finding> {
        if self.max_user_namespaces == Some(0) {
            return Some(finding(
                "user namespaces are disabled (user.max_user_namespaces is 0)",
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
                "AppArmor denies user namespaces to ordinary programs \
                 (kernel.apparmor_restrict_unprivileged_userns is 1)",
                "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile for \
                 bottle with `userns,`",
            ));
        }
        None
    }

    /// The likely cause of a failed setup if no kernel setting is the cause: the profile of the container in which this
    /// machine runs, or the policy of SELinux.
    fn outer_cause(&self) -> Option<Finding> {
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

    /// Optional features that this machine lacks.
    fn missing_features(&self) -> Vec<Finding> {
        const BOOT: &str = "boot a kernel that has it, with `landlock` in the boot option `lsm=` \
            (`cat /sys/kernel/security/lsm` shows what is there)";
        let mut missing_features = Vec::new();
        if !self.landlock_files {
            missing_features.push(finding(
                "the kernel's Landlock cannot restrict files (5.19 or later can): only mounts protect them",
                BOOT,
            ));
        }
        if !self.landlock_scopes {
            missing_features.push(finding(
                "the kernel's Landlock cannot restrict signals and abstract sockets (6.12 or later can): only \
                 namespaces do",
                if self.landlock_files { "update the kernel" } else { BOOT },
            ));
        }
        if !self.overlays {
            missing_features.push(finding(
                "the kernel has no overlay file system loaded: `/usr/local` is read-only in a bottle",
                "sudo modprobe overlay",
            ));
        }
        let limits = match (self.limits_memory, self.limits_cpus) {
            (true, true) => None,
            (true, false) => Some("this user's control groups cannot limit processors: `cpus` is refused"),
            (false, true) => Some(
                "this user's control groups cannot limit memory: it is polled a few times a second, and fast \
                 growth can exceed the limit briefly",
            ),
            (false, false) => Some(
                "this user has no control groups that limit bottles: memory is polled a few times a second, and \
                 fast growth can exceed the limit briefly; `cpus` is refused",
            ),
        };
        missing_features.extend(limits.map(|what| finding(what, cgroups::FIX)));
        missing_features
    }
}

/// For each container engine, a file that exists in its containers, and the engine's name.
const CONTAINERS: [(&str, &str); 3] =
    [("/.dockerenv", "Docker"), ("/run/.containerenv", "Podman"), ("/run/systemd/container", "systemd")];

fn finding(what: impl Into<String>, fix: impl Into<String>) -> Finding {
    Finding { what: what.into(), fix: fix.into() }
}

/// The findings for this machine: first the causes that make sandboxes fail, then the missing optional features.
/// `usable` is false if the trial sandbox failed.
pub(crate) fn findings(usable: bool) -> Vec<Finding> {
    let facts = Facts::read();
    let mut findings = facts.blockers();
    if !usable && findings.is_empty() {
        findings.extend(facts.outer_cause());
    }
    findings.extend(facts.missing_features());
    findings
}

/// All [`Facts`] on one line, for the fingerprint of the check cache.
pub(super) fn facts() -> String {
    format!("{:?}", Facts::read())
}

/// Returns a fix for a failed setup, if one is known.
pub(crate) fn fix_for(failure: &SetupFailure) -> Option<String> {
    let errno = failure.errno.map(Errno::from_raw_os_error)?;
    if !matches!(errno, Errno::PERM | Errno::ACCESS | Errno::NOSPC | Errno::NOSYS | Errno::INVAL) {
        return None;
    }
    let facts = Facts::read();
    if let Some(finding) = facts.blockers().into_iter().next() {
        return Some(finding.fix);
    }
    match (failure.part, errno) {
        (SetupPart::Proc, _) => Some(
            "this machine is itself a container that hides parts of /proc: start it with an unmasked /proc \
             (Docker: --security-opt systempaths=unconfined), or use another backend"
                .to_owned(),
        ),
        (SetupPart::Namespaces, _) => {
            let unknown = "this machine refuses user namespaces: allow them, or use the docker backend";
            Some(facts.outer_cause().map_or(unknown.to_owned(), |outer_cause| outer_cause.fix))
        }
        (_, Errno::PERM | Errno::ACCESS) => facts.outer_cause().map(|outer_cause| outer_cause.fix),
        _ => None,
    }
}

/// Reads a number from a file. Returns `None` if the file does not exist.
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
    fn each_blocker_is_reported_with_its_fix() {
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
            let found = facts.blockers();
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
    fn reports_an_outer_container_or_selinux_when_no_setting_is_disabled() {
        let fine = fine();
        assert_eq!(fine.outer_cause(), None);
        let container = Facts { container: Some("Docker"), selinux_enforces: true, ..fine.clone() };
        let outer_cause = container.outer_cause().expect("named");
        assert!(
            outer_cause.what.contains("a container (Docker)")
                && outer_cause.fix.contains("seccomp=unconfined")
        );
        let selinux = Facts { selinux_enforces: true, ..fine }.outer_cause().expect("named");
        assert!(selinux.what.contains("SELinux") && selinux.fix.contains("ausearch"));
    }

    #[test]
    fn reports_missing_landlock_features() {
        let fine = fine();
        for (files, scopes, expected, fix) in
            [(true, true, 0, ""), (true, false, 1, "update the kernel"), (false, false, 2, "`lsm=`")]
        {
            let missing_features =
                Facts { landlock_files: files, landlock_scopes: scopes, ..fine.clone() }.missing_features();
            assert_eq!(missing_features.len(), expected, "{missing_features:?}");
            assert!(
                missing_features.iter().all(|lack| lack.what.contains("Landlock") && lack.fix.contains(fix))
            );
        }
    }

    #[test]
    fn reports_a_missing_overlay_with_its_module() {
        let missing_features = Facts { overlays: false, ..fine() }.missing_features();
        assert!(
            missing_features.len() == 1 && missing_features[0].fix == "sudo modprobe overlay",
            "{missing_features:?}"
        );
    }

    #[test]
    fn reports_limits_that_are_not_enforced() {
        for (memory, cpus, expected) in [
            (true, true, None),
            (true, false, Some("`cpus` is refused")),
            (false, true, Some("memory")),
            (false, false, Some("limit bottles")),
        ] {
            let missing_features =
                Facts { limits_memory: memory, limits_cpus: cpus, ..fine() }.missing_features();
            assert_eq!(missing_features.len(), usize::from(expected.is_some()), "{missing_features:?}");
            let named = |words| {
                missing_features[0].what.contains(words)
                    && missing_features[0].fix.contains("systemd-run --user")
            };
            assert!(expected.is_none_or(named), "{missing_features:?}");
        }
    }

    #[test]
    fn parses_kernel_versions_as_numbers() {
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
    fn only_a_permission_error_gets_a_fix() {
        let failure = |errno: Errno| SetupFailure {
            part: SetupPart::Namespaces,
            ..SetupFailure::new("make namespaces", io::Error::from_raw_os_error(errno.raw_os_error()))
        };
        assert!(fix_for(&failure(Errno::PERM)).is_some());
        assert!(fix_for(&failure(Errno::NOMEM)).is_none());
    }
}
