//! Restricts a sandbox with Landlock, as a second layer behind mounts and namespaces.
//!
//! Only the bottle's own folders and tmpfs folders are writable, whatever the mounts allow; no device can be created; no
//! abstract socket and no signal leaves the bottle. An older kernel enforces the subset that it supports; `doctor`
//! reports the missing part.

use std::os::fd::OwnedFd;
use std::path::Path;

use bottle_contract::names;
use bottle_harden::HardenError;
use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, Scope,
};

use super::prefix;

/// The newest rules requested.
const RULES: ABI = ABI::V6;

/// Folders where writes and device ioctls are allowed.
const WRITABLE: [&str; 7] = ["/tmp", "/run", names::WORKSPACE, "/home", prefix::LOCAL, prefix::OPT, "/dev"];

/// The folder where only existing files are writable: the settings of processes.
const SETTINGS: &str = "/proc";

/// Restricts this thread, the only one, and its future children. With `nested` files are unrestricted, because Landlock
/// forbids all mounts to a process that is restricted in files. With `own_system` all files are writable, because the
/// system belongs to the bottle; only devices are forbidden. `changed` is the upper folder, which has no path inside;
/// listing it is allowed through its descriptor.
///
/// # Errors
/// When a kernel with Landlock refuses the rules.
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

/// Whether this kernel's Landlock can restrict files without breaking programs: without the `Refer` right it forbids
/// moving files between folders everywhere.
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
