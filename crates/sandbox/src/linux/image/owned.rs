//! Makes system calls that change the owner of a file succeed without effect. A bottle on an image has one user, who
//! owns all files.
//!
//! Package managers set the owner of each file that they install, and fail if the system call fails. It is harmless
//! that an installed file belongs to the agent and not to root.

use bottle_harden::HardenError;
use bottle_harden::seccomp_filter::Filter;
use nix::libc;

/// The system calls that return success without effect.
const CHOWN_CALLS: &[libc::c_long] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    libc::SYS_fchown,
    libc::SYS_fchownat,
];

/// Installs the filter for this thread and its future children. This thread must be the only thread of the process. The
/// allowlist filter of system calls stays in force.
///
/// # Errors
/// When the filter cannot be built on this processor architecture, or the kernel refuses it.
pub(in crate::linux) fn install() -> Result<(), HardenError> {
    let mut filter = Filter::passing();
    filter.refuse(CHOWN_CALLS, 0);
    filter.apply()
}
