//! Checks whether this machine can run smolvm's machines.

use std::path::Path;
use std::time::Duration;

use bottle_backend::Finding;
use bottle_backend::command_line::runner::{Program, RunError};
use bottle_host::causes;
use rustix::fs::Access;

use super::args;
use super::output::{self, Version};

/// The oldest supported version of smolvm. Older versions cannot connect sockets between host and machine, or store
/// their state in another directory.
pub(super) const OLDEST: Version = Version(1, 32, 0);

/// The device through which the kernel provides virtual machines.
const KVM: &str = "/dev/kvm";

/// How long smolvm may take to print its version.
const VERSION_DEADLINE: Duration = Duration::from_secs(20);

/// The hint that explains how to install smolvm.
const INSTALL: &str = "install smolvm 1.32 or newer, and put `smolvm` on your PATH";

/// The facts about this host that decide whether virtual machines can start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Facts {
    /// Whether root runs this program.
    pub(super) root: bool,
    /// Whether the device [`KVM`] exists, and whether this user may open it.
    pub(super) device: Device,
    /// Whether the processor can run virtual machines. `None` if the processor does not report this.
    pub(super) processor: Option<bool>,
    /// The version of smolvm, or the reason why the version is not known.
    pub(super) version: Result<Version, String>,
}

/// The state of the device [`KVM`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Device {
    /// The device does not exist.
    Missing,
    /// This user may not open the device.
    Forbidden,
    /// This user may open the device.
    Usable,
}

impl Facts {
    /// Reads the facts of this machine.
    pub(super) async fn read(program: &Program) -> Self {
        let processor = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| virtualizes(&text));
        Self {
            root: rustix::process::geteuid().is_root(),
            device: device(Path::new(KVM)),
            processor,
            version: version(program).await,
        }
    }

    /// Lists the problems, the most important problem first. A machine starts only if there are no problems.
    pub(super) fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut add = |what: &str, fix: &str| {
            findings.push(Finding { what: what.to_owned(), fix: fix.to_owned() });
        };
        match &self.version {
            Err(why) => add(why, INSTALL),
            Ok(version) if *version < OLDEST => {
                add(&format!("smolvm {version} is too old: {OLDEST} is the oldest supported"), INSTALL);
            }
            Ok(_) => {}
        }
        if self.root {
            add("smolvm cannot start machines for root", "start bottle as an ordinary user");
        }
        match self.device {
            Device::Missing => add(
                &format!("{KVM} does not exist, and virtual machines need it"),
                "`sudo modprobe kvm_intel` or `kvm_amd`; in a virtual machine, enable nested virtualization",
            ),
            Device::Forbidden => add(
                &format!("this user may not open {KVM}"),
                "`sudo usermod -aG kvm $USER`, and log in again",
            ),
            Device::Usable if self.processor == Some(false) => add(
                "this machine's processor has no virtualization (neither vmx nor svm)",
                "enable it in the firmware; in a virtual machine, enable nested virtualization",
            ),
            Device::Usable => {}
        }
        findings
    }
}

async fn version(program: &Program) -> Result<Version, String> {
    match program.run(&args::version(), VERSION_DEADLINE).await {
        Ok(output) => output::version(&output.stdout)
            .ok_or_else(|| "`smolvm --version` prints no version: another program has this name".to_owned()),
        Err(error @ RunError::Missing(_)) => Err(error.to_string()),
        Err(error) => Err(format!("cannot ask smolvm for its version: {}", causes::one_line(&error))),
    }
}

fn device(path: &Path) -> Device {
    match rustix::fs::access(path, Access::READ_OK | Access::WRITE_OK) {
        Ok(()) => Device::Usable,
        Err(rustix::io::Errno::NOENT) => Device::Missing,
        Err(_) => Device::Forbidden,
    }
}

/// Whether the processor can run virtual machines, according to the text of `/proc/cpuinfo`. Returns `None` if the text
/// has no line `flags`, for example on arm64.
fn virtualizes(cpuinfo: &str) -> Option<bool> {
    let flags = cpuinfo.lines().find_map(|line| line.strip_prefix("flags"))?;
    Some(flags.split_ascii_whitespace().any(|flag| ["vmx", "svm"].contains(&flag)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fine() -> Facts {
        Facts { root: false, device: Device::Usable, processor: Some(true), version: Ok(OLDEST) }
    }

    #[test]
    fn names_each_problem_with_its_fix() {
        for (facts, expected, fix) in [
            (Facts { root: true, ..fine() }, "for root", "ordinary user"),
            (Facts { device: Device::Missing, ..fine() }, "/dev/kvm does not exist", "modprobe"),
            (Facts { device: Device::Forbidden, ..fine() }, "may not open /dev/kvm", "usermod"),
            (Facts { processor: Some(false), ..fine() }, "no virtualization", "firmware"),
            (Facts { version: Ok(Version(1, 31, 9)), ..fine() }, "smolvm 1.31.9 is too old", "install"),
            (
                Facts { version: Err("`smolvm` is not installed".to_owned()), ..fine() },
                "not installed",
                "PATH",
            ),
        ] {
            let findings = facts.findings();
            assert_eq!(findings.len(), 1, "{findings:?}");
            assert!(findings[0].what.contains(expected) && findings[0].fix.contains(fix), "{findings:?}");
        }
        for facts in
            [fine(), Facts { processor: None, ..fine() }, Facts { version: Ok(Version(2, 0, 0)), ..fine() }]
        {
            assert_eq!(facts.findings(), []);
        }
    }

    #[test]
    fn reads_the_flags_of_processors() {
        for (text, expected) in [
            ("processor\t: 0\nflags\t\t: fpu vmx sse\n", Some(true)),
            ("flags\t\t: fpu svm\n", Some(true)),
            ("flags\t\t: fpu svm_lock avmx\n", Some(false)),
            ("processor\t: 0\nFeatures\t: fp asimd\n", None),
            ("", None),
        ] {
            assert_eq!(virtualizes(text), expected, "{text:?}");
        }
    }
}
