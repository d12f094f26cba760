//! The `bottle` program. If the first argument names an internal role (guest, sidecar or keeper), the program runs that
//! role; otherwise it runs the command line.

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

use bottle::backend::docker::container_entry;
use bottle::backend::{guest_entry, local, registry};
use bottle::host::Host;
use bottle_contract::names::ASK_COMMAND;

fn main() -> ExitCode {
    // In a bottle, the agent's `ask` command is a link to this program.
    let invoked_as = std::env::args_os().next().unwrap_or_default();
    if Path::new(&invoked_as).file_name() == Some(OsStr::new(ASK_COMMAND)) {
        return bottle_supervise::ask_command::run(std::env::args_os().skip(1));
    }
    // Internal roles run before the command line is set up, because some of them need a process in its
    // initial state.
    match std::env::args_os().nth(1).as_deref().and_then(OsStr::to_str) {
        Some("__guest") => guest_entry::run(),
        Some("__bundle") => local::bundle::run(),
        Some("__egress") => bottle_egress::daemon::run(),
        Some("__git-gate") => bottle_git_gate::run(),
        Some("__supervise") => bottle_supervise::run(),
        Some(container_entry::GUEST_FLAG) => container_entry::guest(),
        Some(container_entry::BUNDLE_FLAG) => container_entry::bundle(),
        Some("__keeper") => keeper(),
        Some("__git-pipe") => bottle::cli::git_pipe(),
        Some("__probe") => bottle::cli::probe_from_inside(),
        #[cfg(feature = "test-parts")]
        Some("__fake-program") => bottle::backend::fake::programs::run(std::env::args_os().skip(2)),
        _ => bottle::cli::run(std::env::args_os()),
    }
}

/// Runs the keeper, the process that owns a bottle. If the keeper cannot read the host's environment and folders, it
/// exits without a message; its client then sees that the connection was closed.
fn keeper() -> ExitCode {
    if bottle_harden::process::leave_folder().is_err() {
        return ExitCode::FAILURE;
    }
    match Host::of_this_process() {
        Ok(host) => bottle::keeper::run(&host, &registry::all(&host)),
        Err(_) => ExitCode::FAILURE,
    }
}
