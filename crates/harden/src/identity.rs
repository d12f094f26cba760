//! Switches the process to an unprivileged user.

use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};

pub use crate::user::Identity;
use crate::{HardenError, step};

impl Identity {
    /// Permanently sets the real, effective and saved ids of the process to this user.
    ///
    /// The kernel then resets the parent-death signal and the dumpable flag, so this step must come before the steps
    /// that set this signal or this flag.
    ///
    /// # Errors
    /// Fails with [`HardenError::Step`] if the process is not root.
    pub fn assume(self) -> Result<(), HardenError> {
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        setgroups(&[]).map_err(step("drop supplementary groups"))?;
        setresgid(gid, gid, gid).map_err(step("change the group"))?;
        setresuid(uid, uid, uid).map_err(step("change the user"))
    }
}
