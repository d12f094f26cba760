//! Determines the agent's user account in an image from `USER` and `/etc/passwd`, as container engines do. The module
//! has no side effects.

use bottle_policy::names::{AGENT_UID, AGENT_USER};
use serde::{Deserialize, Serialize};

/// The key of the image label that contains the agent's account.
pub const ACCOUNT_LABEL: &str = "bottle.account";

/// The highest user or group id. Kernels and container engines reserve higher ids.
const ID_MAX: u32 = i32::MAX.unsigned_abs();

/// The agent's user account in a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// The user name.
    pub name: String,
    /// The user id. Never 0.
    pub uid: u32,
    /// The id of the primary group.
    pub gid: u32,
    /// The home directory, as an absolute path.
    pub home: String,
}

/// The parts of an image that define its users.
#[derive(Debug, Clone, Copy)]
pub struct Users<'a> {
    /// The value of `USER`.
    pub user: &'a str,
    /// The content of `/etc/passwd`. Empty if the file is missing.
    pub passwd: &'a str,
    /// The content of `/etc/group`. Empty if the file is missing.
    pub group: &'a str,
}

/// Why an image has no account for the agent, as the end of a sentence that begins with the image's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoAccount {
    /// The image has no user of this name.
    #[error("has `USER {0}`, but no such user in its /etc/passwd")]
    NoUser(String),
    /// The image has no group of this name.
    #[error("has `USER {user}`, but no group `{group}` in its /etc/group")]
    NoGroup {
        /// The image's `USER`.
        user: String,
        /// The group that `USER` names.
        group: String,
    },
    /// The id in `USER` is too high.
    #[error("has `USER {0}`, which is not a valid id")]
    BadId(String),
}

impl Users<'_> {
    /// Returns the account of the user that the image's `USER` names. If `USER` is empty or names root, returns the
    /// account with the id [`AGENT_UID`], which may not exist in the image yet.
    pub fn agent(&self) -> Result<Account, NoAccount> {
        let (user, group) = match self.user.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (self.user, None),
        };
        let mut account = self.by_name(user)?;
        if account.uid == 0 {
            return Ok(self.with_id(AGENT_UID));
        }
        if let Some(group) = group.filter(|group| !group.is_empty()) {
            account.gid = self.group(group)?;
        }
        Ok(account)
    }

    fn by_name(&self, user: &str) -> Result<Account, NoAccount> {
        if user.is_empty() {
            return Ok(Account { name: "root".to_owned(), uid: 0, gid: 0, home: "/root".to_owned() });
        }
        if let Some(account) = self.accounts().find(|account| account.name == user) {
            return Ok(account);
        }
        match user.parse::<u32>() {
            Ok(uid) if uid <= ID_MAX => Ok(self.with_uid(uid)),
            Ok(_) => Err(NoAccount::BadId(self.user.to_owned())),
            Err(_) => Err(NoAccount::NoUser(self.user.to_owned())),
        }
    }

    /// Returns the account of a numeric `USER`. If `/etc/passwd` does not list the id, the account gets group 0, as in
    /// container engines.
    fn with_uid(&self, uid: u32) -> Account {
        let listed = self.accounts().find(|account| account.uid == uid);
        listed.unwrap_or_else(|| Account { gid: 0, ..self.new_account(uid) })
    }

    /// Returns the account with the id `uid`. If `/etc/passwd` does not list the id, returns a new account with a new
    /// group.
    fn with_id(&self, uid: u32) -> Account {
        let listed = self.accounts().find(|account| account.uid == uid);
        listed.unwrap_or_else(|| self.new_account(uid))
    }

    fn new_account(&self, uid: u32) -> Account {
        let taken = self.accounts().any(|account| account.name == AGENT_USER);
        let name = if taken { format!("{AGENT_USER}{uid}") } else { AGENT_USER.to_owned() };
        Account { home: default_home(&name), name, uid, gid: uid }
    }

    fn group(&self, group: &str) -> Result<u32, NoAccount> {
        let listed = self.group.lines().find_map(|line| {
            let mut fields = line.split(':');
            (fields.next() == Some(group)).then(|| fields.nth(1)?.parse().ok()).flatten()
        });
        match listed.map_or_else(|| group.parse::<u32>().ok(), Some) {
            Some(gid) if gid <= ID_MAX => Ok(gid),
            Some(_) => Err(NoAccount::BadId(self.user.to_owned())),
            None => Err(NoAccount::NoGroup { user: self.user.to_owned(), group: group.to_owned() }),
        }
    }

    /// Parses `/etc/passwd` into accounts, and skips invalid lines.
    fn accounts(&self) -> impl Iterator<Item = Account> {
        self.passwd.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next().filter(|name| is_name(name))?.to_owned();
            let uid = fields.nth(1)?.parse().ok().filter(|id| *id <= ID_MAX)?;
            let gid = fields.next()?.parse().ok().filter(|id| *id <= ID_MAX)?;
            let home = fields.nth(1).unwrap_or_default();
            let home = if is_home(home) { home.to_owned() } else { default_home(&name) };
            Some(Account { name, uid, gid, home })
        })
    }

    /// Returns the text of `/etc/passwd` with a line for this account. The line replaces an existing line with the same
    /// name.
    pub fn passwd_with(&self, account: &Account) -> String {
        let Account { name, uid, gid, home } = account;
        let shell = self.passwd.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            (fields.len() == 7 && fields[0] == name).then(|| fields[6].to_owned())
        });
        let own = format!("{name}:x:{uid}:{gid}::{home}:{}", shell.as_deref().unwrap_or("/bin/sh"));
        replace_line(self.passwd, name, &own)
    }

    /// Returns the text of `/etc/group` with the account's group added. `None` if a group with the account's group id
    /// exists.
    pub fn group_with(&self, account: &Account) -> Option<String> {
        let gid = account.gid.to_string();
        let listed = self.group.lines().any(|line| line.split(':').nth(2) == Some(&gid));
        // If another group has the account's name, the new group gets a different name. Files refer to groups by id.
        let by_name = self.group.lines().any(|line| line.split(':').next() == Some(&account.name));
        let name = if by_name { format!("{}{gid}", account.name) } else { account.name.clone() };
        (!listed).then(|| replace_line(self.group, &name, &format!("{name}:x:{gid}:")))
    }
}

