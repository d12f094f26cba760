//! The bottle's resolver: every name is the door, and nothing is ever asked outside.
//!
//! Only the sockets are here; what is answered is [`bottle_contract::dns::answer`], the same wherever
//! the resolver runs.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use bottle_contract::dns;
use bottle_contract::names::DNS_PORT;
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

/// Starts answering over UDP and TCP on tasks of the current runtime. The answer names what could not be
/// opened.
pub async fn start(door: Ipv4Addr) -> Vec<String> {
    start_on(door, DNS_PORT).await
}

async fn start_on(door: Ipv4Addr, port: u16) -> Vec<String> {
    let mut problems = Vec::new();
    match UdpSocket::bind((door, port)).await {
        Ok(socket) => drop(tokio::spawn(datagrams(socket, door))),
        Err(error) => problems.push(format!("the resolver's UDP port {port} cannot be opened: {error}")),
    }
    match TcpListener::bind((door, port)).await {
        Ok(listener) => drop(tokio::spawn(streams(listener, door))),
        Err(error) => problems.push(format!("the resolver's TCP port {port} cannot be opened: {error}")),
    }
    problems
}

async fn datagrams(socket: UdpSocket, door: Ipv4Addr) {
    let mut question = vec![0; QUESTION];
    loop {
        match socket.recv_from(&mut question).await {
            Ok((length, asker)) => {
                if let Some(answer) = dns::answer(&question[..length], door) {
                    let _ = socket.send_to(&answer, asker).await;
                }
            }
            // The error of an earlier answer (nobody listens there) is reported here too.
            Err(_) => tokio::time::sleep(BREATH).await,
        }
    }
}

async fn streams(listener: TcpListener, door: Ipv4Addr) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((connection, _)) => {
                tokio::spawn(async move {
                    questions(connection, door).await;
                    drop(slot);
                });
            }
            Err(_) => tokio::time::sleep(BREATH).await,
        }
    }
}

/// RFC 1035 section 4.2.2: each message behind its length. Ends at the first thing that is none.
async fn questions(mut connection: TcpStream, door: Ipv4Addr) {
    loop {
        let Ok(Some(question)) = tokio::time::timeout(IDLE, question(&mut connection)).await else { return };
        let Some(answer) = dns::answer(&question, door) else { return };
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

    fn free_port() -> u16 {
        let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        socket.local_addr().expect("its address").port()
    }

    fn is_the_door(answer: &[u8]) -> bool {
        answer.starts_with(&ASK[..2]) && answer.ends_with(&Ipv4Addr::LOCALHOST.octets())
    }

    #[tokio::test]
    async fn every_name_is_the_door_over_udp_and_tcp() {
        let port = free_port();
        assert_eq!(start_on(Ipv4Addr::LOCALHOST, port).await, Vec::<String>::new());
        let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("client");
        let mut answer = [0; 512];
        client.send_to(b"no question", (Ipv4Addr::LOCALHOST, port)).await.expect("send");
        client.send_to(ASK, (Ipv4Addr::LOCALHOST, port)).await.expect("send");
        let found = async {
            loop {
                let length = client.recv(&mut answer).await.expect("receive");
                if is_the_door(&answer[..length]) {
                    return;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(5), found).await.expect("an answer");

        let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.expect("connect");
        for _ in 0..2 {
            let length = u16::try_from(ASK.len()).expect("short").to_be_bytes();
            client.write_all(&[&length, ASK].concat()).await.expect("send");
            let answer = question(&mut client).await.expect("an answer");
            assert!(is_the_door(&answer), "{answer:?}");
        }
    }
}
