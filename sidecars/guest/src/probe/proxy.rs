//! Probes the proxy and the resolver with the name of a host that no bottle may reach.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use bottle_policy::names::{DNS_PORT, EGRESS_HOST, EGRESS_PORT, HTTP_PORT, NEVER_LISTED};
use bottle_protocol::session::guest::{Attempt, Reach};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

use super::attempt;
use super::place::Addresses;

/// The time limit for one response. When the limit is reached, the next attempt begins.
const PATIENCE: Duration = Duration::from_secs(5);

/// The number of attempts. If all attempts time out, the result is *unknown*. More than one attempt is needed if the
/// machine was suspended during an attempt.
const TRIES: usize = 3;

/// The maximum number of bytes that are read from a response. A denial is shorter.
const ANSWER: usize = 16 * 1024;

pub(super) async fn attempts() -> Vec<Attempt> {
    let (proxy, tunnel, transparent, name) = tokio::join!(proxied(), tunnelled(), transparent(), resolve());
    vec![proxy, tunnel, transparent, name]
}

async fn proxied() -> Attempt {
    let request =
        format!("GET http://{NEVER_LISTED}/ HTTP/1.1\r\nHost: {NEVER_LISTED}\r\nConnection: close\r\n\r\n");
    let via = format!("http through {EGRESS_HOST}:{EGRESS_PORT}");
    refused("a site that is not listed", via, EGRESS_PORT, &[&request]).await
}

/// Requests a tunnel. The proxy accepts any tunnel, but denies the request inside it.
async fn tunnelled() -> Attempt {
    let connect = format!("CONNECT {NEVER_LISTED}:443 HTTP/1.1\r\nHost: {NEVER_LISTED}:443\r\n\r\n");
    let inside = format!("GET / HTTP/1.1\r\nHost: {NEVER_LISTED}\r\nConnection: close\r\n\r\n");
    let via = format!("tunnel through {EGRESS_HOST}:{EGRESS_PORT}");
    refused("a site that is not listed", via, EGRESS_PORT, &[&connect, &inside]).await
}

async fn transparent() -> Attempt {
    let request = format!("GET / HTTP/1.1\r\nHost: {NEVER_LISTED}\r\nConnection: close\r\n\r\n");
    refused("a site that is not listed", "http without a proxy".to_owned(), HTTP_PORT, &[&request]).await
}

async fn refused(target: &str, via: String, port: u16, requests: &[&str]) -> Attempt {
    match with_retries(|| ask(port, requests)).await {
        Some(Ok(answer)) => {
            let (reach, seen) = judge(&answer);
            attempt(target, via, reach, seen)
        }
        // A proxy that is not running forwards nothing.
        Some(Err(error)) => attempt(target, via, Reach::Blocked, format!("the proxy is down: {error}")),
        None => attempt(target, via, Reach::Unknown, "the proxy did not answer in time"),
    }
}

/// Makes up to [`TRIES`] attempts, and returns the first response that arrives within the time limit.
async fn with_retries<F: Future>(ask: impl Fn() -> F) -> Option<F::Output> {
    for _ in 0..TRIES {
        if let Ok(answer) = tokio::time::timeout(PATIENCE, ask()).await {
            return Some(answer);
        }
    }
    None
}

/// Sends several requests over one connection. Each request is sent after the head of the previous response has
/// arrived. Returns the last response.
async fn ask(port: u16, requests: &[&str]) -> std::io::Result<String> {
    let mut connection = TcpStream::connect((Addresses::find().proxy, port)).await?;
    converse(&mut connection, requests).await
}

async fn converse<IO>(connection: &mut IO, requests: &[&str]) -> std::io::Result<String>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let Some((last, first)) = requests.split_last() else { return Ok(String::new()) };
    for request in first {
        connection.write_all(request.as_bytes()).await?;
        let head = read_head(connection).await?;
        if !head.starts_with("HTTP/1.1 200") {
            return Ok(head);
        }
    }
    connection.write_all(last.as_bytes()).await?;
    let mut answer = Vec::new();
    connection.take(ANSWER as u64).read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Reads the head of a response up to the empty line. Reads no further, because the next bytes belong to the tunnel.
async fn read_head(connection: &mut (impl AsyncRead + Unpin)) -> std::io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") && head.len() < ANSWER {
        head.push(connection.read_u8().await?);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// Converts a response to a result. Only a denial by the proxy, which has a specific status and reason, counts as
