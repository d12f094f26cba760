//! The bottle's resolver: every name is the proxy, and nothing is ever asked outside.
//!
//! Only the sockets are here; what is answered is [`bottle_contract::dns::answer`], the same wherever
//! the resolver runs: in the guest when the proxy comes by socket, beside the proxy when it comes by network.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use bottle_contract::dns;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;

/// A question of any honest client fits: RFC 9715 recommends 1400, EDNS clients announce 4096 at most.
const QUESTION: usize = 4096;

/// TCP connections at once; a client asks and goes.
const CONNECTIONS: usize = 64;

/// How long a TCP client may take for its next question (RFC 7766 section 6.2.3 wants seconds).
const IDLE: Duration = Duration::from_secs(10);

/// How long to pause when a socket fails, so that it does not spin.
const BREATH: Duration = Duration::from_millis(50);

/// Both sockets, bound; whoever asks waits until [`Resolver::serve`].
#[derive(Debug)]
pub struct Resolver {
    datagrams: UdpSocket,
    streams: TcpListener,
    proxy: Answering,
}

/// What is answered, and to whom.
#[derive(Debug, Clone, Copy)]
struct Answering {
    address: Ipv4Addr,
    asker: Option<Ipv4Addr>,
}

/// A socket of the resolver could not be bound.
#[derive(Debug, thiserror::Error)]
#[error("the resolver at {address}, {transport} port {port}, cannot be opened: {source}")]
pub struct BindError {
    address: Ipv4Addr,
    transport: &'static str,
    port: u16,
    source: io::Error,
}

impl Resolver {
    /// Binds `port` for UDP and TCP at the proxy's own address. Only `asker` is answered, if one is given;
    /// anybody else gets nothing.
    ///
    /// # Errors
    /// [`BindError`] naming the first socket that cannot be had; then none is kept.
    pub async fn bind(address: Ipv4Addr, port: u16, asker: Option<Ipv4Addr>) -> Result<Self, BindError> {
        let failed = |transport| move |source| BindError { address, transport, port, source };
        let datagrams = UdpSocket::bind((address, port)).await.map_err(failed("UDP"))?;
        let streams = TcpListener::bind((address, port)).await.map_err(failed("TCP"))?;
        Ok(Self { datagrams, streams, proxy: Answering { address, asker } })
    }

    /// Answers on tasks of the current runtime, for as long as it lives.
    pub fn serve(self) {
        tokio::spawn(datagrams(self.datagrams, self.proxy));
        tokio::spawn(streams(self.streams, self.proxy));
    }
}

impl Answering {
    fn hears(self, asker: IpAddr) -> bool {
        self.asker.is_none_or(|only| asker == only)
    }
}

async fn datagrams(socket: UdpSocket, proxy: Answering) {
    let mut question = vec![0; QUESTION];
    loop {
        match socket.recv_from(&mut question).await {
            Ok((length, asker)) if proxy.hears(asker.ip()) => {
                if let Some(answer) = dns::answer(&question[..length], proxy.address) {
                    let _ = socket.send_to(&answer, asker).await;
                }
            }
            Ok(_) => {}
            // The error of an earlier answer (nobody listens there) is reported here too.
            Err(_) => tokio::time::sleep(BREATH).await,
        }
    }
}

async fn streams(listener: TcpListener, proxy: Answering) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((connection, asker)) if proxy.hears(asker.ip()) => {
                tokio::spawn(async move {
                    questions(connection, proxy.address).await;
                    drop(slot);
                });
            }
            Ok(_) => {}
            Err(_) => tokio::time::sleep(BREATH).await,
        }
    }
}

/// RFC 1035 section 4.2.2: each message behind its length. Ends at the first thing that is none.
async fn questions(mut connection: TcpStream, proxy: Ipv4Addr) {
    loop {
        let Ok(Some(question)) = tokio::time::timeout(IDLE, question(&mut connection)).await else { return };
        let Some(answer) = dns::answer(&question, proxy) else { return };
        let Ok(length) = u16::try_from(answer.len()) else { return };
        let message = [&length.to_be_bytes(), answer.as_slice()].concat();
        match tokio::time::timeout(IDLE, connection.write_all(&message)).await {
            Ok(Ok(())) => {}
            _ => return,
        }
    }
}

