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

    /// The account with this user id among lines of passwd(5).
    pub(super) fn among(lines: &str, uid: u32) -> Option<Self> {
        lines.lines().find_map(|line| {
            let mut fields = line.split(':');
            let (name, _password, id) = (fields.next()?, fields.next()?, fields.next()?);
            let (_group, _comment, home) = (fields.next()?, fields.next()?, fields.next()?);
            (id.parse() == Ok(uid)).then(|| Self { name: name.to_owned(), home: home.into() })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_an_account_by_its_id() {
        let lines =
            "root:x:0:0:root:/root:/bin/bash\nbroken\n+nis::::::\nme:x:1000:1000:M,,,:/home/me:/bin/sh\n";
        let account = |name: &str, home: &str| Some(Account { name: name.to_owned(), home: home.into() });
        assert_eq!(Account::among(lines, 0), account("root", "/root"));
        assert_eq!(Account::among(lines, 1000), account("me", "/home/me"));
        assert_eq!(Account::among(lines, 1), None);
        assert_eq!(Account::among("", 0), None);
    }

    #[test]
    fn the_machine_has_root_and_no_unused_id() {
        assert_eq!(Account::of(0).map(|account| account.name), Some("root".to_owned()));
        assert_eq!(Account::of(3_999_999), None);
    }
}
