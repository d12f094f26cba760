//! What a backend tells the guest.

use std::os::unix::net::{UnixListener, UnixStream};
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
    /// What may be run.
    pub programs: Programs,
    /// Whom processes run as; the guest's own user when absent.
    pub account: Option<Account>,
}

/// The byte stream to the host.
#[derive(Debug)]
pub enum Transport {
    /// One host connection after another; a new one replaces the old, and the bottle lives on between.
    /// Nothing inside the bottle may be able to reach it.
    Listener(UnixListener),
    /// This one connection; the bottle stops when it ends, because nobody could ever reach it again.
    Stream(UnixStream),
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

/// A user by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Account {
    /// User id, inside.
    pub uid: u32,
    /// Group id, inside.
    pub gid: u32,
}
