//! Paths that a command names, evaluated without access to a file system.

use crate::text::{NUMBER, SOMETHING, UNKNOWN};

/// The system directories. The contents of these directories are protected too.
const SYSTEM: &[&str] = &["bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "proc", "sbin", "sys", "usr"];
/// Directories directly below `/` that hold data of users and services.
const TOP: &[&str] = &[
    "Applications",
    "Library",
    "System",
    "Users",
    "home",
    "media",
    "mnt",
    "opt",
    "root",
    "run",
    "srv",
    "var",
];
/// Directories that belong to users although they are below a system directory.
const OURS: &[&str] = &["/usr/local/", "/usr/src/", "/dev/shm/"];

/// A normalised path: `/a/b`, `~/a`, or relative to the directory in which the command line starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place(String);

impl Place {
    /// Resolves `path` against the directory `from`.
    pub(crate) fn of(path: &str, from: &str) -> Self {
        let joined = if path.starts_with(['/', '~']) { path.to_owned() } else { format!("{from}/{path}") };
        Self(normal(&joined))
    }

    /// The path as text.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// If the last component is a pattern for all entries of a directory, such as `*`, returns this directory.
    /// Otherwise returns the path itself.
    fn listed(&self) -> &str {
        match self.0.rsplit_once('/') {
            Some((directory, "*" | ".*" | "?*" | "*.*" | "**" | ".?*" | ".[!.]*")) => {
                if directory.is_empty() { "/" } else { directory }
            }
            _ => &self.0,
        }
    }

    /// Whether the path is `/`, or a pattern for everything in `/`.
    pub(crate) fn is_root(&self) -> bool {
        self.listed() == "/"
    }

    /// Whether the loss of this path destroys more than the workspace: the path is the root, a system directory or
    /// anything in it, the home directory, or a directory above the starting directory.
    pub(crate) fn is_protected(&self) -> bool {
        let listed = self.listed();
        if listed == "/" || matches!(listed, "~" | "/root") || is_above(listed) || self.is_system() {
            return true;
        }
        let mut parts = listed.split('/').skip(1);
        let (first, second, rest) = (parts.next().unwrap_or_default(), parts.next(), parts.next());
        let is_home_of_user = matches!(first, "home" | "Users") && rest.is_none();
        listed.starts_with('/') && (second.is_none() && matches_any(first, TOP) || is_home_of_user)
    }

    /// Whether the path is a system directory or is in one.
    pub(crate) fn is_system(&self) -> bool {
        let listed = self.listed();
        let Some(path) = listed.strip_prefix('/') else { return false };
        let first = path.split('/').next().unwrap_or_default();
        matches_any(first, SYSTEM)
            && !OURS.iter().any(|ours| self.0.starts_with(ours))
            && !is_own_process(&self.0)
    }

    /// Whether bash opens a connection if a redirection names the path.
    pub(crate) fn is_connection(&self) -> bool {
        is_connection(&self.0)
    }

    /// Whether the path is a device, except devices that every program uses, such as `/dev/null`.
    pub(crate) fn is_device(&self) -> bool {
        let Some(name) = self.0.strip_prefix("/dev/") else { return false };
        let first = name.split('/').next().unwrap_or_default();
        let is_harmless = matches!(
            first,
            "null"
                | "zero"
                | "full"
                | "random"
                | "urandom"
                | "stdin"
                | "stdout"
                | "stderr"
                | "fd"
                | "shm"
                | "tty"
                | "pts"
                | "ptmx"
                | "tcp"
                | "udp"
                | "console"
        );
        !is_harmless && !first.is_empty()
    }
}

/// Whether a path is a connection that bash opens for a redirection.
fn is_connection(path: &str) -> bool {
    path.starts_with("/dev/tcp/") || path.starts_with("/dev/udp/")
}

/// Whether a path is an open file of the process itself, such as `/proc/self/fd/1`, or a harmless device.
fn is_own_process(path: &str) -> bool {
    ["/proc/self/fd/", "/dev/fd/", "/dev/std", "/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/pts/"]
        .iter()
        .any(|own| path.starts_with(own))
        || matches!(path, "/dev/random" | "/dev/urandom")
        || is_connection(path)
}

/// Whether a path is above the directory in which the command line starts.
fn is_above(path: &str) -> bool {
    path.split('/').all(|part| part == "..")
}

fn matches_any(pattern: &str, names: &[&str]) -> bool {
    names.iter().any(|name| matches(pattern, name))
}

/// Resolves `.`, `..` and repeated `/` lexically.
fn normal(path: &str) -> String {
    let (anchor, rest) = if path.starts_with('/') {
        ("/", path)
    } else if path.starts_with('~') {
        let (home, rest) = path.split_once('/').unwrap_or((path, ""));
        (if home == "~root" || home == "~" { "~" } else { "/home" }, rest)
    } else {
        ("", path)
    };
    // Another user's home directory is treated as a directory below `/home`.
    let mut anchor = if anchor == "/home" { "/home/user" } else { anchor }.to_owned();
    let mut parts: Vec<&str> = Vec::new();
    for part in rest.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            ".." => match anchor.as_str() {
                "/" => {}
                "~" | "/home/user" => "/home".clone_into(&mut anchor),
                "/home" => "/".clone_into(&mut anchor),
                _ => parts.push(".."),
            },
            part => parts.push(part),
        }
    }
    let path = parts.join("/");
    match (anchor.as_str(), path.is_empty()) {
        ("", true) => ".".to_owned(),
        // The `~` is the first character of a file name, and not the home directory.
        ("", false) if path.starts_with('~') => format!("./{path}"),
        ("", false) => path,
        (anchor, true) => anchor.to_owned(),
        ("/", false) => format!("/{path}"),
        (anchor, false) => format!("{anchor}/{path}"),
    }
}

