//! `bottle __guest`, started by a backend of this machine: the process that becomes pid 1.
//!
//! It runs before anything of the command line, of logging or of an async runtime is set up, because what
//! it does first (forking, unsharing) has to happen with one thread.

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

/// What it is started for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "guest", rename_all = "kebab-case")]
pub(crate) enum Birth {
    /// Pid 1 of a sandbox.
    Sandbox(Box<SandboxSpec>),
    /// A plain process of the fake backend.
    Plain(PlainSpec),
}

/// A guest that nothing isolates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PlainSpec {
    /// The folder it takes for its root.
    pub(crate) root: PathBuf,
}

/// The role's whole life.
#[must_use]
pub fn run() -> ExitCode {
    match live() {
        Ok(code) => code,
        Err(error) => {
            // The backend sees the end of the handoff; the sentence goes to the bottle's log.
            let _ = io::Write::write_fmt(&mut io::stderr(), format_args!("guest: {error}\n"));
            ExitCode::FAILURE
        }
    }
}

fn live() -> io::Result<ExitCode> {
    bottle_harden::process::leave_folder().map_err(io::Error::other)?;
    close_inherited()?;
    let (child_end, birth, fds) = ChildEnd::receive::<Birth>()?;
    match birth {
        Birth::Plain(spec) => plain(child_end, spec, fds),
        Birth::Sandbox(spec) => match enter(&spec, child_end).map_err(io::Error::other)? {
            Entered::Outer => Ok(ExitCode::SUCCESS),
            // A trial: that it was set up is all that was asked.
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

/// The host's own network has no place for a proxy of every bottle, so a plain guest has none.
fn plain(child_end: ChildEnd, spec: PlainSpec, fds: Vec<OwnedFd>) -> io::Result<ExitCode> {
    // Fails only where the session is its own already.
    let _ = rustix::process::setsid();
    child_end.say(&Report::Born { pid: std::process::id() })?;
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
    let listener = fds.into_iter().next().ok_or_else(|| io::Error::other("no socket came with it"))?;
    Ok(Transport::Listener(UnixListener::from(listener)))
}
