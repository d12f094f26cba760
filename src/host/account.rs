//! Accounts of this machine's users.

use std::path::PathBuf;

use super::system;

/// What this program needs of a user's account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Account {
    /// The name.
    pub(crate) name: String,
    /// The home directory.
    pub(crate) home: PathBuf,
}

impl Account {
    /// The account with this user id. `None` if there is none, or if it cannot be read.
    pub(crate) fn of(uid: u32) -> Option<Self> {
        system::account(uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_has_root_and_no_unused_id() {
        assert_eq!(Account::of(0).map(|account| account.name), Some("root".to_owned()));
        assert_eq!(Account::of(3_999_999), None);
    }
}
