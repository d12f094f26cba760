//! Forwards connections from the proxy's address inside the bottle to unix sockets of the bundle.
//!
//! ```text
//!  agent ──tcp──► 127.9.9.9:443 ══ forwarder ══► /run/bottle/proxy/443 ──unix──► egress
//! ```
//! The forwarder does not inspect the bytes. The bundle decides about each request, and trusts no received data. If one
//! side half-closes a connection, the forwarder half-closes the connection to the other side. There is no idle timeout,
//! because event streams and WebSockets can be silent for a long time, and the bundle has its own timeouts.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::Semaphore;

/// The proxy's address inside the bottle, and the bundle's sockets.
#[derive(Debug, Clone)]
pub struct ForwardConfig {
    /// The proxy's address inside the bottle.
    pub address: Ipv4Addr,
    /// The ports to listen on.
    pub ports: Vec<u16>,
    /// The directory that contains a unix socket for each port. Each socket is named by its port number.
    pub sockets: PathBuf,
}

/// The maximum number of concurrent connections on all ports. Further connections wait in the kernel's backlog. Only an
/// attacker inside the bottle needs more connections, and affects only this bottle.
const CONNECTIONS: usize = 1024;

/// The size of the buffer for each direction of a connection, in bytes.
const BUFFER: usize = 16 * 1024;

/// The pause after a failed accept, for example if the limit on open files is reached.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Listens on every port with a task on the current runtime. Returns a message for each port that cannot be bound. All
/// other ports still work.
pub async fn start(proxy: &ForwardConfig) -> Vec<String> {
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    let mut problems = Vec::new();
    for &port in &proxy.ports {
        match TcpListener::bind((proxy.address, port)).await {
            Ok(listener) => {
                let socket = proxy.sockets.join(port.to_string());
                tokio::spawn(listen(listener, socket, slots.clone()));
            }
            Err(error) => problems.push(format!("cannot open the proxy's port {port}: {error}")),
        }
    }
    problems
}

async fn listen(listener: TcpListener, socket: PathBuf, slots: Arc<Semaphore>) {
    let socket: Arc<Path> = socket.into();
    loop {
        // The semaphore exists at least until this task ends, and is never closed.
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((connection, _)) => {
                let socket = socket.clone();
                tokio::spawn(async move {
                    forward(connection, &socket).await;
                    drop(slot);
                });
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Forwards one connection. If the proxy is not running, the connection of the agent is closed.
async fn forward(mut inside: TcpStream, socket: &Path) {
    let _ = inside.set_nodelay(true);
    let Ok(mut proxy) = UnixStream::connect(socket).await else { return };
    // Errors are ignored, because each side may reset the connection at any time.
    let _ = copy_bidirectional_with_sizes(&mut inside, &mut proxy, BUFFER, BUFFER).await;
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixListener;

    use super::*;

    /// Finds a free port on the loopback address.
    fn free_port() -> u16 {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        listener.local_addr().expect("its address").port()
    }

    #[tokio::test]
    async fn forwards_bytes_and_half_closes_in_both_directions() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let port = free_port();
        let listener = UnixListener::bind(directory.path().join(port.to_string())).expect("socket");
        let proxy = ForwardConfig {
            address: Ipv4Addr::LOCALHOST,
            ports: vec![port],
            sockets: directory.path().to_owned(),
        };
        assert_eq!(start(&proxy).await, Vec::<String>::new());
        let bundle = tokio::spawn(async move {
            let (mut connection, _) = listener.accept().await.expect("accept");
            let mut received = String::new();
            connection.read_to_string(&mut received).await.expect("read to the half-close");
            connection.write_all(b"answer after the end").await.expect("write");
            received
        });
        let mut agent = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.expect("connect");
        agent.write_all(b"question").await.expect("write");
        agent.shutdown().await.expect("half-close");
        let mut answer = String::new();
        agent.read_to_string(&mut answer).await.expect("read");
        assert_eq!(bundle.await.expect("bundle"), "question");
        assert_eq!(answer, "answer after the end");
    }

    #[tokio::test]
    async fn closes_the_connection_of_a_dead_proxy_and_reports_a_taken_port() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let holder = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let taken = holder.local_addr().expect("its address").port();
        let port = free_port();
        let proxy = ForwardConfig {
            address: Ipv4Addr::LOCALHOST,
            ports: vec![taken, port],
            sockets: directory.path().to_owned(),
        };
        let problems = start(&proxy).await;
        assert!(problems[0].contains(&taken.to_string()), "{problems:?}");
        let mut agent = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.expect("connect");
        assert_eq!(agent.read(&mut [0; 8]).await.unwrap_or(0), 0);
    }
}
