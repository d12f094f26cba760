//! Implements the listeners for one bottle. The listeners are one unix socket for each port, or TCP sockets on one
//! address.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bottle_harden::HardenError;
use bottle_harden::directory_access::{self, Held};
use bottle_harden::landlock::Files;
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::either::Either;

/// The permissions of a listener's unix socket. Every user inside the bottle may connect. The permissions of the
/// socket's directory exclude processes outside of the bottle.
const SOCKET_MODE: u32 = 0o666;

/// The pause before the next `accept` call if the process has no free file descriptors or no free memory.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// The way in which the bottle connects to the listeners.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ListenerConfig {
    /// The bottle connects to one unix socket for each port. The socket's file name is the port number.
    Socket {
        /// The existing directory for the sockets. This process must be able to write to the directory.
        directory: PathBuf,
    },
    /// The bottle connects over TCP to the listener ports. The bottle's DNS resolver listens on the same address.
    Network {
        /// The bundle's address on the bottle's network. The daemons listen on no other address.
        address: Ipv4Addr,
        /// The bottle's address on the bottle's network. The listeners close connections from other addresses.
        bottle: Ipv4Addr,
    },
}

impl ListenerConfig {
    /// Keeps the socket directory accessible after this process switches users. The directory is accessible as long as
    /// the returned handle exists. Does nothing for TCP listeners.
    ///
    /// # Errors
    /// Fails with [`HardenError`] if the directory is not accessible before the process switches users.
    pub fn hold(&mut self) -> Result<Option<Held>, HardenError> {
        match self {
            Self::Socket { directory } => directory_access::hold(directory).map(Some),
            Self::Network { .. } => Ok(None),
        }
    }

    /// Returns the file access rules that a daemon needs for these listeners.
    #[must_use]
    pub fn files(&self) -> Files {
        match self {
            Self::Socket { directory } => Files { sockets: vec![directory.clone()], ..Files::default() },
            Self::Network { .. } => Files { bind_tcp: true, ..Files::default() },
        }
    }

    /// Removes the sockets of `ports`, so that no new connection is possible. Ignores missing sockets. Does nothing for
    /// TCP listeners, because TCP listeners close when the daemon exits.
    ///
    /// # Errors
    /// Fails if an existing socket cannot be removed.
    pub fn close(&self, ports: &[u16]) -> io::Result<()> {
        let Self::Socket { directory } = self else { return Ok(()) };
        for port in ports {
            remove_if_present(&directory.join(port.to_string()))?;
        }
        Ok(())
    }
}

/// One bound listener port.
#[derive(Debug)]
pub struct Listener {
    port: u16,
    socket: BoundSocket,
}

#[derive(Debug)]
enum BoundSocket {
    Unix(UnixListener),
    Tcp { listener: TcpListener, bottle: Ipv4Addr },
}

/// The error if a listener port cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen at {address}")]
pub struct BindError {
    address: String,
    source: io::Error,
}

fn bind_unix(path: &Path) -> io::Result<BoundSocket> {
    remove_if_present(path)?;
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(SOCKET_MODE))?;
    Ok(BoundSocket::Unix(listener))
}

/// Removes a file if the file exists.
///
/// # Errors
/// Fails if an existing file cannot be removed.
pub fn remove_if_present(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

impl Listener {
    /// Binds one listener port.
    ///
    /// # Errors
    /// Fails with [`BindError`], which contains the path or the address that cannot be bound.
    pub async fn bind(proxy: &ListenerConfig, port: u16) -> Result<Self, BindError> {
        let socket = match proxy {
            ListenerConfig::Socket { directory } => {
                let path = directory.join(port.to_string());
                bind_unix(&path)
                    .map_err(|source| BindError { address: path.display().to_string(), source })?
            }
            ListenerConfig::Network { address, bottle } => {
                let address = SocketAddrV4::new(*address, port);
                let tcp = TcpListener::bind(address).await;
                let listener = tcp.map_err(|source| BindError { address: address.to_string(), source })?;
                BoundSocket::Tcp { listener, bottle: *bottle }
            }
        };
        Ok(Self { port, socket })
    }

    /// Returns the port that was passed to [`Self::bind`]. Tests pass port 0. In that case, this function returns 0,
    /// although the kernel chose another port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Waits for a free connection slot, and then for a connection from the bottle. The connection occupies the slot.
    /// Returns `None` if the semaphore `slots` is closed.
    pub async fn accept(&self, slots: &Arc<Semaphore>) -> Option<(Socket, OwnedSemaphorePermit)> {
        let permit = Arc::clone(slots).acquire_owned().await.ok()?;
        loop {
            match self.socket.accept().await {
                Ok(Some(socket)) => return Some((socket, permit)),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(port = self.port, %error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                }
            }
        }
    }
}

impl BoundSocket {
    /// Accepts a connection. If the peer is not the bottle, closes the connection immediately and returns `None`.
    async fn accept(&self) -> io::Result<Option<Socket>> {
        match self {
            Self::Unix(listener) => listener.accept().await.map(|(socket, _)| Some(Socket::Left(socket))),
            Self::Tcp { listener, bottle } => {
                let (socket, peer) = listener.accept().await?;
                // An error is ignored. Without this option, the connection works, but has more latency.
                let _ = socket.set_nodelay(true);
                Ok((peer.ip() == *bottle).then_some(Socket::Right(socket)))
            }
        }
    }
}

/// A connection from the bottle, over a unix socket or over TCP.
pub type Socket = Either<UnixStream, TcpStream>;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn rebinds_a_stale_socket_and_removes_it_on_close() {
        let directory = tempfile::tempdir().expect("directory");
        let proxy = ListenerConfig::Socket { directory: directory.path().to_owned() };
        let slots = Arc::new(Semaphore::new(1));
        drop(Listener::bind(&proxy, 80).await.expect("bound"));
        let listener = Listener::bind(&proxy, 80).await.expect("bound again");
        let _client = UnixStream::connect(directory.path().join("80")).await.expect("connected");
        let (_socket, _slot) = listener.accept(&slots).await.expect("accepted");
        assert_eq!(slots.available_permits(), 0, "a connection holds its slot");
        proxy.close(&[80, 443]).expect("closed");
        assert_eq!(fs::read_dir(directory.path()).expect("read").count(), 0);
    }

    #[tokio::test]
    async fn a_network_listener_serves_only_the_bottle() {
        let bottle = Ipv4Addr::new(127, 0, 0, 2);
        let slots = Arc::new(Semaphore::new(1));
        let proxy = ListenerConfig::Network { address: Ipv4Addr::LOCALHOST, bottle };
        let listener = Listener::bind(&proxy, 0).await.expect("bound");
        let BoundSocket::Tcp { listener: tcp, .. } = &listener.socket else { panic!("no TCP") };
        let address = tcp.local_addr().expect("address");
        let stranger = TcpStream::connect(address).await.expect("connected");
        let socket = tokio::net::TcpSocket::new_v4().expect("socket");
        socket.bind((bottle, 0).into()).expect("its address");
        let own = socket.connect(address).await.expect("connected");
        let (Socket::Right(served), _slot) = listener.accept(&slots).await.expect("accepted") else {
            panic!("no TCP")
        };
        assert_eq!(served.peer_addr().expect("peer"), own.local_addr().expect("address"));
        assert_eq!(stranger.peek(&mut [0]).await.expect("an end"), 0, "closed at once");
    }
}
