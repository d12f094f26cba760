//! The user account of a confined process.

use serde::{Deserialize, Serialize};

/// An unprivileged user, given by number. The user needs no entry in `/etc/passwd`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The user id.
    pub uid: u32,
    /// The group id. The process leaves all other groups.
    pub gid: u32,
}