/// *blocked*.
fn judge(answer: &str) -> (Reach, String) {
    let status = answer.split_whitespace().nth(1).unwrap_or("nothing");
    let reason = answer.lines().take_while(|line| !line.is_empty()).find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("x-bottle-reason").then(|| value.trim())
    });
    match (status, reason) {
        ("403", Some(reason)) => (Reach::Blocked, format!("403 {reason}")),
        ("nothing", _) => (Reach::Blocked, "the proxy closed without an answer".to_owned()),
        (status, _) => (Reach::Reached, format!("with_retries {status}")),
    }
}

async fn resolve() -> Attempt {
    let target = "what a name leads to";
    let via = format!("dns {NEVER_LISTED}");
    match with_retries(addresses).await {
        Some(Ok(answer)) if answer.ends_with(&Addresses::find().proxy.octets()) => {
            attempt(target, via, Reach::Blocked, "every name is the proxy")
        }
        Some(Ok(_)) => attempt(target, via, Reach::Reached, "the name was looked up"),
        Some(Err(error)) => attempt(target, via, Reach::Blocked, format!("no resolver answers: {error}")),
        None => attempt(target, via, Reach::Unknown, "the resolver did not answer in time"),
    }
}

async fn addresses() -> std::io::Result<Vec<u8>> {
    let Addresses { resolver, .. } = Addresses::find();
    let any: IpAddr =
        if resolver.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect((resolver, DNS_PORT)).await?;
    socket.send(&question(NEVER_LISTED)).await?;
    let mut answer = vec![0; 512];
    let length = socket.recv(&mut answer).await?;
    answer.truncate(length);
    Ok(answer)
}

/// Encodes a DNS query for the IPv4 address of `name` (RFC 1035 section 4.1).
fn question(name: &str) -> Vec<u8> {
    let mut message = b"bo\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00".to_vec();
    for label in name.split('.') {
        // The conversion does not fail, because the only name is a constant with short labels.
        message.push(u8::try_from(label.len()).unwrap_or(0));
        message.extend_from_slice(label.as_bytes());
    }
    message.extend_from_slice(b"\x00\x00\x01\x00\x01");
    message
}

#[cfg(test)]
mod tests {
    use bottle_policy::names::PROXY_LOOPBACK;
    use bottle_protocol::dns;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn retries_a_silent_peer_a_few_times() {
        let asked = std::cell::Cell::new(0);
        let silent = |times: usize| {
            asked.set(0);
            let asked = &asked;
            move || {
                asked.set(asked.get() + 1);
                let answers = asked.get() > times;
                async move { if answers { 7 } else { std::future::pending().await } }
            }
        };
        assert_eq!(with_retries(silent(0)).await, Some(7));
        assert_eq!(with_retries(silent(2)).await, Some(7));
        assert_eq!(with_retries(silent(99)).await, None);
        assert_eq!(asked.get(), TRIES);
    }

    #[test]
    fn only_a_denial_with_a_reason_counts_as_blocked() {
        let refusal = "HTTP/1.1 403 Forbidden\r\nX-Bottle-Reason: host-not-allowed\r\n\r\nwords";
        assert_eq!(judge(refusal), (Reach::Blocked, "403 host-not-allowed".to_owned()));
        assert_eq!(judge("HTTP/1.1 200 OK\r\n\r\n").0, Reach::Reached);
        assert_eq!(judge("HTTP/1.1 403 Forbidden\r\n\r\nX-Bottle-Reason: x").0, Reach::Reached);
        assert_eq!(judge("").0, Reach::Blocked);
    }

    #[tokio::test]
    async fn judges_the_response_inside_a_tunnel_or_the_refused_tunnel() {
        let refusal = "HTTP/1.1 403 Forbidden\r\nx-bottle-reason: host-not-allowed\r\n\r\n";
        for (first, last, reach) in [
            ("HTTP/1.1 200 OK\r\n\r\n", refusal, Reach::Blocked),
            ("HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\nleaked", Reach::Reached),
            (refusal, "", Reach::Blocked),
        ] {
            let (mut here, mut there) = tokio::io::duplex(4096);
            let proxy = tokio::spawn(async move {
                let mut received = [0; 4];
                there.read_exact(&mut received).await.expect("the first request");
                there.write_all(first.as_bytes()).await.expect("its answer");
                if !last.is_empty() {
                    there.read_exact(&mut received).await.expect("the second request");
                    there.write_all(last.as_bytes()).await.expect("its answer");
                }
            });
            let answer = converse(&mut here, &["one!", "two!"]).await.expect("an answer");
            assert_eq!(judge(&answer).0, reach, "{answer:?}");
            proxy.await.expect("the proxy");
        }
    }

    #[test]
    fn sends_a_valid_dns_question() {
        let answer = dns::answer(&question(NEVER_LISTED), PROXY_LOOPBACK).expect("an answer");
        assert!(answer.ends_with(&PROXY_LOOPBACK.octets()));
    }
}