async fn question(connection: &mut TcpStream) -> Option<Vec<u8>> {
    let length = usize::from(connection.read_u16().await.ok()?);
    if length > QUESTION {
        return None;
    }
    let mut question = vec![0; length];
    connection.read_exact(&mut question).await.ok()?;
    Some(question)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One question for `any.example`, type A, as dig sends it.
    const ASK: &[u8] =
        b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03any\x07example\x00\x00\x01\x00\x01";

    fn is_the_proxy(answer: &[u8]) -> bool {
        answer.starts_with(&ASK[..2]) && answer.ends_with(&Ipv4Addr::LOCALHOST.octets())
    }

    /// A resolver on a free port, which both transports have to be free on.
    async fn resolver(asker: Option<Ipv4Addr>) -> u16 {
        for _ in 0..50 {
            let free = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
            let port = free.local_addr().expect("its address").port();
            drop(free);
            if let Ok(resolver) = Resolver::bind(Ipv4Addr::LOCALHOST, port, asker).await {
                resolver.serve();
                return port;
            }
        }
        panic!("no port is free");
    }

    async fn ask_by_stream(client: &mut TcpStream) -> io::Result<Vec<u8>> {
        let length = u16::try_from(ASK.len()).expect("short").to_be_bytes();
        client.write_all(&[&length, ASK].concat()).await?;
        question(client).await.ok_or(io::ErrorKind::UnexpectedEof.into())
    }

    #[tokio::test]
    async fn every_name_is_the_proxy_over_udp_and_tcp() {
        let port = resolver(Some(Ipv4Addr::LOCALHOST)).await;
        let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("client");
        let mut answer = [0; 512];
        client.send_to(b"no question", (Ipv4Addr::LOCALHOST, port)).await.expect("send");
        client.send_to(&[0; 9000], (Ipv4Addr::LOCALHOST, port)).await.expect("send");
        client.send_to(ASK, (Ipv4Addr::LOCALHOST, port)).await.expect("send");
        let found = async {
            loop {
                let length = client.recv(&mut answer).await.expect("receive");
                if is_the_proxy(&answer[..length]) {
                    return;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(5), found).await.expect("an answer");

        let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.expect("connect");
        for _ in 0..2 {
            let answer = ask_by_stream(&mut client).await.expect("an answer");
            assert!(is_the_proxy(&answer), "{answer:?}");
        }
        let mut liar = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.expect("connect");
        liar.write_all(&u16::MAX.to_be_bytes()).await.expect("send");
        assert_eq!(liar.read(&mut [0; 8]).await.unwrap_or(0), 0, "an oversized question closes");
    }

    #[tokio::test]
    async fn only_the_asker_is_answered() {
        let port = resolver(Some(Ipv4Addr::new(127, 0, 0, 9))).await;
        let stranger = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("client");
        let asker = UdpSocket::bind((Ipv4Addr::new(127, 0, 0, 9), 0)).await.expect("client");
        let mut answer = [0; 512];
        for client in [&stranger, &asker] {
            client.send_to(ASK, (Ipv4Addr::LOCALHOST, port)).await.expect("send");
        }
        // Questions are answered in their order: the stranger's would have been there before.
        let length = tokio::time::timeout(Duration::from_secs(5), asker.recv(&mut answer));
        let length = length.await.expect("an answer").expect("receive");
        assert!(is_the_proxy(&answer[..length]));
        assert!(stranger.try_recv(&mut answer).is_err(), "the stranger was answered");
        let mut stranger = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.expect("connect");
        assert!(ask_by_stream(&mut stranger).await.is_err(), "the stranger was answered");
    }

    #[tokio::test]
    async fn a_taken_port_is_named() {
        let holder = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let port = holder.local_addr().expect("its address").port();
        let error = Resolver::bind(Ipv4Addr::LOCALHOST, port, None).await.expect_err("taken").to_string();
        assert!(error.contains(&format!("UDP port {port}")), "{error}");
    }
}
