//! The roles of this program inside bottles and bundles, which always run on Linux.

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

use bottle_containers::apple::roles;
use bottle_containers::docker::container_roles;
use bottle_policy::names::ASK_COMMAND;
use bottle_sandbox::smolvm::machine_entry;
use bottle_sandbox::{guest_entry, local};

/// Runs the role that the program's name or first argument selects. Returns `None` if they select none of these roles.
pub(crate) fn run() -> Option<ExitCode> {
    // In a bottle, the agent's `ask` command is a link to this program.
    let invoked_as = std::env::args_os().next().unwrap_or_default();
    if Path::new(&invoked_as).file_name() == Some(OsStr::new(ASK_COMMAND)) {
        return Some(bottle_supervise::ask_command::run(std::env::args_os().skip(1)));
    }
    Some(match std::env::args_os().nth(1).as_deref().and_then(OsStr::to_str)? {
        "__guest" => guest_entry::run(),
        machine_entry::FLAG => machine_entry::run(),
        "__bundle" => local::bundle::run(),
        "__egress" => bottle_egress::daemon::run(),
        "__git-gate" => bottle_git_gate::run(),
        "__supervise" => bottle_supervise::run(),
        "__probe" => bottle::cli::probe_from_inside(),
        #[cfg(feature = "test-parts")]
        "__fake-program" => bottle_sandbox::fake::programs::run(std::env::args_os().skip(2)),
        other => return container_roles::run(other).or_else(|| roles::run(other)),
    })
}
