//! Runs the roles of the `bottle` program inside containers. In a container, `bottle` is always a Linux program.

use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::ExitCode;

use bottle_backend::restrictions::seccomp;
use bottle_guest::{ForwardConfig, GuestConfig, Limits, Programs, Transport};
use bottle_host::causes;
use bottle_policy::names::{
    ASK_COMMAND, COMMANDS_DIR, GUEST_PROGRAM, LISTENER_DIR, LISTENER_PORTS, PROXY_LOOPBACK,
};
use rustix::process::{Resource, Rlimit, setrlimit};
use serde::de::DeserializeOwned;

use super::container_entry::{BUNDLE_FLAG, GUEST_FLAG, GuestSpec, PROGRAM_FILE};
use super::container_live;

/// Runs the role of the command line `bottle FLAG SPEC`. Returns `None` if `flag` does not name a role in containers.
#[must_use]
pub fn run(flag: &str) -> Option<ExitCode> {
    match flag {
        GUEST_FLAG => Some(report_failure("guest", argument().and_then(|spec| live(&spec)))),
        BUNDLE_FLAG => Some(report_failure(
            "bundle",
            forbid_core_files().and_then(|()| argument()).map(bottle_bundle::run),
        )),
        _ => None,
    }
}

fn live(spec: &GuestSpec) -> io::Result<ExitCode> {
    // `GUEST_PROGRAM` is the program's path in every isolated bottle, on every backend. In a restarted container the
    // link already exists.
    match symlink(PROGRAM_FILE, GUEST_PROGRAM) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    std::fs::create_dir_all(COMMANDS_DIR)?;
    match symlink(PROGRAM_FILE, Path::new(COMMANDS_DIR).join(ASK_COMMAND)) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let confine = spec.live.as_ref().map(container_live::confine).transpose()?;
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
        // The engine enforces the resource limits, so the guest polls no limits.
        limits: Limits::default(),
        changed: None,
        confine,
    }))
}

/// Forbids core files, because some engines do not limit the size of core files. Core files could contain secrets, and
/// fill the disk.
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
