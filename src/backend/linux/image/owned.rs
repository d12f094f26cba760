//! Who owns a file of an image does not change: there is one user in a bottle, and all files are its own.
//!
//! Whoever gives a file away is told that this was done. Package managers do it for each file that they install and
//! take a refusal for a failure; that a file belongs to the agent instead of root takes nothing from it here.

use bottle_harden::HardenError;
use bottle_harden::filter::Filter;
use nix::libc;

/// Answered with success.
const GIVES_AWAY: &[libc::c_long] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    libc::SYS_fchown,
    libc::SYS_fchownat,
];

/// Installs the filter on this thread, the only one, and all it will start. The one that says which calls may be
/// made stands beside it.
///
/// # Errors
/// When it cannot be built here, or the kernel refuses it.
pub(in crate::backend::linux) fn install() -> Result<(), HardenError> {
    let mut filter = Filter::passing();
    filter.refuse(GIVES_AWAY, 0);
    filter.apply()
}