/// Replaces the line whose first field is `name` with `own`. If no line has this first field, appends `own`.
fn replace_line(text: &str, name: &str, own: &str) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    match lines.iter().position(|line| line.split(':').next() == Some(name)) {
        Some(at) => lines[at] = own,
        None => lines.push(own),
    }
    lines.join("\n") + "\n"
}

/// Returns the default home directory of a user.
pub fn default_home(name: &str) -> String {
    format!("/home/{name}")
}

/// Whether a name can be used safely in a path and in a line of `/etc/passwd`.
fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 64
        && !name.starts_with(['-', '.'])
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

/// Whether a home directory is an absolute path that contains no empty part, `.` or `..`, and is outside the system
/// directories.
fn is_home(home: &str) -> bool {
    let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    let parts: Vec<&str> = home.strip_prefix('/').unwrap_or_default().split('/').collect();
    let system = ["bin", "boot", "dev", "etc", "lib", "lib64", "nonexistent", "proc", "run", "sbin", "sys"];
    home.len() <= 1024
        && !home.contains(|c: char| c.is_control() || c == ':')
        && parts.iter().all(|part| plain(part))
        && !parts.first().is_some_and(|first| system.contains(first))
}

impl Account {
    /// Returns the account as the value of an image label.
    pub fn label(&self) -> String {
        format!("{}:{}:{}:{}", self.uid, self.gid, self.name, self.home)
    }

