//! Labels a bottle's processes by their command lines. Command lines stay readable even if other processes of the
//! bottle crash.
//!
//! The command line `bottle __guest <home> <slug>` contains the role, the home's hash and the slug. The command lines
//! of the bundle and the sidecars have the same form. An agent runs under the same host user id as pid 1 of its bottle,
//! and could forge such a command line. However, the agent's processes run one pid namespace deeper, which they cannot
//! hide. A label is therefore valid only if the process has the namespace depth at which this program starts the role.

use std::ffi::OsString;
use std::fs;
use std::io;

use bottle_host::process::{ProcessId, is_gone};
use bottle_policy::names::Slug;

use super::Scope;

/// The maximum number of bytes read from a file `cmdline` or `status` in `/proc`. These files of this program's
/// processes are shorter. The rest of a longer file is ignored.
const PROC_FILE_MAX: usize = 4096;

/// The role of a process in its bottle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Pid 1 of the bottle, or the short-lived process that starts it.
    Guest,
    /// The bundle, which is the parent process of the sidecars.
    Bundle,
    /// The egress proxy.
    Egress,
    /// The git gate.
    Gate,
    /// The supervise sidecar, which is an MCP server.
    Supervise,
}

impl Role {
    pub(crate) const ALL: [Self; 5] = [Self::Guest, Self::Bundle, Self::Egress, Self::Gate, Self::Supervise];

    /// The first argument of a process in this role.
    pub(crate) fn flag(self) -> &'static str {
        match self {
            Self::Guest => "__guest",
            Self::Bundle => "__bundle",
            Self::Egress => "__egress",
            Self::Gate => "__git-gate",
            Self::Supervise => "__supervise",
        }
    }

    /// The name of the sidecar in this role, as the bottle's record has it. `None` if the role is no sidecar's.
    pub(crate) fn sidecar(self) -> Option<&'static str> {
        match self {
            Self::Guest | Self::Bundle => None,
            Self::Egress => Some("egress"),
            Self::Gate => Some("git-gate"),
            Self::Supervise => Some("supervise"),
        }
    }

    /// The description of the role in messages.
    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::Guest => "the bottle's first process",
            Self::Bundle => "the bottle's sidecars",
            Self::Egress => "the bottle's egress proxy",
            Self::Gate => "the bottle's git gate",
            Self::Supervise => "the bottle's supervise queue",
        }
    }

    /// The [`bottle_backend::Resource::kind`] of a process in this role.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::Guest => "guest-process",
            Self::Bundle => "bundle-process",
            Self::Egress => "egress-process",
            Self::Gate => "git-gate-process",
            Self::Supervise => "supervise-process",
        }
    }
}

/// A running process with a label of this scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LabelledProcess {
    /// The role of the process.
    pub(crate) role: Role,
    /// The bottle of the process.
    pub(crate) slug: Slug,
    /// The id of the process.
    pub(crate) process: ProcessId,
}

/// Returns the command-line arguments of a process in this role, after the program's name.
pub(crate) fn arguments(role: Role, home_hash: &str, slug: &Slug) -> [OsString; 3] {
    [role.flag().into(), home_hash.into(), slug.as_str().into()]
}

/// Finds all running processes that have a label of this scope.
///
/// # Errors
/// When `/proc` cannot be read.
pub(crate) fn find(scope: &Scope) -> io::Result<Vec<LabelledProcess>> {
    find_if(scope, |_| true)
}

/// Every labelled process of one bottle.
///
/// # Errors
/// When `/proc` cannot be read.
pub(crate) fn find_of(scope: &Scope, slug: &Slug) -> io::Result<Vec<LabelledProcess>> {
    find_if(scope, |label| label == slug)
}

