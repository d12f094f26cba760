//! Protects the complete process: prevents dumps and new privileges, drops capabilities, and sets limits.

use caps::CapSet;
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;

use crate::{HardenError, step};

/// Makes the process not dumpable, which also prevents other processes of the same user from reading `/proc/PID/mem`
/// and `environ`. Disables core files, and prevents the process from gaining new privileges.
///
/// # Errors
/// Fails with [`HardenError::Step`] if the kernel refuses. No supported kernel should refuse.
pub fn seal() -> Result<(), HardenError> {
    prctl::set_dumpable(false).map_err(step("make the process not dumpable"))?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0).map_err(step("forbid core files"))?;
    prctl::set_no_new_privs().map_err(step("forbid new privileges"))
}

/// Changes the working directory of the process to `/`. Call this function first in a spawned process. If the parent
/// process set the directory instead, the parent would have to spawn with the slower `fork`.
///
/// # Errors
/// Fails with [`HardenError::Step`] if `/` is inaccessible.
pub fn leave_directory() -> Result<(), HardenError> {
    nix::unistd::chdir("/").map_err(step("change the working directory to `/`"))
}

/// Removes every capability from every capability set.
///
/// # Errors
/// Fails with [`HardenError::Capabilities`] if the kernel refuses.
pub fn drop_capabilities() -> Result<(), HardenError> {
    // Clearing the bounding set requires CAP_SETPCAP. Without CAP_SETPCAP the bounding set is harmless, because the
    // process cannot gain new privileges.
    if caps::has_cap(None, CapSet::Effective, caps::Capability::CAP_SETPCAP)? {
        caps::clear(None, CapSet::Bounding)?;
    }
    for set in [CapSet::Ambient, CapSet::Inheritable, CapSet::Effective, CapSet::Permitted] {
        caps::clear(None, set)?;
    }
    Ok(())
}

/// Makes the kernel kill this process when the thread that started it exits.
///
/// # Errors
/// Fails with [`HardenError::Step`] if the kernel refuses. No supported kernel should refuse.
pub fn die_with_parent() -> Result<(), HardenError> {
    prctl::set_pdeathsig(Signal::SIGKILL).map_err(step("die with the parent"))
}

/// Raises the soft limit on open files to `wanted`, or to the hard limit if the hard limit is lower.
///
/// # Errors
/// Fails with [`HardenError::Step`] if the kernel refuses. No supported kernel should refuse.
pub fn allow_files(wanted: u64) -> Result<(), HardenError> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(step("read the file limit"))?;
    let raised = wanted.min(hard).max(soft);
    setrlimit(Resource::RLIMIT_NOFILE, raised, hard).map_err(step("raise the file limit"))
}

/// Limits the memory that the process may write to, in bytes: heap, stacks and private mappings, whether used or not.
/// An allocation that exceeds the limit fails, which ends the process. If the process has inherited a lower limit, the
/// lower limit remains. Each child process inherits the limit, and its memory is counted separately.
///
/// # Errors
/// Fails with [`HardenError::Step`] if the kernel refuses. No supported kernel should refuse.
pub fn limit_memory(most: u64) -> Result<(), HardenError> {
    let (_, hard) = getrlimit(Resource::RLIMIT_DATA).map_err(step("read the memory limit"))?;
    let most = most.min(hard);
    setrlimit(Resource::RLIMIT_DATA, most, most).map_err(step("limit the memory"))
}
