//! Runs `bottle __guest`, the process that becomes pid 1 on the linux and fake backends.
//!
//! It runs before the command line, logging or an async runtime is set up, because forking and unsharing need a
//! single-threaded process.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::ExitCode;

use bottle_contract::names;
use bottle_guest::{ForwardConfig, GuestConfig, Limits, Programs, Transport};
use serde::{Deserialize, Serialize};

use super::linux::enter::{Entered, enter};
use super::linux::spec::SandboxSpec;
use super::linux::sys::close_inherited;
use super::local::spawn_ipc::{ChildEnd, Report};

/// The specification that the backend hands off.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "guest", rename_all = "kebab-case")]
pub(crate) enum GuestSpec {
    /// Pid 1 of a sandbox.
    Sandbox(Box<SandboxSpec>),
    /// A plain process of the fake backend.
    Plain(PlainSpec),
}

/// A guest without isolation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PlainSpec {
    /// The folder that it uses as its root.
    pub(crate) root: PathBuf,
}

/// The entry point of `bottle __guest`.
#[must_use]
pub fn run() -> ExitCode {
    match receive_and_run() {
        Ok(code) => code,
        Err(error) => {
            // The backend sees the handoff end; the error goes to the bottle's log.
            let _ = io::Write::write_fmt(&mut io::stderr(), format_args!("guest: {error}\n"));
            ExitCode::FAILURE
        }
    }
}

fn receive_and_run() -> io::Result<ExitCode> {
    bottle_harden::process::leave_folder().map_err(io::Error::other)?;
    close_inherited()?;
    let (child_end, spec, fds) = ChildEnd::receive::<GuestSpec>()?;
    match spec {
        GuestSpec::Plain(spec) => plain(child_end, spec, fds),
        GuestSpec::Sandbox(spec) => match enter(&spec, child_end).map_err(io::Error::other)? {
            Entered::Outer => Ok(ExitCode::SUCCESS),
            // A trial sandbox ends once it is set up.
            Entered::Inner(_) if spec.own.is_none() => Ok(ExitCode::SUCCESS),
            Entered::Inner(changed) => Ok(bottle_guest::run(GuestConfig {
                transport: transport(fds)?,
                root: "/".into(),
                proxy: Some(ForwardConfig {
                    sockets: names::LISTENER_DIR.into(),
                    address: names::PROXY_LOOPBACK,
                    ports: names::LISTENER_PORTS.to_vec(),
                }),
                resolver: true,
                programs: Programs::Any,
                limits: spec.limits,
                changed,
            })),
        },
    }
}

/// Runs a plain guest. It has no proxy: on the host's network the listeners of several bottles would collide.
fn plain(child_end: ChildEnd, spec: PlainSpec, fds: Vec<OwnedFd>) -> io::Result<ExitCode> {
    // Fails only for a session leader.
    let _ = rustix::process::setsid();
    child_end.report(&Report::Started { pid: std::process::id() })?;
    child_end.ready(std::fs::File::open("/dev/null")?)?;
    Ok(bottle_guest::run(GuestConfig {
        transport: transport(fds)?,
        root: spec.root,
        proxy: None,
        resolver: false,
        programs: Programs::BuiltIn { exe: std::env::current_exe()? },
        limits: Limits::default(),
        changed: None,
    }))
}

fn transport(fds: Vec<OwnedFd>) -> io::Result<Transport> {
    let listener = fds.into_iter().next().ok_or_else(|| io::Error::other("received no socket"))?;
    Ok(Transport::Listener(UnixListener::from(listener)))
}
