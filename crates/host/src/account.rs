//! Reads the accounts of this machine's users.

use std::path::PathBuf;

use super::system;

/// The parts of a user's account that this program needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// The name.
    pub name: String,
    /// The home directory.
    pub home: PathBuf,
}

/// Returns the name of this process's user, or the user id if the account has no name.
pub fn own_name() -> String {
    let user = rustix::process::getuid().as_raw();
    Account::of(user).map_or_else(|| user.to_string(), |account| account.name)
}

impl Account {
    /// Returns the account with this user id; `None` if there is none, or if it cannot be read.
    pub fn of(uid: u32) -> Option<Self> {
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
