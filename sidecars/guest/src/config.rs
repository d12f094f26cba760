//! The guest's configuration from the backend.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::forward::ForwardConfig;

/// The configuration for [`run`](crate::run). The backend sets up the sandbox (namespaces, mounts,
/// capabilities, seccomp, the user) first.
#[derive(Debug)]
pub struct GuestConfig {
    /// The transport to the host.
    pub transport: Transport,
    /// The bottle's root: `/`, unless the backend does not isolate. Every path of a request is
    /// resolved inside it.
    pub root: PathBuf,
    /// The proxy's address and sockets, if the guest forwards to it.
    pub proxy: Option<ForwardConfig>,
    /// Whether to serve DNS at the proxy's address.
    pub resolver: bool,
    /// The allowed programs, which run as the guest's own user.
    pub programs: Programs,
    /// Limits that the guest itself watches.
    pub limits: Limits,
    /// A folder with the bottle's changes to its system, which counts toward its disk use and is
    /// invisible inside.
    pub changed: Option<OwnedFd>,
}

/// Limits that the guest polls. Fast growth can exceed a limit before the guest detects it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes of memory, for all processes and for files in memory.
    pub memory: Option<Limit>,
    /// Bytes that the bottle's own folders may take on the disk.
    pub disk: Option<Limit>,
    /// The bottle's own folders on the disk. If set, the guest also ends a bottle that uses much of a
    /// nearly full disk.
    pub folders: Vec<PathBuf>,
    /// Bytes in these folders that do not count, as they came with the bottle's copy of the system.
    pub given: u64,
}

/// One limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// The limit in bytes.
    pub bytes: u64,
    /// Whether the manifest sets it; otherwise it protects the machine.
    pub asked: bool,
}

/// The byte stream to the host.
#[derive(Debug)]
pub enum Transport {
    /// A listener for consecutive host connections; a new one replaces the old, and the bottle keeps
    /// running in between. It must be inaccessible from inside the bottle.
    Listener(UnixListener),
    /// This process's standard input and output, for consecutive host connections
    /// ([`bottle_channel::rejoin()`]). They end when the engine exits or stops the bottle; then the
    /// guest stops too, since no host could connect again.
    Stdio,
}

/// The programs that a request may run.
#[derive(Debug, Clone)]
pub enum Programs {
    /// Any program of the bottle.
    Any,
    /// Only the test backend's programs, which are built into this one: `ARGV` becomes `exe __fake-program ARGV…`.
    #[cfg(feature = "test-parts")]
    BuiltIn {
        /// The program itself.
        exe: PathBuf,
    },
}
