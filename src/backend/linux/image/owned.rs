//! Makes changes of file owners succeed without effect: a bottle on an image has one user, who owns all files.
//!
//! Package managers change the owner of each file that they install and fail on an error. That the file belongs to the
//! agent instead of root is harmless here.

use bottle_harden::HardenError;
use bottle_harden::filter::Filter;
use nix::libc;

/// The calls that return success without effect.
const CHOWN_CALLS: &[libc::c_long] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    libc::SYS_fchown,
    libc::SYS_fchownat,
];

/// Installs the filter on this thread, the only one, and its future children, in addition to the allowlist filter.
///
/// # Errors
/// When it cannot be built here, or the kernel refuses it.
pub(in crate::backend::linux) fn install() -> Result<(), HardenError> {
    let mut filter = Filter::passing();
    filter.refuse(CHOWN_CALLS, 0);
    filter.apply()
}
