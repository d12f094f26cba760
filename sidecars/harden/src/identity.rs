//! Switches the process to an unprivileged user.

use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
use serde::{Deserialize, Serialize};

use crate::{HardenError, step};

/// An unprivileged user, by number; it needs no entry in `/etc/passwd`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// User id.
    pub uid: u32,
    /// Group id; all other groups are dropped.
    pub gid: u32,
}

impl Identity {
    /// Sets the real, effective and saved ids to this user, permanently.
    ///
    /// The kernel resets the parent-death signal and the dumpable flag, so this is the first step.
    ///
    /// # Errors
    /// [`HardenError::Step`] unless the process is root.
    pub fn assume(self) -> Result<(), HardenError> {
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        setgroups(&[]).map_err(step("drop supplementary groups"))?;
        setresgid(gid, gid, gid).map_err(step("change the group"))?;
        setresuid(uid, uid, uid).map_err(step("change the user"))
    }
}
