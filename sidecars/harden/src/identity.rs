//! Whose rights a process has.

use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
use serde::{Deserialize, Serialize};

use crate::{HardenError, step};

/// An unprivileged user, by number: it need not stand in any passwd file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// User id.
    pub uid: u32,
    /// Group id; all other groups are dropped.
    pub gid: u32,
}

impl Identity {
    /// Becomes this user for good, real, effective and saved.
    ///
    /// The kernel forgets the parent-death signal and the dumpable flag with it, so this comes first.
    ///
    /// # Errors
    /// [`HardenError::Step`] when the process may not, which is so unless it is root.
    pub fn assume(self) -> Result<(), HardenError> {
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        setgroups(&[]).map_err(step("drop supplementary groups"))?;
        setresgid(gid, gid, gid).map_err(step("change the group"))?;
        setresuid(uid, uid, uid).map_err(step("change the user"))
    }
}
