//! The bottle's DNS resolver. The resolver resolves every name to the proxy and forwards no query.
//!
//! This crate handles the sockets; [`bottle_protocol::dns::answer`] creates the responses. With the socket
//! transport, the resolver runs in the guest. With the network transport, it runs in the proxy's process.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use bottle_protocol::dns;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;

/// The maximum length of a query that the resolver reads, in bytes. The resolver truncates a longer UDP query. If a TCP
/// query is longer, the resolver closes the connection. [`dns::answer`] answers only queries of up to
/// [`dns::MAX_QUERY`] bytes.
const MAX_QUERY: usize = 4096;

/// The most concurrent TCP connections. Further connections wait until a client disconnects.
const MAX_CONNECTIONS: usize = 64;

/// The maximum time between two queries of a TCP client, and the maximum time to send a response over TCP. When the
/// time is exceeded, the resolver closes the connection (RFC 7766 section 6.2.3 recommends a few seconds).
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause after a socket error, to avoid a busy loop.
const ERROR_BACKOFF: Duration = Duration::from_millis(50);

/// The bound UDP and TCP sockets. The resolver answers queries only after [`Resolver::serve`] is called.
#[derive(Debug)]
pub struct Resolver {
    datagrams: UdpSocket,
    streams: TcpListener,
    responder: Responder,
}

/// The address that responses contain, and the only client that receives responses (`None` for all clients).
#[derive(Debug, Clone, Copy)]
struct Responder {
    address: Ipv4Addr,
    client: Option<Ipv4Addr>,
}

/// A socket of the resolver could not be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot bind the resolver to {address}, {transport} port {port}")]
pub struct BindError {
    address: Ipv4Addr,
    transport: &'static str,
    port: u16,
    source: io::Error,
}

impl Resolver {
    /// Binds `port` for UDP and TCP at `address`. Responses contain the same address. If `client` is given,
    /// only that client receives responses.
    ///
    /// # Errors
    /// [`BindError`] for the first socket that cannot be bound. If binding one socket fails, the other socket is
    /// closed.
    pub async fn bind(address: Ipv4Addr, port: u16, client: Option<Ipv4Addr>) -> Result<Self, BindError> {
        let failed = |transport| move |source| BindError { address, transport, port, source };
        let datagrams = UdpSocket::bind((address, port)).await.map_err(failed("UDP"))?;
        let streams = TcpListener::bind((address, port)).await.map_err(failed("TCP"))?;
        Ok(Self { datagrams, streams, responder: Responder { address, client } })
    }

    /// Serves queries on tasks of the current runtime, until the runtime ends.
    pub fn serve(self) {
        tokio::spawn(datagrams(self.datagrams, self.responder));
        tokio::spawn(streams(self.streams, self.responder));
    }
}

impl Responder {
    fn serves(self, client: IpAddr) -> bool {
        self.client.is_none_or(|only| client == only)
    }
}

async fn datagrams(socket: UdpSocket, responder: Responder) {
    let mut query = vec![0; MAX_QUERY];
    loop {
        match socket.recv_from(&mut query).await {
            Ok((length, client)) if responder.serves(client.ip()) => {
                if let Some(answer) = dns::answer(&query[..length], responder.address) {
                    let _ = socket.send_to(&answer, client).await;
                }
            }
            Ok(_) => {}
            // `recv_from` also reports errors of responses that were sent earlier, for example if the client's port is
            // closed.
            Err(_) => tokio::time::sleep(ERROR_BACKOFF).await,
        }
    }
}

async fn streams(listener: TcpListener, responder: Responder) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((connection, client)) if responder.serves(client.ip()) => {
                tokio::spawn(async move {
                    serve_connection(connection, responder.address).await;
                    drop(slot);
                });
            }
            Ok(_) => {}
            Err(_) => tokio::time::sleep(ERROR_BACKOFF).await,
        }
    }
}

/// Serves one TCP connection. Each message follows its length (RFC 1035 section 4.2.2). Returns when the client
/// disconnects, at the first query that [`dns::answer`] does not answer, or when [`IDLE_TIMEOUT`] expires.
async fn serve_connection(mut connection: TcpStream, proxy: Ipv4Addr) {
    loop {
        let Ok(Some(query)) = tokio::time::timeout(IDLE_TIMEOUT, read_query(&mut connection)).await else {
            return;
        };
        let Some(answer) = dns::answer(&query, proxy) else { return };
        let Ok(length) = u16::try_from(answer.len()) else { return };
        let message = [&length.to_be_bytes(), answer.as_slice()].concat();
        match tokio::time::timeout(IDLE_TIMEOUT, connection.write_all(&message)).await {
            Ok(Ok(())) => {}
            _ => return,
        }
    }
}

