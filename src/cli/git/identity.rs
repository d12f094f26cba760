//! Reads the user's git identity for a folder.

use std::ffi::OsStr;
use std::path::Path;

use super::Repository;
use super::host::program;
use crate::host::Host;
use crate::plan::HostGitUser;

/// The variables that say where the user's own configuration is.
const VARIABLES: [&str; 4] = ["HOME", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"];

/// The `user.name` and `user.email` for this folder: those of its repository, otherwise those of the user, or of the
/// system. The repository's configuration is read as data, so that neither its includes nor a program in it have an
/// effect. Conditional includes of the user are not evaluated. What cannot be read is missing.
pub(crate) fn identity(host: &Host, folder: &Path) -> HostGitUser {
    let repository = Repository::containing(folder).ok().flatten();
    let own = |name| repository.as_ref().and_then(|repository| repository.data().setting("user", name));
    let (name, email) = (own("name"), own("email"));
    if name.is_some() && email.is_some() {
        return HostGitUser { name, email };
    }
    let variables = VARIABLES
        .iter()
        .filter_map(|name| host.env.get(OsStr::new(name)).map(|value| (*name, value.as_os_str())));
    let read =
        program(host).ok().and_then(|git| git.user_configuration(r"^user\.(name|email)$", variables).ok());
    let user = read.map(|read| parse(&read)).unwrap_or_default();
    HostGitUser { name: name.or(user.name), email: email.or(user.email) }
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
