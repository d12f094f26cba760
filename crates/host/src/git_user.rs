//! Reads the user's own git configuration, which is trusted: the identity for a directory, and the ignore rules and
//! attributes that apply in every repository of the user.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use bottle_repository::git::GitError;
use bottle_repository::{Program, Repository, ident, ignore_rules, locate};

use super::Host;

/// The environment variables that say where the user's own git configuration is.
const VARIABLES: [&str; 4] = ["HOME", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"];

/// The parts of the user's own git configuration that a bottle gets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostGitUser {
    /// `user.name`.
    pub name: Option<String>,
    /// `user.email`.
    pub email: Option<String>,
    /// The content of the user's ignore file (`core.excludesFile`). Empty if there is no such file.
    pub ignore_rules: Vec<u8>,
    /// The content of the user's attribute file (`core.attributesFile`). Empty if there is no such file.
    pub attributes: Vec<u8>,
}

impl HostGitUser {
    /// Returns the configuration for a bottle whose workspace is a copy of this directory, or the directory itself.
    ///
    /// `user.name` and `user.email` come from the directory's repository, or else from the user's or the system's
    /// configuration. The repository's configuration is read as data: its includes are not followed, and programs that
    /// it names do not run. Conditional includes of the user are not evaluated. Unreadable configuration is ignored.
    /// The parts of a value that git would not write into a commit are removed.
    pub fn of(host: &Host, directory: &Path) -> Self {
        let (name, email) = identity(host, directory);
        let cleaned =
            |value: Option<String>| value.map(|value| ident::clean(&value)).filter(|value| !value.is_empty());
        let content = |path: Option<PathBuf>| path.and_then(|path| ignore_rules::read_users(&path).ok());
        Self {
            name: cleaned(name),
            email: cleaned(email),
            ignore_rules: content(ignore_file(host)).unwrap_or_default(),
            attributes: content(attributes_file(host)).unwrap_or_default(),
        }
    }
}

fn identity(host: &Host, directory: &Path) -> (Option<String>, Option<String>) {
    let located = locate::locate(directory).ok().flatten().filter(|_| directory.is_dir());
    let repository = located.and_then(|located| Repository::open(located).ok());
    let own = |name| repository.as_ref().and_then(|repository| repository.setting("user", name));
    let (name, email) = (own("name"), own("email"));
    if name.is_some() && email.is_some() {
        return (name, email);
    }
    let read = program(host)
        .ok()
        .and_then(|git| git.user_configuration(r"^user\.(name|email)$", variables(host)).ok());
    let (of_user, email_of_user) = read.map(|read| parse(&read)).unwrap_or_default();
    (name.or(of_user), email.or(email_of_user))
}

/// Finds git on this machine.
///
/// # Errors
/// Returns [`GitError::Missing`].
pub fn program(host: &Host) -> Result<Program, GitError> {
    Program::find(host.env.get(OsStr::new("PATH")).map(|path| path.as_os_str()).unwrap_or_default())
}

/// Returns the path of the user's own ignore file, which may not exist. `None` if git is not installed on this machine.
pub fn ignore_file(host: &Host) -> Option<PathBuf> {
    program(host).ok()?.user_ignore_file(&variables(host)).ok().flatten()
}

/// Returns the path of the user's own attribute file, which may not exist. `None` if git is not installed on this
/// machine.
pub fn attributes_file(host: &Host) -> Option<PathBuf> {
    program(host).ok()?.user_attributes_file(&variables(host)).ok().flatten()
}

/// Returns the environment variables that say where the user's own git configuration is, with their values.
pub fn variables(host: &Host) -> Vec<(&'static str, &OsStr)> {
    let set = |name: &&'static str| host.env.get(OsStr::new(name)).map(|value| (*name, value.as_os_str()));
    VARIABLES.iter().filter_map(set).collect()
}

/// Returns the user's name and email address from entries of the form `KEY\nVALUE\0`. If a key occurs more than once,
/// its last value applies.
fn parse(output: &[u8]) -> (Option<String>, Option<String>) {
    let text = String::from_utf8_lossy(output);
    let last = |key: &str| {
        let values = text.split('\0').filter_map(|entry| entry.split_once('\n'));
        values.filter(|(found, _)| *found == key).map(|(_, value)| value.to_owned()).next_back()
    };
    (last("user.name"), last("user.email"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(home: &Path) -> Host {
        let env = [("PATH", std::env::var_os("PATH").unwrap_or_default()), ("HOME", home.into())];
        Host {
            env: env.map(|(name, value)| (name.into(), value)).into(),
            cwd: home.to_owned(),
            home: home.join(".bottle"),
            user_home: home.to_owned(),
            runtime: home.join("run"),
            program: "/bin/bottle".into(),
        }
    }

    /// A project can write any value into the configuration of its repository.
    #[test]
    fn a_value_is_what_git_writes_of_it() {
        let home = tempfile::tempdir().expect("a directory");
        let top = home.path().join("project");
        let git = std::process::Command::new("git").args(["init", "-q"]).arg(&top).status().expect("git");
        assert!(git.success());
        let config = "[user]\n\tname = \"a\\nb <x>\"\n\temail = \"<a@b>\\n\"\n";
        std::fs::write(top.join(".git/config"), config).expect("written");
        let user = HostGitUser::of(&host(home.path()), &top);
        assert_eq!((user.name.as_deref(), user.email.as_deref()), (Some("ab x"), Some("a@b")));
    }

    #[test]
    fn the_last_value_of_a_key_is_effective() {
        let user = parse(b"user.name\nAda\0user.email\na@example.com\0user.name\nAda L.\0user.email\0");
        assert_eq!((user.0.as_deref(), user.1.as_deref()), (Some("Ada L."), Some("a@example.com")));
        assert_eq!(parse(b""), (None, None));
    }

    /// The ignore rules and attributes come from the same files that git reads.
    #[test]
    fn reads_the_files_that_the_configuration_names_or_the_usual_ones() {
        let home = tempfile::tempdir().expect("a directory");
        let write = |path: &str, text: &str| {
            let path = home.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            std::fs::write(path, text).expect("written");
        };
        let read = || {
            let user = HostGitUser::of(&host(home.path()), home.path());
            [user.ignore_rules, user.attributes].map(|bytes| String::from_utf8(bytes).expect("text"))
        };
        assert_eq!(read(), ["", ""]);
        write(".config/git/ignore", "*.log\n");
        write(".config/git/attributes", "*.cs eol=crlf\n");
        assert_eq!(read(), ["*.log\n", "*.cs eol=crlf\n"]);
        write("mine", "*.tmp\n");
        write(".gitconfig", "[core]\n\texcludesFile = ~/mine\n\tattributesFile = ~/none\n");
        assert_eq!(read(), ["*.tmp\n", ""]);
        write("mine", &"#".repeat(2 << 20));
        assert_eq!(read(), ["", ""], "a file without a bound is not read");
    }
}