async fn read_query(connection: &mut TcpStream) -> Option<Vec<u8>> {
    let length = usize::from(connection.read_u16().await.ok()?);
    if length > MAX_QUERY {
        return None;
    }
    let mut query = vec![0; length];
    connection.read_exact(&mut query).await.ok()?;
    Some(query)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A query for `any.example`, type A, as dig sends it.
    const QUERY: &[u8] =
        b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03any\x07example\x00\x00\x01\x00\x01";

    fn is_response_with_the_proxy(answer: &[u8]) -> bool {
        answer.starts_with(&QUERY[..2]) && answer.ends_with(&Ipv4Addr::LOCALHOST.octets())
    }

    /// Starts a resolver on a port that is free for both UDP and TCP. Returns the port.
    async fn resolver(client: Option<Ipv4Addr>) -> u16 {
        for _ in 0..50 {
            let free = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
            let port = free.local_addr().expect("its address").port();
            drop(free);
            if let Ok(resolver) = Resolver::bind(Ipv4Addr::LOCALHOST, port, client).await {
                resolver.serve();
                return port;
            }
        }
        panic!("no port is free");
    }

    async fn ask_by_stream(client: &mut TcpStream) -> io::Result<Vec<u8>> {
        let length = u16::try_from(QUERY.len()).expect("short").to_be_bytes();
        client.write_all(&[&length, QUERY].concat()).await?;
        read_query(client).await.ok_or(io::ErrorKind::UnexpectedEof.into())
    }

    #[tokio::test]
    async fn resolves_every_name_to_the_proxy_over_udp_and_tcp() {
        let port = resolver(Some(Ipv4Addr::LOCALHOST)).await;
        let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("client");
        let mut answer = [0; 512];
        client.send_to(b"no question", (Ipv4Addr::LOCALHOST, port)).await.expect("send");
        client.send_to(&[0; 9000], (Ipv4Addr::LOCALHOST, port)).await.expect("send");
        client.send_to(QUERY, (Ipv4Addr::LOCALHOST, port)).await.expect("send");
        let found = async {
            loop {
                let length = client.recv(&mut answer).await.expect("receive");
                if is_response_with_the_proxy(&answer[..length]) {
                    return;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(5), found).await.expect("an answer");

        let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.expect("connect");
        for _ in 0..2 {
            let answer = ask_by_stream(&mut client).await.expect("an answer");
            assert!(is_response_with_the_proxy(&answer), "{answer:?}");
        }
        let mut oversized = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.expect("connect");
        oversized.write_all(&u16::MAX.to_be_bytes()).await.expect("send");
        assert_eq!(
            oversized.read(&mut [0; 8]).await.unwrap_or(0),
            0,
            "an oversized query closes the connection"
        );
    }

    #[tokio::test]
    async fn serves_only_the_given_client() {
        let port = resolver(Some(Ipv4Addr::new(127, 0, 0, 9))).await;
        let stranger = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("client");
        let client = UdpSocket::bind((Ipv4Addr::new(127, 0, 0, 9), 0)).await.expect("client");
        let mut answer = [0; 512];
        for client in [&stranger, &client] {
            client.send_to(QUERY, (Ipv4Addr::LOCALHOST, port)).await.expect("send");
        }
        // Queries are served in order, so a response to the stranger would have arrived first.
        let length = tokio::time::timeout(Duration::from_secs(5), client.recv(&mut answer));
        let length = length.await.expect("an answer").expect("receive");
        assert!(is_response_with_the_proxy(&answer[..length]));
        assert!(stranger.try_recv(&mut answer).is_err(), "the stranger was answered");
        let mut stranger = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.expect("connect");
        assert!(ask_by_stream(&mut stranger).await.is_err(), "the stranger was answered");
    }

    #[tokio::test]
    async fn a_bind_error_names_the_port() {
        let holder = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let port = holder.local_addr().expect("its address").port();
        let error = Resolver::bind(Ipv4Addr::LOCALHOST, port, None).await.expect_err("taken").to_string();
        assert!(error.contains(&format!("UDP port {port}")), "{error}");
    }
}
