//! This program inside a container: what it is started as, and its first steps there.
//!
//! A container's configuration is readable for whoever may ask the engine, so a role's command line says where
//! it stands and nothing else. Everything else comes over its standard streams.

use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::ExitCode;

use bottle_contract::names::{
    ASK_COMMAND, COMMANDS_DIR, GUEST_PROGRAM, LISTENER_DIR, LISTENER_PORTS, PROXY_LOOPBACK,
};
use bottle_guest::{ForwardConfig, GuestConfig, Limits, Programs, Transport};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::backend::linux::seccomp;

/// Pid 1 of the agent's container.
pub const GUEST_FLAG: &str = "__contained-guest";
/// Pid 1 of the bundle's.
pub const BUNDLE_FLAG: &str = "__contained-bundle";

/// Where the volume with this program is seen in the agent's container.
pub(super) const PROGRAM_DIR: &str = "/run/bottle/bin";
/// This program there.
pub(super) const PROGRAM_FILE: &str = "/run/bottle/bin/bottle";
/// This program in the sidecars' image.
pub(super) const SIDECARS_PROGRAM: &str = "/usr/local/bin/bottle";

/// What pid 1 of the agent's container is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct GuestSpec {
    /// Whether the proxy comes by socket; over a network it needs nothing of the guest.
    pub(super) by_socket: bool,
}

/// A role's one argument.
pub(super) fn to_argument<S: Serialize>(spec: &S) -> String {
    // Our own types: no map with a key that is no text, so there is always a text.
    serde_json::to_string(spec).unwrap_or_default()
}

/// `bottle __contained-guest SPEC`: the role's whole life.
#[must_use]
pub fn guest() -> ExitCode {
    say_failure("guest", argument().and_then(|spec| live(&spec)))
}

/// `bottle __contained-bundle CONFIG`: the role's whole life.
#[must_use]
pub fn bundle() -> ExitCode {
    say_failure("bundle", argument().map(bottle_bundle::run))
}

fn live(spec: &GuestSpec) -> io::Result<ExitCode> {
    // The program's name in every bottle, on every backend. One that is there is a restarted container's.
    match symlink(PROGRAM_FILE, GUEST_PROGRAM) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    std::fs::create_dir_all(COMMANDS_DIR)?;
    match symlink(PROGRAM_FILE, Path::new(COMMANDS_DIR).join(ASK_COMMAND)) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // On top of the engine's own: the same for an agent on every backend.
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
        // The engine's.
        limits: Limits::default(),
        changed: None,
    }))
}

fn argument<S: DeserializeOwned>() -> io::Result<S> {
    let argument = std::env::args().nth(2).ok_or_else(|| io::Error::other("it was told nothing"))?;
    serde_json::from_str(&argument).map_err(io::Error::other)
}

fn say_failure(role: &str, ended: io::Result<ExitCode>) -> ExitCode {
    ended.unwrap_or_else(|error| {
        // The engine carries it to the bottle's log.
        let _ = io::Write::write_fmt(&mut io::stderr(), format_args!("{role}: {error}\n"));
        ExitCode::FAILURE
    })
}