fn find_if(scope: &Scope, is_wanted: impl Fn(&Slug) -> bool) -> io::Result<Vec<LabelledProcess>> {
    let own_depth = depth("self")?.unwrap_or(1);
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
        match inspect(pid, scope, own_depth, &is_wanted) {
            Ok(Some(labelled)) => found.push(labelled),
            Ok(None) => {}
            Err(error) if is_gone(&error) || error.kind() == io::ErrorKind::PermissionDenied => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

fn inspect(
    pid: u32,
    scope: &Scope,
    own_depth: usize,
    is_wanted: impl Fn(&Slug) -> bool,
) -> io::Result<Option<LabelledProcess>> {
    let label = parse(&read_bounded(&format!("/proc/{pid}/cmdline"))?, scope);
    let Some((role, slug)) = label.filter(|(_, slug)| is_wanted(slug)) else { return Ok(None) };
    let status = read_bounded(&format!("/proc/{pid}/status"))?;
    if !is_at_role_depth(&String::from_utf8_lossy(&status), role, own_depth) {
        return Ok(None);
    }
    Ok(ProcessId::of(pid)?.map(|process| LabelledProcess { role, slug, process }))
}

fn parse(cmdline: &[u8], scope: &Scope) -> Option<(Role, Slug)> {
    let mut arguments = cmdline.split(|b| *b == 0).skip(1).map(std::str::from_utf8);
    let flag = arguments.next()?.ok()?;
    let role = Role::ALL.into_iter().find(|role| role.flag() == flag)?;
    if arguments.next()?.ok()? != scope.label {
        return None;
    }
    Some((role, arguments.next()?.ok()?.parse().ok()?))
}

/// Whether the process has the pid namespace depth of its role. Every role may have the depth of this program,
/// `own_depth`. A guest may also be one level deeper, as pid 1 of its namespace.
fn is_at_role_depth(status: &str, role: Role, own_depth: usize) -> bool {
    let Some(pids) = namespace_pids(status) else { return false };
    pids.len() == own_depth
        || (role == Role::Guest && pids.len() == own_depth + 1 && pids.last() == Some(&"1"))
}

fn depth(pid: &str) -> io::Result<Option<usize>> {
    let status = read_bounded(&format!("/proc/{pid}/status"))?;
    Ok(namespace_pids(&String::from_utf8_lossy(&status)).map(|pids| pids.len()))
}

fn namespace_pids(status: &str) -> Option<Vec<&str>> {
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    Some(line.split_ascii_whitespace().collect())
}

fn read_bounded(path: &str) -> io::Result<Vec<u8>> {
    use std::io::Read;
    let mut bytes = Vec::with_capacity(PROC_FILE_MAX);
    fs::File::open(path)?.take(PROC_FILE_MAX as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_only_command_lines_of_this_home_with_valid_slugs() {
        let scope = Scope {
            home_inside: "home/agent",
            label: "0123abcd".to_owned(),
            runtime: "/run/x".into(),
            state: "/state".into(),
            layers: "agent",
            snapshots: "/snapshots".into(),
            program: "/bottle".into(),
            prespawned_roles: &[],
            prespawned: super::super::roles::Prespawned::default(),
        };
        let home = scope.label.as_str();
        let line = |parts: &[&str]| parts.join("\0").into_bytes();
        let (role, slug) = parse(&line(&["bottle", "__guest", home, "a-1", ""]), &scope).expect("ours");
        assert_eq!((role, slug.as_str()), (Role::Guest, "a-1"));
        let (role, slug) =
            parse(&line(&["/proc/self/exe", "__egress", home, "a-1", "{}"]), &scope).expect("ours");
        assert_eq!((role, slug.as_str()), (Role::Egress, "a-1"));
        for other in [
            line(&["bottle", "__guest", "ffffffff", "a-1"]),
            line(&["bottle", "__guest", home, "../a"]),
            line(&["bottle", "__guest", home]),
            line(&["bottle", "start", home, "a-1"]),
            line(&["bottle", "__bundle", "0123abcd.fake", "a-1"]),
            line(&["__guest", home, "a-1"]),
            b"\xff\0\xfe".to_vec(),
            Vec::new(),
        ] {
            assert_eq!(parse(&other, &scope), None, "{other:?}");
        }
    }

    #[test]
    fn rejects_a_label_that_an_agents_process_forged() {
        for (status, role, believed) in [
            ("NSpid:\t77\n", Role::Bundle, true),
            ("NSpid:\t77\t1\n", Role::Guest, true),
            ("NSpid:\t77\n", Role::Guest, true),
            ("NSpid:\t77\t5\n", Role::Guest, false),
            ("NSpid:\t77\t1\n", Role::Bundle, false),
            ("NSpid:\t77\t5\t1\n", Role::Guest, false),
            ("Name:\tx\n", Role::Guest, false),
        ] {
            assert_eq!(is_at_role_depth(status, role, 1), believed, "{status:?} {role:?}");
        }
    }
}
