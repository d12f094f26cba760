//! What a backend tells the guest.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::forward::ForwardConfig;

/// Everything [`run`](crate::run) needs. The sandbox around it (namespaces, mounts, capabilities, seccomp,
/// the user) is made by the backend before.
#[derive(Debug)]
pub struct GuestConfig {
    /// Where the host speaks from.
    pub transport: Transport,
    /// What the bottle calls `/`; anything else only where a backend does not isolate. Every path a
    /// request names is resolved inside it.
    pub root: PathBuf,
    /// The proxy, when it comes by socket.
    pub proxy: Option<ForwardConfig>,
    /// Whether to answer DNS on the proxy's address.
    pub resolver: bool,
    /// What may be run. It runs as the guest's own user.
    pub programs: Programs,
    /// What is watched where nothing outside limits it.
    pub limits: Limits,
    /// A folder that counts as one of the bottle's own on the disk, and that nothing in the bottle sees: what it
    /// changed of its system.
    pub changed: Option<OwnedFd>,
}

/// Limits that the guest watches, as well as looking now and then can: what grows faster than it looks is
/// found beyond its limit, not at it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes of memory: of all processes, and of files in memory.
    pub memory: Option<Limit>,
    /// Bytes that the bottle's own folders may take on the disk.
    pub disk: Option<Limit>,
    /// The bottle's own folders on the disk. Where there are any, a bottle that takes much of a disk that is
    /// nearly full is ended too.
    pub folders: Vec<PathBuf>,
    /// Bytes in these folders that do not count: they came with the system of which the bottle has a copy.
    pub given: u64,
}

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// How many.
    pub bytes: u64,
    /// Whether the manifest asks for it; else it keeps the machine usable.
    pub asked: bool,
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
