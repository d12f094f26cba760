//! Protects the complete process against debuggers and core files, and raises its limit on open files.

#![allow(unsafe_code)] // The one call below says why it is sound.

use nix::errno::Errno;
use nix::libc;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::{HardenError, step};

/// The maximum number of open descriptors of a process, even if its hard limit is infinite (setrlimit(2); `OPEN_MAX` in
/// `sys/syslimits.h`).
const OPEN_MAX: u64 = 10_240;

/// Prevents debuggers from attaching to the process, and disables core files. The ban on debuggers also prevents other
/// processes of the same user from reading the process's memory. On macOS, the environment of a process stays readable
/// for its user (`ps -E`).
///
/// # Errors
/// Fails with [`HardenError::Step`] if the kernel refuses.
pub fn seal() -> Result<(), HardenError> {
    // SAFETY: PT_DENY_ATTACH takes no address and changes only a flag of this process (ptrace(2)).
    let denied = unsafe { libc::ptrace(libc::PT_DENY_ATTACH, 0, std::ptr::null_mut(), 0) };
    Errno::result(denied).map_err(step("deny debuggers"))?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0).map_err(step("forbid core files"))
}

/// Changes the working directory of the process to `/`. Call this function first in a spawned process.
///
/// # Errors
/// Fails with [`HardenError::Step`] if `/` is inaccessible.
pub fn leave_directory() -> Result<(), HardenError> {
    nix::unistd::chdir("/").map_err(step("change the working directory to `/`"))
}

/// Does nothing, because macOS has no capabilities: a process that is not root has no privileges of root.
///
/// # Errors
/// None on macOS.
pub fn drop_capabilities() -> Result<(), HardenError> {
    Ok(())
}

/// Fails, because macOS cannot kill a process when its parent ends.
///
/// # Errors
/// Always [`HardenError::Step`].
pub fn die_with_parent() -> Result<(), HardenError> {
    let step = "die with the parent, which only Linux supports";
    Err(HardenError::Step { step, source: Errno::ENOTSUP })
}

/// Raises the soft limit on open files to `wanted`, or to the hard limit or `OPEN_MAX` if one of these is lower.
///
/// # Errors
/// Fails with [`HardenError::Step`] if the kernel refuses.
pub fn allow_files(wanted: u64) -> Result<(), HardenError> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(step("read the file limit"))?;
    let raised = wanted.min(hard).min(OPEN_MAX).max(soft);
    setrlimit(Resource::RLIMIT_NOFILE, raised, hard).map_err(step("raise the file limit"))
}

/// Limits the memory that the process may write to, in bytes, as far as macOS enforces this limit. If the process has
/// inherited a lower limit, the lower limit remains.
///
/// # Errors
/// Fails with [`HardenError::Step`] if the kernel refuses.
pub fn limit_memory(most: u64) -> Result<(), HardenError> {
    let (_, hard) = getrlimit(Resource::RLIMIT_DATA).map_err(step("read the memory limit"))?;
    let most = most.min(hard);
    setrlimit(Resource::RLIMIT_DATA, most, most).map_err(step("limit the memory"))
}
