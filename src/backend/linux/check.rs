//! Whether this machine can make a sandbox, tried rather than guessed, and the fix where it cannot.

use std::fs;
use std::io;

use rustix::io::Errno;

use crate::backend::Finding;
use crate::backend::local::handoff::SetupFailure;

/// The oldest kernel with every call the setup makes: `mount_setattr` and `close_range` came last.
const OLDEST_KERNEL: (u32, u32) = (5, 12);

/// What can be read off the machine when a trial failed, or would be weaker than it could be.
pub(crate) fn findings() -> Vec<Finding> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut findings = Vec::new();
    if kernel(&release).is_some_and(|version| version < OLDEST_KERNEL) {
        let (major, minor) = OLDEST_KERNEL;
        findings.push(Finding {
            what: format!("the kernel is {release}, and {major}.{minor} is the oldest that works"),
            fix: "update the kernel, or use the docker backend".to_owned(),
        });
    }
    findings.extend(user_namespaces());
    findings
}

/// The fix for a setup that failed, when a person can do something about it.
pub(crate) fn fix_for(failure: &SetupFailure) -> Option<String> {
    let errno = failure.errno.map(Errno::from_raw_os_error)?;
    if !matches!(errno, Errno::PERM | Errno::ACCESS | Errno::NOSPC | Errno::NOSYS | Errno::INVAL) {
        return None;
    }
    if let Some(finding) = findings().into_iter().next() {
        return Some(finding.fix);
    }
    match (failure.step.as_str(), errno) {
        ("make /proc", _) => Some(
            "this machine is itself a container that hides parts of /proc: start it with an unmasked /proc \
             (Docker: --security-opt systempaths=unconfined), or use another backend"
                .to_owned(),
        ),
        ("make namespaces" | "map its ids", _) => Some(
            "this machine refuses user namespaces (a container's seccomp or AppArmor profile does so too): \
             allow them, or use the docker backend"
                .to_owned(),
        ),
        _ => None,
    }
}

/// The switches by which distributions turn user namespaces off.
fn user_namespaces() -> Option<Finding> {
    let root = rustix::process::geteuid().is_root();
    let switch = |path: &str| read_number(&format!("/proc/sys/{path}"));
    let finding = |what: &str, fix: &str| Some(Finding { what: what.to_owned(), fix: fix.to_owned() });
    if switch("user/max_user_namespaces") == Some(0) {
        return finding(
            "user namespaces are switched off (user.max_user_namespaces is 0)",
            "sudo sysctl -w user.max_user_namespaces=15000",
        );
    }
    if !root && switch("kernel/unprivileged_userns_clone") == Some(0) {
        return finding(
            "user namespaces are for root only (kernel.unprivileged_userns_clone is 0)",
            "sudo sysctl -w kernel.unprivileged_userns_clone=1",
        );
    }
    if !root && switch("kernel/apparmor_restrict_unprivileged_userns") == Some(1) {
        return finding(
            "AppArmor lets no ordinary program use user namespaces (kernel.apparmor_restrict_unprivileged_userns is 1)",
            "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile for bottle \
             with `userns,`",
        );
    }
    None
}

fn read_number(path: &str) -> Option<u64> {
    match fs::read_to_string(path) {
        Ok(text) => text.trim().parse().ok(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(_) => None,
    }
}

fn kernel(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

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
