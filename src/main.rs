//! The `bottle` program. If the first argument names an internal role (guest, sidecar or keeper), the program runs that
//! role; otherwise it runs the command line.

#[cfg(target_os = "linux")]
#[path = "linux_roles.rs"]
mod roles;
#[cfg(not(target_os = "linux"))]
#[path = "no_roles.rs"]
mod roles;

use std::ffi::OsStr;
use std::process::ExitCode;

use bottle_host::Host;
use bottle_keeper::watcher;
use bottle_lib::environments::reaper;
use bottle_lib::registry;

/// The umask of internal roles. Internal roles create private files with explicit modes, and files with the modes of an
/// image. The umask of the user's shell must not change these modes. A command keeps the user's umask, because it also
/// writes files of the user.
const ROLE_UMASK: rustix::fs::RawMode = 0o022;

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|first| first.as_encoded_bytes().starts_with(b"__")) {
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(ROLE_UMASK));
    }
    // Internal roles run before the command line is set up, because some of them need a process in its
    // initial state.
    if let Some(code) = roles::run() {
        return code;
    }
    match std::env::args_os().nth(1).as_deref().and_then(OsStr::to_str) {
        Some("__keeper") => {
            in_background(|host| bottle_keeper::run(host, &registry::all(host), bottle::tool_call))
        }
        Some(watcher::ROLE) => in_background(watch),
        Some(reaper::ROLE) => in_background(reap),
        _ => bottle::cli::run(std::env::args_os()),
    }
}

/// Runs a process in the background: the keeper of a bottle, the watcher of a keeper, or the reaper. If the process
/// cannot read the host's environment and directories, it exits without a message. The client of the process then sees
/// that the connection was closed.
fn in_background(run: impl FnOnce(&Host) -> ExitCode) -> ExitCode {
    if bottle_harden::process::leave_directory().is_err() {
        return ExitCode::FAILURE;
    }
    match Host::of_this_process() {
        Ok(host) => run(&host),
        Err(_) => ExitCode::FAILURE,
    }
}

/// Watches the keeper of the bottle whose slug is the third argument.
fn watch(host: &Host) -> ExitCode {
    match std::env::args().nth(3).map(|slug| slug.parse()) {
        Some(Ok(slug)) => watcher::run(host, &slug),
        _ => ExitCode::FAILURE,
    }
}

/// Runs the reaper, which stops idle bottles of tasks.
fn reap(host: &Host) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.map(|runtime| runtime.block_on(reaper::run(host))) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
