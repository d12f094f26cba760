//! Runs `bottle __guest`, the process that becomes pid 1 on the linux backend.
//!
//! This code runs before the command line is parsed and before logging or an async runtime is set up, because fork and
//! unshare need a single-threaded process.

use std::io;
use std::process::ExitCode;

use bottle_backend::restrictions::set_id;
use bottle_guest::{ForwardConfig, GuestConfig, Programs, Transport};
use bottle_host::causes;
use bottle_policy::names;

use super::guest_spec::{GuestSpec, transport};
use super::linux::enter::{Entered, enter};
use super::linux::spec::SandboxSpec;
use super::linux::sys::close_inherited;
use super::local::spawn_ipc::ChildEnd;

/// The entry point of `bottle __guest`.
#[must_use]
pub fn run() -> ExitCode {
    match receive_and_run() {
        Ok(code) => code,
        Err(error) => {
            // Writes the error to the bottle's log. The backend notices the failure because the handoff connection
            // closes.
            let _ = io::Write::write_fmt(
                &mut io::stderr(),
                format_args!("guest: {}\n", causes::one_line(&error)),
            );
            ExitCode::FAILURE
        }
    }
}

fn receive_and_run() -> io::Result<ExitCode> {
    bottle_harden::process::leave_directory().map_err(io::Error::other)?;
    close_inherited()?;
    let (child_end, spec, fds) = ChildEnd::receive::<GuestSpec>()?;
    match spec {
        #[cfg(feature = "test-parts")]
        GuestSpec::Plain(spec) => super::fake::guest::run(child_end, spec, fds),
        GuestSpec::Sandbox(spec) => run_sandbox(&spec, child_end, || transport(fds)),
    }
}

/// Becomes pid 1 of the sandbox and runs the guest. Returns immediately in the outer process, which only starts pid 1,
/// and in a trial sandbox. Only pid 1 calls `transport`.
///
/// # Errors
/// When the sandbox cannot be set up. This failure has already been reported to the backend.
pub(super) fn run_sandbox(
    spec: &SandboxSpec,
    child_end: ChildEnd,
    transport: impl FnOnce() -> io::Result<Transport>,
) -> io::Result<ExitCode> {
    let changed = match enter(spec, child_end).map_err(io::Error::other)? {
        Entered::Outer => return Ok(ExitCode::SUCCESS),
        // A sandbox without a bottle's directories is a trial sandbox, which only tests the setup. It exits after the
        // setup succeeded.
        Entered::Inner(_) if spec.own.is_none() => return Ok(ExitCode::SUCCESS),
        Entered::Inner(changed) => changed,
    };
    let is_live = spec.own.as_ref().is_some_and(|own| own.live.is_some());
    let confine = is_live.then(set_id::refused).transpose().map_err(io::Error::other)?;
    let has_proxy = spec.own.as_ref().is_some_and(|own| own.proxy.is_some());
    Ok(bottle_guest::run(GuestConfig {
        transport: transport()?,
        root: "/".into(),
        proxy: has_proxy.then(|| ForwardConfig {
            sockets: names::LISTENER_DIR.into(),
            address: names::PROXY_LOOPBACK,
            ports: names::LISTENER_PORTS.to_vec(),
        }),
        resolver: has_proxy,
        programs: Programs::Any,
        limits: spec.limits.clone(),
        changed,
        confine,
    }))
}
