//! What a backend tells the guest.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use crate::forward::DoorConfig;

/// Everything [`run`](crate::run) needs. The sandbox around it (namespaces, mounts, capabilities, seccomp,
/// the user) is made by the backend before.
#[derive(Debug)]
pub struct GuestConfig {
    /// Where the host speaks from.
    pub transport: Transport,
    /// What the bottle calls `/`; anything else only where a backend does not isolate. Every path a
    /// request names is resolved inside it.
    pub root: PathBuf,
    /// The door, when it comes by socket.
    pub door: Option<DoorConfig>,
    /// Whether to answer DNS on the door's address.
    pub resolver: bool,
    /// What may be run. It runs as the guest's own user.
    pub programs: Programs,
}

/// The byte stream to the host.
#[derive(Debug)]
pub enum Transport {
    /// One host connection after another; a new one replaces the old, and the bottle lives on between.
    /// Nothing inside the bottle may be able to reach it.
    Listener(UnixListener),
    /// This process's standard input and output, two pipes, joined again and again
    /// ([`bottle_channel::rejoin`]). Their end means that the engine that held them is gone, or ends the
    /// bottle: it stops then, because nobody could ever reach it again.
    Stdio,
}

/// What a request may run.
#[derive(Debug, Clone)]
pub enum Programs {
    /// Any program of the bottle.
    Any,
    /// Only what is built into this program: `ARGV` becomes `exe __fake-program ARGV…`.
    BuiltIn {
        /// The program itself.
        exe: PathBuf,
    },
}
