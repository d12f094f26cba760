//! Refuses to switch users: a bundle that root starts runs only on Linux.

use nix::errno::Errno;

use crate::HardenError;
pub use crate::user::Identity;

impl Identity {
    /// Refuses to switch users, because no sidecar runs as root's child on macOS.
    ///
    /// # Errors
    /// Always [`HardenError::Step`].
    pub fn assume(self) -> Result<(), HardenError> {
        let step = "change the user, which sidecars do only on Linux";
        Err(HardenError::Step { step, source: Errno::ENOTSUP })
    }
}
