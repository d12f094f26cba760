//! Defines the configuration that the backend passes to the guest.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::forward::ForwardConfig;

/// The settings for [`run`](crate::run), which starts the guest. Before this call, the backend must set up the sandbox:
/// namespaces, mounts, capabilities, seccomp and the user.
#[derive(Debug)]
pub struct GuestConfig {
    /// The byte stream between guest and host.
    pub transport: Transport,
    /// The root directory of the bottle. The root directory is `/` if the backend isolates files. Every path in a
    /// request is resolved inside this directory.
    pub root: PathBuf,
    /// The address and the sockets of the proxy, if the guest forwards connections to the proxy.
    pub proxy: Option<ForwardConfig>,
    /// Whether the guest serves DNS at the proxy's address.
    pub resolver: bool,
    /// The programs that requests may run. These programs run as the guest's user.
    pub programs: Programs,
    /// The limits that the guest enforces.
    pub limits: Limits,
    /// A directory with the bottle's changes to its system files. The directory counts toward the bottle's disk use.
    /// Processes of the bottle cannot see it.
    pub changed: Option<OwnedFd>,
    /// An additional restriction for the processes that requests start.
    pub confine: Option<Confine>,
}

/// A restriction that a child process applies to itself between fork and exec. The function must make only
/// async-signal-safe calls and must not allocate memory.
#[derive(Clone)]
pub struct Confine(pub Arc<dyn Fn() -> io::Result<()> + Send + Sync>);

impl fmt::Debug for Confine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Confine")
    }
}

/// Limits on memory and disk space, which the guest checks by polling. The guest stops a bottle that exceeds a limit.
/// If the use grows fast, it can exceed a limit by some amount before the guest detects it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// The limit on memory in bytes, for all processes and all files in memory together.
    pub memory: Option<Limit>,
    /// The limit on the disk space in bytes that the bottle's directories may use.
    pub disk: Option<Limit>,
    /// The bottle's directories on the disk. If the list is not empty, the guest also stops the bottle if it uses
    /// much of a nearly full disk.
    pub directories: Vec<PathBuf>,
    /// The number of bytes in `directories` that belong to the bottle's initial copy of the system. These bytes do not
    /// count toward the limit on disk space.
    pub given: u64,
}

/// A limit on memory or disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// The limit in bytes.
    pub bytes: u64,
    /// Whether the manifest sets the limit. Otherwise, the limit protects the host.
    pub asked: bool,
}

/// The byte stream between guest and host.
#[derive(Debug)]
pub enum Transport {
    /// A listener to which hosts connect one after another. A new connection replaces the previous connection, and the
    /// bottle keeps running between connections. Processes of the bottle must not be able to access the listener.
    Listener(UnixListener),
    /// This process's standard input and output, over which hosts connect one after another
    /// ([`bottle_channel::rejoin()`]). Both streams end when the container engine exits or stops the bottle.
    /// The guest then stops too, because no host could connect again.
    Stdio,
}

/// The programs that a request may run.
#[derive(Debug, Clone)]
pub enum Programs {
    /// Any program in the bottle's file system.
    Any,
    /// Only the programs of the test backend, which are built into this binary. The command `ARGV` becomes
    /// `exe __fake-program ARGV…`.
    #[cfg(feature = "test-parts")]
    BuiltIn {
        /// The path of this binary.
        exe: PathBuf,
    },
}
