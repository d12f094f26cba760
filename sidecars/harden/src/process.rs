//! Process-wide protections: dumps, new privileges, capabilities, limits.

use caps::CapSet;
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;

use crate::{HardenError, step};

/// Protects the process's memory from other processes of its user, and forbids new privileges: not
/// dumpable (which also protects `/proc/PID/mem` and `environ`), no core file, no new privileges.
///
/// # Errors
/// [`HardenError::Step`]; every kernel has these.
pub fn seal() -> Result<(), HardenError> {
    prctl::set_dumpable(false).map_err(step("make the process not dumpable"))?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0).map_err(step("forbid core files"))?;
    prctl::set_no_new_privs().map_err(step("forbid new privileges"))
}

/// Changes the working directory to `/`. The process does this itself, as its first step, so that its
/// parent can spawn it without `fork`, which setting a child's directory would need.
///
/// # Errors
/// [`HardenError::Step`] if even `/` is inaccessible.
pub fn leave_folder() -> Result<(), HardenError> {
    nix::unistd::chdir("/").map_err(step("change the working directory to `/`"))
}

/// Drops every capability from every set.
///
/// # Errors
/// [`HardenError::Capabilities`].
pub fn drop_capabilities() -> Result<(), HardenError> {
    // Clearing the bounding set needs CAP_SETPCAP. Without it the set is harmless, because new
    // privileges are forbidden.
    if caps::has_cap(None, CapSet::Effective, caps::Capability::CAP_SETPCAP)? {
        caps::clear(None, CapSet::Bounding)?;
    }
    for set in [CapSet::Ambient, CapSet::Inheritable, CapSet::Effective, CapSet::Permitted] {
        caps::clear(None, set)?;
    }
    Ok(())
}

/// Makes the kernel kill this process when its parent thread exits.
///
/// # Errors
/// [`HardenError::Step`]; every kernel has it.
pub fn die_with_parent() -> Result<(), HardenError> {
    prctl::set_pdeathsig(Signal::SIGKILL).map_err(step("die with the parent"))
}

/// Raises the soft limit of open files to `wanted`, or as far as the hard limit allows.
///
/// # Errors
/// [`HardenError::Step`]; every kernel has it.
pub fn allow_files(wanted: u64) -> Result<(), HardenError> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(step("read the file limit"))?;
    let raised = wanted.min(hard).max(soft);
    setrlimit(Resource::RLIMIT_NOFILE, raised, hard).map_err(step("raise the file limit"))
}
