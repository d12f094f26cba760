//! Reads the user's git identity for a folder.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::host::Host;
use crate::plan::HostGitUser;

/// The variables that would make git read another repository than that of the folder, or another configuration.
const REMOVED: [&str; 6] =
    ["GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_CONFIG", "GIT_CONFIG_COUNT", "GIT_CONFIG_PARAMETERS"];

/// The effective `user.name` and `user.email` in this folder: those of its repository, otherwise those of the user, or
/// of the system. Reading them runs no program of the repository. Empty if git is not installed.
pub(crate) fn identity(host: &Host, folder: &Path) -> HostGitUser {
    let mut command = Command::new("git");
    command.env_clear().envs(&host.env);
    for name in REMOVED {
        command.env_remove(name);
    }
    command.arg("-C").arg(folder).args(["config", "--null", "--get-regexp", r"^user\.(name|email)$"]);
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output();
    output.map(|output| parse(&output.stdout)).unwrap_or_default()
}

/// Parses entries `KEY\nVALUE\0`. The last value of a key is the effective one.
fn parse(output: &[u8]) -> HostGitUser {
    let text = String::from_utf8_lossy(output);
    let last = |key: &str| {
        let values = text.split('\0').filter_map(|entry| entry.split_once('\n'));
        values.filter(|(found, _)| *found == key).map(|(_, value)| value.to_owned()).next_back()
    };
    HostGitUser { name: last("user.name"), email: last("user.email") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_of_a_key_is_effective() {
        let user = parse(b"user.name\nAda\0user.email\na@example.com\0user.name\nAda L.\0user.email\0");
        assert_eq!(user.name.as_deref(), Some("Ada L."));
        assert_eq!(user.email.as_deref(), Some("a@example.com"));
        assert_eq!(parse(b""), HostGitUser::default());
    }
}