/// Whether the file name `name` matches the pattern, in which a set of characters (`[…]`) matches any character. As in
/// a shell, a pattern matches the dot at the start of a name only with a dot. A pattern with unknown parts matches no
/// name, because it would otherwise match every name.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    if pattern.contains([UNKNOWN, SOMETHING, NUMBER]) || name.starts_with('.') && !pattern.starts_with('.') {
        return false;
    }
    if !pattern.contains(['*', '?', '[']) {
        return pattern == name;
    }
    let pattern: Vec<char> = without_sets(pattern);
    let name: Vec<char> = name.chars().collect();
    // `reached[i]`: whether the pattern so far matches the first i characters.
    let mut reached = vec![false; name.len() + 1];
    reached[0] = true;
    for at in pattern {
        if at == '*' {
            for index in 1..reached.len() {
                reached[index] |= reached[index - 1];
            }
        } else {
            for index in (1..reached.len()).rev() {
                reached[index] = reached[index - 1] && (at == '?' || at == name[index - 1]);
            }
            reached[0] = false;
        }
    }
    reached[name.len()]
}

/// The pattern with `?` instead of each `[…]`.
fn without_sets(pattern: &str) -> Vec<char> {
    let mut simple = Vec::new();
    let mut rest = pattern.chars();
    while let Some(at) = rest.next() {
        match (at, rest.as_str().find(']')) {
            ('[', Some(end)) => {
                rest = rest.as_str()[end + 1..].chars();
                simple.push('?');
            }
            _ => simple.push(at),
        }
    }
    simple
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protected_places() {
        for (path, from) in [
            ("/", "."),
            ("//", "."),
            ("/*", "."),
            ("/.", "."),
            ("/tmp/..", "."),
            ("/etc", "."),
            ("/etc/", "."),
            ("/etc/ssl", "."),
            ("/usr/*", "."),
            ("/e*", "."),
            ("/???", "."),
            ("~", "."),
            ("~/", "."),
            ("~/*", "."),
            ("~root", "."),
            ("/root", "."),
            ("/home", "."),
            ("/home/*", "."),
            ("/home/ann", "."),
            ("..", "."),
            ("../..", "."),
            ("../*", "."),
            ("~/..", "."),
            ("*", "/"),
            (".", "/"),
            ("etc", "/"),
            ("*", "~"),
            ("/usr/local", "."),
            ("..", "~"),
        ] {
            assert!(Place::of(path, from).is_protected(), "{path} in {from}");
        }
        for (path, from) in [
            (".", "."),
            ("*", "."),
            ("build", "."),
            ("/tmp", "."),
            ("/tmp/*", "."),
            ("/tmp/x", "."),
            ("~/work", "."),
            ("/usr/local/bin/x", "."),
            ("../x", "."),
            ("/dev/shm/x", "."),
            ("./~", "."),
            ("/workspace", "."),
            ("/home/ann/x", "."),
            ("/var/tmp/x", "."),
            ("x", "/tmp"),
            ("*", "/home/ann/x"),
            ("*", ".."),
        ] {
            let is_protected = Place::of(path, from).is_protected();
            assert_eq!(is_protected, from == "..", "{path} in {from}");
        }
    }

    #[test]
    fn devices() {
        for path in ["/dev/sda", "/dev/nvme0n1", "/dev/disk/by-id/x", "/dev/mem", "/dev/../dev/vda"] {
            assert!(Place::of(path, ".").is_device(), "{path}");
        }
        for path in ["/dev/null", "/dev/stdout", "/dev/fd/3", "/dev/shm/x", "/dev/tty", "dev/sda"] {
            assert!(!Place::of(path, ".").is_device(), "{path}");
        }
    }

    #[test]
    fn patterns_match_names() {
        for (pattern, name, is_match) in [
            ("etc", "etc", true),
            ("e*", "etc", true),
            ("?tc", "etc", true),
            ("[a-f]tc", "etc", true),
            ("*", "etc", true),
            ("e*c*", "etc", true),
            ("e?", "etc", false),
            (".s*h", ".ssh", true),
            ("*", ".ssh", false),
            ("?ssh", ".ssh", false),
            ("[.]ssh", ".ssh", false),
            ("", "etc", false),
            ("[", "[", true),
        ] {
            assert_eq!(matches(pattern, name), is_match, "{pattern} {name}");
        }
    }
}