    /// Parses the value of [`Account::label`]. Returns `None` for any other text.
    pub fn from_label(label: &str) -> Option<Self> {
        let fields: Vec<&str> = label.split(':').collect();
        let [uid, gid, name, home] = fields[..] else { return None };
        let (uid, gid) = (uid.parse().ok()?, gid.parse().ok()?);
        let good = uid != 0 && uid <= ID_MAX && gid <= ID_MAX && is_name(name) && is_home(home);
        good.then(|| Self { name: name.to_owned(), uid, gid, home: home.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\n\
        toor:x:0:0::/root:/bin/sh\n\
        nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n\
        broken line\n\
        node:x:1000:1001::/home/node:/bin/bash\n\
        build:x:1234:100::/srv/build:/bin/zsh\n";
    const GROUP: &str = "root:x:0:\nusers:x:100:build\nnode:x:1001:\nstaff:x:50:\n";

    fn users(user: &str) -> Users<'_> {
        Users { user, passwd: PASSWD, group: GROUP }
    }

    fn account(name: &str, uid: u32, gid: u32, home: &str) -> Account {
        Account { name: name.to_owned(), uid, gid, home: home.to_owned() }
    }

    #[test]
    fn the_images_user_is_the_agent_unless_it_is_root() {
        let node = || account("node", 1000, 1001, "/home/node");
        for (user, expected) in [
            ("", node()),
            ("root", node()),
            ("0", node()),
            ("0:50", node()),
            ("toor", node()),
            ("node", node()),
            ("1000", node()),
            ("node:staff", Account { gid: 50, ..node() }),
            ("node:0", Account { gid: 0, ..node() }),
            ("1000:4321", Account { gid: 4321, ..node() }),
            ("build:", account("build", 1234, 100, "/srv/build")),
            ("nobody", account("nobody", 65534, 65534, "/home/nobody")),
            ("4711", account("agent", 4711, 0, "/home/agent")),
            ("4711:4711", account("agent", 4711, 4711, "/home/agent")),
        ] {
            assert_eq!(users(user).agent(), Ok(expected), "{user:?}");
        }
    }

    #[test]
    fn an_image_without_users_gets_one() {
        for passwd in ["", "root:x:0:0::/root:/bin/sh\n"] {
            let users = Users { user: "", passwd, group: "" };
            let agent = account("agent", 1000, 1000, "/home/agent");
            assert_eq!(users.agent(), Ok(agent.clone()));
            assert_eq!(
                users.passwd_with(&agent),
                format!("{passwd}agent:x:1000:1000::/home/agent:/bin/sh\n")
            );
            assert_eq!(users.group_with(&agent).as_deref(), Some("agent:x:1000:\n"));
        }
        let taken =
            Users { user: "", passwd: "agent:x:70:70::/home/agent:/bin/sh\n", group: "agent:x:70:\n" };
        assert_eq!(taken.agent(), Ok(account("agent1000", 1000, 1000, "/home/agent1000")));
    }

    #[test]
    fn refuses_unknown_users_and_groups_and_invalid_ids() {
        for (user, why) in [
            ("somebody", NoAccount::NoUser("somebody".to_owned())),
            (
                "node:nogroup",
                NoAccount::NoGroup { user: "node:nogroup".to_owned(), group: "nogroup".to_owned() },
            ),
            ("4294967295", NoAccount::BadId("4294967295".to_owned())),
            ("node:4294967295", NoAccount::BadId("node:4294967295".to_owned())),
            ("-1", NoAccount::NoUser("-1".to_owned())),
        ] {
            assert_eq!(users(user).agent(), Err(why), "{user:?}");
        }
    }

    #[test]
    fn a_new_home_replaces_the_old_one_in_its_line() {
        let moved = account("build", 1234, 100, "/home/build");
        let passwd = users("build").passwd_with(&moved);
        assert!(passwd.contains("\nbuild:x:1234:100::/home/build:/bin/zsh\n"), "{passwd}");
        assert_eq!(passwd.lines().count(), PASSWD.lines().count());
        assert_eq!(users("build").group_with(&moved), None);
    }

    #[test]
    fn a_home_is_a_plain_path_outside_system_directories() {
        for (home, good) in [
            ("/home/node", true),
            ("/root", true),
            ("/srv/a b", true),
            ("/", false),
            ("", false),
            ("home/node", false),
            ("/nonexistent", false),
            ("/bin", false),
            ("/dev/shm", false),
            ("/home/../etc", false),
            ("/home//x", false),
            ("/home/x\ny", false),
        ] {
            assert_eq!(is_home(home), good, "{home:?}");
        }
    }

    #[test]
    fn a_label_round_trips_and_never_names_root() {
        let agent = account("agent", 1000, 1000, "/home/agent");
        assert_eq!(Account::from_label(&agent.label()), Some(agent));
        for label in
            ["", "0:0:root:/root", "1:2:x", "1:2:../x:/home/x", "1:2:x:/etc", "4294967295:1:x:/home/x"]
        {
            assert_eq!(Account::from_label(label), None, "{label:?}");
        }
    }

    proptest! {
        #[test]
        fn nothing_an_image_says_makes_the_agent_root(user in ".{0,20}", passwd in "([a-z0-9:/]{0,30}\n){0,5}") {
            if let Ok(account) = (Users { user: &user, passwd: &passwd, group: "" }).agent() {
                prop_assert_ne!(account.uid, 0);
                prop_assert_eq!(Account::from_label(&account.label()), Some(account));
            }
        }
    }
}
