//! The entry points of the `bottle` program inside containers.
//!
//! Every user of the engine can read a container's configuration. A role's command line therefore contains only how its
//! processes are connected; all other data is sent over the standard streams.

use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::ExitCode;

use bottle_contract::names::{
    ASK_COMMAND, COMMANDS_DIR, GUEST_PROGRAM, LISTENER_DIR, LISTENER_PORTS, PROXY_LOOPBACK,
};
use bottle_guest::{ForwardConfig, GuestConfig, Limits, Programs, Transport};
use rustix::process::{Resource, Rlimit, setrlimit};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::backend::linux::seccomp;
use crate::causes;

/// The first argument of pid 1 in the agent's container.
pub const GUEST_FLAG: &str = "__contained-guest";
/// The first argument of pid 1 in the bundle's container.
pub const BUNDLE_FLAG: &str = "__contained-bundle";

/// In the agent's container, the mount point of the volume that contains the `bottle` program.
pub(super) const PROGRAM_DIR: &str = "/run/bottle/bin";
/// The path of the `bottle` program in the agent's container.
pub(super) const PROGRAM_FILE: &str = "/run/bottle/bin/bottle";
/// The path of the `bottle` program in the sidecars' image.
pub(super) const SIDECARS_PROGRAM: &str = "/usr/local/bin/bottle";

/// The argument of pid 1 in the agent's container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct GuestSpec {
    /// Whether the guest forwards the proxy's ports to sockets. If the agent's container reaches the bundle's container
    /// over a network, the guest forwards nothing.
    pub(super) by_socket: bool,
}

/// Encodes the specification as the one argument of a role.
pub(super) fn to_argument<S: Serialize>(spec: &S) -> String {
    // The encoding never fails for these types, because their map keys are strings.
    serde_json::to_string(spec).unwrap_or_default()
}

/// The entry point of `bottle __contained-guest SPEC`.
#[must_use]
pub fn guest() -> ExitCode {
    report_failure("guest", argument().and_then(|spec| live(&spec)))
}

/// The entry point of `bottle __contained-bundle CONFIG`.
#[must_use]
pub fn bundle() -> ExitCode {
    report_failure("bundle", forbid_core_files().and_then(|()| argument()).map(bottle_bundle::run))
}

fn live(spec: &GuestSpec) -> io::Result<ExitCode> {
    // `GUEST_PROGRAM` is the program's path in every bottle that isolates, on every backend. In a restarted container
    // the link already exists.
    match symlink(PROGRAM_FILE, GUEST_PROGRAM) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    std::fs::create_dir_all(COMMANDS_DIR)?;
    match symlink(PROGRAM_FILE, Path::new(COMMANDS_DIR).join(ASK_COMMAND)) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    forbid_core_files()?;
    // This filter is added to the engine's own filter, so that an agent has the same restrictions on every backend.
    seccomp::install(false).map_err(io::Error::other)?;
    let proxy = spec.by_socket.then(|| ForwardConfig {
        sockets: LISTENER_DIR.into(),
        address: PROXY_LOOPBACK,
        ports: LISTENER_PORTS.to_vec(),
    });
    Ok(bottle_guest::run(GuestConfig {
        transport: Transport::Stdio,
        root: Path::new("/").to_owned(),
        proxy,
        resolver: spec.by_socket,
        programs: Programs::Any,
        // The engine enforces the resource limits, so the guest polls none.
        limits: Limits::default(),
        changed: None,
    }))
}

/// Forbids core files, for engines that do not limit them. They could contain secrets, and fill the disk.
fn forbid_core_files() -> io::Result<()> {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    Ok(setrlimit(Resource::Core, none)?)
}

fn argument<S: DeserializeOwned>() -> io::Result<S> {
    let argument = std::env::args().nth(2).ok_or_else(|| io::Error::other("missing argument"))?;
    serde_json::from_str(&argument).map_err(io::Error::other)
}

fn report_failure(role: &str, ended: io::Result<ExitCode>) -> ExitCode {
    ended.unwrap_or_else(|error| {
        // The engine sends standard error to the keeper, which writes it to the bottle's log.
        let _ =
            io::Write::write_fmt(&mut io::stderr(), format_args!("{role}: {}\n", causes::one_line(&error)));
        ExitCode::FAILURE
    })
}
