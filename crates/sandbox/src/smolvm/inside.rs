//! The paths in a machine.

use std::path::Path;

use bottle_policy::names::LISTENER_PORTS;

use super::args::{NewMachine, Socket};

/// The path of the `bottle` program in the machine's root file system.
pub(super) const PROGRAM: &str = "/bottle";

/// The directory with the bottle's files.
pub(super) const LAYERS: &str = "/layers";

/// The socket to which the first process connects, to receive its specification.
pub(super) const SETUP: &str = "/run/machine/setup";

/// The socket on which the guest listens.
pub(super) const GUEST: &str = "/run/machine/guest";

/// The directory of the proxy's sockets, which the sandbox mounts.
pub(super) const PROXY: &str = "/run/machine/proxy";

/// The directories that the machine's root file system contains besides the program.
pub(super) const DIRECTORIES: [&str; 7] = ["dev", "etc", "layers", "proc", "run", "sys", "tmp"];

/// The sockets of the proxy, which are in the directory `host` on the host.
pub(super) fn proxy_sockets(host: &Path) -> Vec<Socket> {
    let socket = |port: &u16| Socket { host: host.join(port.to_string()), inside: format!("{PROXY}/{port}") };
    LISTENER_PORTS.iter().map(socket).collect()
}

/// Returns the length of the longest host path of a socket that connects the machine to its host.
pub(super) fn longest_socket(new: &NewMachine) -> usize {
    let sockets = new.mounted.iter().chain([&new.exposed]);
    sockets.map(|socket| socket.host.as_os_str().len()).max().unwrap_or_default()
}
