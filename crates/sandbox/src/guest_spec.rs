//! The data that a backend passes to the process `bottle __guest`.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;

use bottle_guest::Transport;
use serde::{Deserialize, Serialize};

use super::linux::spec::SandboxSpec;

/// The specification that the backend passes to the process `bottle __guest`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "guest", rename_all = "kebab-case")]
pub(crate) enum GuestSpec {
    /// Pid 1 of a sandbox.
    Sandbox(Box<SandboxSpec>),
    /// A plain process of the fake backend.
    #[cfg(feature = "test-parts")]
    Plain(super::fake::guest::PlainSpec),
}

/// Creates the guest's transport from the first descriptor, which is a listening socket.
pub(super) fn transport(fds: Vec<OwnedFd>) -> io::Result<Transport> {
    let listener = fds.into_iter().next().ok_or_else(|| io::Error::other("received no socket"))?;
    Ok(Transport::Listener(UnixListener::from(listener)))
}
