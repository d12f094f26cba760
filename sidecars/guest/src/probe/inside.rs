//! Probes what processes inside the bottle can see: the environment, `/proc` and files.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use bottle_policy::secret::Secret;
use bottle_protocol::canary;
use bottle_protocol::session::guest::{Attempt, Reach};
use rustix::process::{DumpableBehavior, dumpable_behavior};

use super::attempt;

/// Strings that are typical of the names of variables with secrets.
const SECRET_NAMES: [&str; 6] = ["TOKEN", "SECRET", "PASSWORD", "API_KEY", "APIKEY", "PRIVATE_KEY"];

/// Files and directories in a developer's home directory that may contain keys and logins.
const SECRET_PLACES: [&str; 8] =
    [".ssh", ".aws", ".gnupg", ".kube", ".docker", ".netrc", ".config/gh", ".bash_history"];

/// Sockets of container engines, which give root access to the host.
const ENGINE_SOCKETS: [&str; 4] = [
    "/var/run/docker.sock",
    "/run/docker.sock",
    "/run/containerd/containerd.sock",
    "/run/podman/podman.sock",
];

/// Prefixes of tokens of well-known services.
const TOKEN_STARTS: [&str; 18] = [
    "sk-",
    "ghp_",
    "gho_",
    "ghs_",
    "ghu_",
    "github_pat_",
    "glpat-",
    "xoxb-",
    "xoxp-",
    "xapp-",
    "AKIA",
    "ASIA",
    "AIza",
    "ya29.",
    "npm_",
    "hf_",
    "eyJ",
    "-----BEGIN",
];

pub(super) fn attempts(given: &BTreeMap<String, Secret>, isolation_only: bool) -> Vec<Attempt> {
    let mut attempts = vec![guest_memory(), processes(), engines()];
    if !isolation_only {
        attempts.extend([environment(given), homes()]);
    }
    attempts
}

/// Reports the environment variables with a name or value that is typical of a real secret. The report does not contain
/// the values. Placeholders and canaries are allowed.
fn environment(given: &BTreeMap<String, Secret>) -> Attempt {
    let suspicious = given.iter().filter(|(name, value)| is_suspicious(name, value.expose()));
    let named: Vec<&str> = suspicious.map(|(name, _)| name.as_str()).collect();
    let target = "secrets in the environment";
    if named.is_empty() {
        attempt(target, "env", Reach::Blocked, "none")
    } else {
        attempt(target, "env", Reach::Reached, format!("values in {}", named.join(", ")))
    }
}

fn is_suspicious(name: &str, value: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    let named = SECRET_NAMES.iter().any(|part| upper.contains(part));
    let shaped = TOKEN_STARTS.iter().any(|start| value.starts_with(start));
    (named || shaped) && !is_placeholder(value) && !canary::is_canary(name, value)
}

/// Returns whether a variable's value is a placeholder.
fn is_placeholder(value: &str) -> bool {
    value.is_empty() || value.to_ascii_lowercase().contains("placeholder")
}

/// Checks that no other process can read the memory or the environment of pid 1. The memory of pid 1 contains the
/// agent's secrets.
fn guest_memory() -> Attempt {
    let (target, file) = ("the memory of the bottle's pid 1", "/proc/1/environ");
    if std::process::id() != 1 {
        return unreadable(target, file);
    }
    // A process can always read its own files in `/proc`. Therefore, this check reads the dumpable flag, which denies
    // access to other processes.
    match dumpable_behavior() {
        Ok(DumpableBehavior::NotDumpable) => {
            attempt(target, file, Reach::Blocked, "not readable by other processes")
        }
        Ok(_) => attempt(target, file, Reach::Reached, "readable by processes of the same user"),
        Err(error) => attempt(target, file, Reach::Unknown, error.to_string()),
    }
}

fn unreadable(target: &str, path: &str) -> Attempt {
    match fs::read(path) {
        Ok(_) => attempt(target, path, Reach::Reached, "it can be read"),
        Err(error) => attempt(target, path, Reach::Blocked, error.kind().to_string()),
    }
}

/// Checks that `/proc` does not show the processes of the host. The check searches for a kernel thread and for systemd.
fn processes() -> Attempt {
    let target = "processes outside";
    let numbers = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let seen: Vec<u32> = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    let init = fs::read_to_string("/proc/1/comm").unwrap_or_default();
    // Pid 2 is a kernel thread only in the host's pid namespace.
    let kernel = fs::read_to_string("/proc/2/comm").is_ok_and(|name| name.trim() == "kthreadd");
    if kernel || init.trim() == "systemd" {
        attempt(target, "/proc", Reach::Reached, format!("{} processes of the machine", seen.len()))
    } else {
        attempt(target, "/proc", Reach::Blocked, format!("{} processes, all of this bottle", seen.len()))
    }
}

fn homes() -> Attempt {
    let target = "your keys and logins";
    let homes = fs::read_dir("/home").into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path());
    let homes: Vec<_> = homes.chain([Path::new("/root").to_owned()]).collect();
    let own = std::env::var_os("HOME").unwrap_or_default();
    let others = homes.iter().filter(|home| home.as_os_str() != own);
    let open = others.flat_map(|home| SECRET_PLACES.map(|place| home.join(place))).find(|path| path.exists());
    match open {
        Some(path) => attempt(target, "files", Reach::Reached, format!("{} is there", path.display())),
        None => attempt(target, "files", Reach::Blocked, "no home but the bottle's own"),
    }
}

fn engines() -> Attempt {
    let target = "a container engine";
    match ENGINE_SOCKETS.iter().find(|path| Path::new(path).exists()) {
        Some(path) => attempt(target, *path, Reach::Reached, "its socket is there"),
        None => attempt(target, "sockets", Reach::Blocked, "none is there"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_readable_file_counts_as_reached() {
        assert_eq!(unreadable("this process", "/proc/self/environ").result, Reach::Reached);
        assert_eq!(unreadable("nothing", "/proc/self/no-such-file").result, Reach::Blocked);
    }

    #[test]
    fn names_suspicious_variables_without_their_values() {
        let given: BTreeMap<String, Secret> = [
            ("GH_TOKEN", "anything at all"),
            ("PLAIN", "ghp_0123456789"),
            ("api_key", "value"),
            ("ANTHROPIC_API_KEY", "sk-ant-placeholder"),
            ("PATH", "/usr/bin"),
            ("EMPTY_TOKEN", ""),
            ("HARBOR_SYNC_KEY", &canary::value("HARBOR_SYNC_KEY", b"what is planted is no secret")),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), Secret::new(value.to_owned())))
        .collect();
        let found = environment(&given);
        assert_eq!(
            (found.result, found.seen.as_str()),
            (Reach::Reached, "values in GH_TOKEN, PLAIN, api_key")
        );
        assert_eq!(environment(&BTreeMap::new()).result, Reach::Blocked);
    }

    #[test]
    fn recognizes_placeholders() {
        assert!(is_placeholder("sk-ant-placeholder-0000"));
        assert!(!is_placeholder("sk-ant-api03-abcdef"));
    }
}
