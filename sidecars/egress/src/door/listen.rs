//! The door's listeners: a unix socket for each port, or TCP on one address, for one peer.
//!
//! Which port a connection came in by is all that is known of it here; [`super::serve`] makes the rest of it.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bottle_contract::names::EGRESS_DOOR_PORTS;
use bottle_harden::HardenError;
use bottle_harden::reach::{self, Held};
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;

use super::io::{DoorIo, Socket};

/// Everyone inside the bottle may connect; the folder around the socket keeps everyone else out.
const SOCKET_MODE: u32 = 0o666;

/// How long accepting rests when the process is out of descriptors or memory.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// How the bottle reaches the door.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Door {
    /// One unix socket for each port, named by its number, in this folder.
    Socket {
        /// An existing folder that this process may write to.
        folder: PathBuf,
    },
    /// TCP on the ports themselves, with the bottle's resolver beside them.
    Network {
        /// The bundle's address on the bottle's own network; nothing listens on any other.
        address: Ipv4Addr,
        /// The bottle's address there; nobody else is served.
        bottle: Ipv4Addr,
    },
}

impl Door {
    /// Keeps a folder within reach of whoever this process becomes, while the answer lives.
    ///
    /// # Errors
    /// [`HardenError`] when there is no way to it now.
    pub fn hold(&mut self) -> Result<Option<Held>, HardenError> {
        match self {
            Self::Socket { folder } => reach::hold(folder).map(Some),
            Self::Network { .. } => Ok(None),
        }
    }

    /// Closes the part of the door that `ports` are: nothing can connect any more. Sockets that are gone
    /// already are fine.
    ///
    /// # Errors
    /// What the file system says about a socket that is there and cannot be removed.
    pub fn close(&self, ports: &[u16]) -> io::Result<()> {
        let Self::Socket { folder } = self else { return Ok(()) };
        for port in ports {
            remove_if_there(&folder.join(port.to_string()))?;
        }
        Ok(())
    }
}

/// One bound listener.
pub(crate) struct Listener {
    /// The door's port, not necessarily the number bound.
    pub(crate) port: u16,
    socket: Listening,
}

enum Listening {
    Unix(UnixListener),
    Tcp { listener: TcpListener, bottle: Ipv4Addr },
}

/// Binds every port of the egress door.
///
/// # Errors
/// The first port that cannot be bound, by its path or address.
pub(crate) async fn bind(door: &Door) -> Result<Vec<Listener>, BindError> {
    let mut listeners = Vec::new();
    for port in EGRESS_DOOR_PORTS {
        let socket = match door {
            Door::Socket { folder } => {
                let path = folder.join(port.to_string());
                bind_unix(&path).map_err(|source| BindError { place: path.display().to_string(), source })?
            }
            Door::Network { address, bottle } => {
                let address = SocketAddrV4::new(*address, port);
                let tcp = TcpListener::bind(address).await;
                let listener = tcp.map_err(|source| BindError { place: address.to_string(), source })?;
                Listening::Tcp { listener, bottle: *bottle }
            }
        };
        listeners.push(Listener { port, socket });
    }
    Ok(listeners)
}

/// A port of the door could not be bound.
#[derive(Debug, thiserror::Error)]
#[error("door at {place}: {source}")]
pub(crate) struct BindError {
    place: String,
    source: io::Error,
}

fn bind_unix(path: &Path) -> io::Result<Listening> {
    remove_if_there(path)?;
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(SOCKET_MODE))?;
    Ok(Listening::Unix(listener))
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

impl Listener {
    /// Waits for a free place among [`crate::bounds::CONNECTIONS`], then for a connection.
    pub(crate) async fn accept(&self, places: &Arc<Semaphore>) -> Option<DoorIo> {
        let permit = Arc::clone(places).acquire_owned().await.ok()?;
        loop {
            match self.socket.accept().await {
                Ok(Some(socket)) => return Some(DoorIo::new(socket, permit)),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(port = self.port, %error, "the door could not accept");
                    tokio::time::sleep(ACCEPT_REST).await;
                }
            }
        }
    }
}

impl Listening {
    /// A connection, closed at once when it comes from elsewhere than the bottle.
    async fn accept(&self) -> io::Result<Option<Socket>> {
        match self {
            Self::Unix(listener) => listener.accept().await.map(|(socket, _)| Some(Socket::Unix(socket))),
            Self::Tcp { listener, bottle } => {
                let (socket, peer) = listener.accept().await?;
                Ok((peer.ip() == *bottle).then_some(Socket::Tcp(socket)))
            }
        }
    }
}
