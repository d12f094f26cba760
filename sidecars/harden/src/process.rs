//! What a process as a whole can lose: its memory to others, new privileges, capabilities.

use caps::CapSet;
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;

use crate::{HardenError, step};

/// Makes the process's memory unreadable for others of its user, and its privileges final: not dumpable
/// (which also hides `/proc/PID/mem` and `environ`), no core file, no new privileges.
///
/// # Errors
/// [`HardenError::Step`]; every kernel has these.
pub fn seal() -> Result<(), HardenError> {
    prctl::set_dumpable(false).map_err(step("make the process not dumpable"))?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0).map_err(step("forbid core files"))?;
    prctl::set_no_new_privs().map_err(step("forbid new privileges"))
}

/// Leaves the folder that the process was started in for `/`, as its first step, with one thread. Whoever starts a
/// process can do so without copying itself first, unless it is to choose that folder.
///
/// # Errors
/// [`HardenError::Step`], where not even `/` may be entered.
pub fn leave_folder() -> Result<(), HardenError> {
    nix::unistd::chdir("/").map_err(step("leave the folder it was started in"))
}

/// Drops every capability from every set.
///
/// # Errors
/// [`HardenError::Capabilities`].
pub fn drop_capabilities() -> Result<(), HardenError> {
    // The bounding set can be emptied only by who holds CAP_SETPCAP; without it nothing of that set can
    // be gained either, because new privileges are forbidden.
    if caps::has_cap(None, CapSet::Effective, caps::Capability::CAP_SETPCAP)? {
        caps::clear(None, CapSet::Bounding)?;
    }
    for set in [CapSet::Ambient, CapSet::Inheritable, CapSet::Effective, CapSet::Permitted] {
        caps::clear(None, set)?;
    }
    Ok(())
}

/// Has the kernel kill this process when the thread that started it ends.
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
