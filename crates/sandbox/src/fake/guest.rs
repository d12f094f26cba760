//! The guest of the fake backend: a plain process without isolation.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::ExitCode;

use bottle_guest::{GuestConfig, Limits, Programs};
use serde::{Deserialize, Serialize};

use crate::guest_spec::transport;
use crate::local::spawn_ipc::{ChildEnd, Report};

/// A guest without isolation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PlainSpec {
    /// The directory that the guest uses as its root.
    pub(crate) root: PathBuf,
}

/// Runs a guest without isolation. The guest does not listen on the proxy ports, because the guests of several bottles
/// would listen on the same ports of the host.
pub(crate) fn run(child_end: ChildEnd, spec: PlainSpec, fds: Vec<OwnedFd>) -> io::Result<ExitCode> {
    // `setsid` fails only in a process that already leads a session, so its error is ignored.
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
        confine: None,
    }))
}
