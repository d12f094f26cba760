//! Landlock: what holds should a mount or a namespace not keep what it promises.
//!
//! Writing is possible in the bottle's own folders and in what is memory, and nowhere else, whatever a mount
//! says; no device is made; no abstract socket and no signal leaves the bottle. On an older kernel what it
//! knows of that; `doctor` says what is missing.

use std::os::fd::OwnedFd;
use std::path::Path;

use bottle_contract::names;
use bottle_harden::HardenError;
use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, Scope,
};

use super::prefix;

/// The newest rules asked for.
const RULES: ABI = ABI::V6;

/// Where anything may be written, and devices asked things.
const WRITABLE: [&str; 7] = ["/tmp", "/run", names::WORKSPACE, "/home", prefix::LOCAL, prefix::OPT, "/dev"];

/// Where files are written that are there: a process's own settings.
const SETTINGS: &str = "/proc";

/// Restricts this thread, the only one, and all it will start. With `nested` files are left out: Landlock
/// forbids every mount to who is restricted in files. With `whole` the system is the bottle's own and may be
/// written to: of files, devices are what is left to forbid. `changed` has no path inside; who has it opened may
/// look at what is in it.
///
/// # Errors
/// When a kernel that has Landlock refuses.
pub(super) fn restrict(nested: bool, whole: bool, changed: Option<&OwnedFd>) -> Result<(), HardenError> {
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
        let writable: &[&str] = if whole { &["/"] } else { &WRITABLE };
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

/// Whether this kernel's Landlock can guard files without breaking programs: one that does not know of moving
/// a file from one folder to another forbids it everywhere.
pub(super) fn restricts_files() -> bool {
    knows(|rules| rules.handle_access(AccessFs::Refer))
}

/// Whether it knows of abstract sockets and signals.
pub(super) fn restricts_scopes() -> bool {
    knows(|rules| rules.scope(Scope::Signal))
}

fn knows(asks: impl FnOnce(Ruleset) -> Result<Ruleset, landlock::RulesetError>) -> bool {
    asks(Ruleset::default().set_compatibility(CompatLevel::HardRequirement)).is_ok()
}

fn beneath(path: &str, access: BitFlags<AccessFs>) -> Result<PathBeneath<PathFd>, HardenError> {
    Ok(PathBeneath::new(PathFd::new(path)?, access))
}
