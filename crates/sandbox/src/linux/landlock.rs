//! Restricts a sandbox with Landlock, in addition to mounts and namespaces.
//!
//! An agent that uses the host's system directories can write only to the bottle's directories, tmpfs directories and
//! existing files in `/proc`, even if a mount allows more. An agent whose bottle is based on an image cannot create
//! devices. With `resources.nested`, file access is unrestricted. In every bottle, processes can neither connect to
//! abstract sockets nor send signals outside the bottle. An older kernel enforces the subset that it supports; `bottle
//! doctor` reports the missing features.

use std::os::fd::OwnedFd;
use std::path::Path;

use bottle_harden::HardenError;
use bottle_policy::names;
use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, Scope,
};

use super::prefix;

/// The newest Landlock version. The rules request the access rights of this version.
const RULES: ABI = ABI::V6;

/// Directories in which writes and device ioctls are allowed.
const WRITABLE: [&str; 7] = ["/tmp", "/run", names::WORKSPACE, "/home", prefix::LOCAL, prefix::OPT, "/dev"];

/// The directory in which existing files are writable but no files can be created. This directory contains the settings
/// of processes.
const SETTINGS: &str = "/proc";

/// Restricts this thread, which is the only thread of the process, and its future children. With `nested`, file access
/// is unrestricted, because Landlock forbids all mounts to a process with restricted file access. With `own_system`,
/// all files are writable and only devices are forbidden, because the bottle has its own system files. `changed` is the
/// upper directory of a bottle that is based on an image. This directory has no path inside the bottle, and the rules
/// allow listing it through its descriptor.
///
/// # Errors
/// When a kernel that supports Landlock refuses the rules.
pub(super) fn restrict(nested: bool, own_system: bool, changed: Option<&OwnedFd>) -> Result<(), HardenError> {
    let scopes = Scope::AbstractUnixSocket | Scope::Signal;
    let mut rules = Ruleset::default().scope(scopes)?;
    let files = !nested && restricts_files();
    if files {
        rules = rules.handle_access(AccessFs::from_all(RULES))?;
    }
    let mut rules = rules.create()?;
    if files {
        let read = AccessFs::from_read(RULES);
        let devices = AccessFs::MakeChar | AccessFs::MakeBlock;
        let write = AccessFs::from_all(RULES) & !devices;
        rules = rules.add_rule(beneath("/", read)?)?;
        let writable: &[&str] = if own_system { &["/"] } else { &WRITABLE };
        for path in writable.iter().filter(|path| Path::new(path).exists()) {
            rules = rules.add_rule(beneath(path, write)?)?;
        }
        if let Some(changed) = changed {
            rules = rules.add_rule(PathBeneath::new(changed, BitFlags::from(AccessFs::ReadDir)))?;
        }
        rules = rules.add_rule(beneath(SETTINGS, read | AccessFs::WriteFile | AccessFs::Truncate)?)?;
    }
    rules.restrict_self()?;
    Ok(())
}

/// Whether this kernel's Landlock can restrict files without breaking programs. A version without the `Refer` right
/// forbids moving files between directories everywhere.
pub(super) fn restricts_files() -> bool {
    is_supported(|rules| rules.handle_access(AccessFs::Refer))
}

/// Whether this kernel's Landlock can restrict abstract sockets and signals.
pub(super) fn restricts_scopes() -> bool {
    is_supported(|rules| rules.scope(Scope::Signal))
}

fn is_supported(request: impl FnOnce(Ruleset) -> Result<Ruleset, landlock::RulesetError>) -> bool {
    request(Ruleset::default().set_compatibility(CompatLevel::HardRequirement)).is_ok()
}

fn beneath(path: &str, access: BitFlags<AccessFs>) -> Result<PathBeneath<PathFd>, HardenError> {
    Ok(PathBeneath::new(PathFd::new(path)?, access))
}
