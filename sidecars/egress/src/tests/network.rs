//! The proxy in network mode: real clients connect over TCP to the proxy's address, which serves only the bottle.

use std::net::{Ipv4Addr, SocketAddr};

use bottle_policy::names::{DNS_PORT, EGRESS_PORT, EGRESS_PORTS, HTTP_PORT};
use bottle_protocol::dns::MAX_QUERY;
use bottle_test_support::skip;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::time::timeout;

use super::fixture::{AUTH, Curl, FixtureOptions, ProxyFixture, REAL, SITE};
use crate::bounds::HELLO_WITHIN;
use crate::listener::serve;
use bottle_daemon::ListenerConfig;

/// The bottle's address in these tests.
const BOTTLE: Ipv4Addr = Ipv4Addr::new(127, 77, 0, 3);

/// A DNS query for `api.example.com`, type A.
const ASK: &[u8] =
    b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03api\x07example\x03com\x00\x00\x01\x00\x01";

/// Opens a proxy that also listens at `address`. Returns `None` if the user of the test may not bind the proxy's ports.
async fn at(address: Ipv4Addr) -> Option<ProxyFixture> {
    let wanted = FixtureOptions { route: AUTH, ..FixtureOptions::default() };
    let fixture = ProxyFixture::with(wanted).await;
    match serve::open(&fixture.egress, &ListenerConfig::Network { address, bottle: BOTTLE }).await {
        Ok(()) => Some(fixture),
        Err(error) if error.to_string().contains("ermission denied") => {
            skip::aloud("the proxy by network", &error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Runs curl with `from` as its source address.
async fn curl(fixture: &ProxyFixture, from: Ipv4Addr, arguments: &[&str]) -> Curl {
    let from = from.to_string();
    fixture.run_curl(&["--interface", &from], arguments).await
}

async fn connect(from: Ipv4Addr, to: (Ipv4Addr, u16)) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("socket");
    socket.bind(SocketAddr::from((from, 0))).expect("bind");
    socket.connect(to.into()).await.expect("connect")
}

#[tokio::test]
async fn serves_explicit_and_transparent_clients() {
    let address = Ipv4Addr::new(127, 77, 1, 2);
    let Some(proxy) = at(address).await else { return };
    let url = format!("https://{SITE}/by-proxy");
    let proxy_url = format!("http://{address}:{EGRESS_PORT}");
    let answer = curl(&proxy, BOTTLE, &["--proxy", &proxy_url, &url]).await;
    assert_eq!(answer.status(), 200);

    // The name resolves to the proxy, as with the bottle's DNS resolver.
    let url = format!("https://{SITE}/transparent");
    let resolved = format!("{SITE}:443:{address}");
    let answer = curl(&proxy, BOTTLE, &["--resolve", &resolved, &url]).await;
    assert_eq!(answer.status(), 200);
    let seen = proxy.site.visits();
    let paths: Vec<&str> = seen.iter().map(|visit| visit.path.as_str()).collect();
    assert_eq!(paths, ["/by-proxy", "/transparent"]);
    let injected = format!("Bearer {REAL}");
    assert!(seen.iter().all(|visit| visit.header("authorization") == Some(&injected)), "{seen:?}");

    // A host without a route is denied.
    let plain = format!("elsewhere.example.org:80:{address}");
    let answer = curl(&proxy, BOTTLE, &["--resolve", &plain, "http://elsewhere.example.org/"]).await;
    assert_eq!(
        (answer.status(), answer.header("x-bottle-reason").as_deref()),
        (403, Some("host-not-allowed"))
    );
}

#[tokio::test]
async fn serves_only_the_bottle() {
    let address = Ipv4Addr::new(127, 77, 2, 2);
    let Some(_proxy) = at(address).await else { return };
    let stranger = Ipv4Addr::new(127, 77, 2, 9);
    for port in EGRESS_PORTS {
        let mut connection = connect(stranger, (address, port)).await;
        let closed = timeout(HELLO_WITHIN / 2, connection.read(&mut [0; 8])).await.expect("closed at once");
        assert_eq!(closed.unwrap_or(0), 0, "port {port}");
    }
    let mut connection = connect(BOTTLE, (address, HTTP_PORT)).await;
    connection.write_all(b"GET / HTTP/1.1\r\nHost: x.example\r\n\r\n").await.expect("ask");
    let mut answer = [0; 12];
    connection.read_exact(&mut answer).await.expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 403");

    let query = async |from: Ipv4Addr| {
        let socket = UdpSocket::bind((from, 0)).await.expect("bind");
        socket.connect((address, DNS_PORT)).await.expect("connect");
        socket.send(&vec![0xff; MAX_QUERY + 1]).await.expect("send");
        socket.send(ASK).await.expect("send");
        socket
    };
    let (stranger_socket, received) = (query(stranger).await, query(BOTTLE).await);
    let mut answer = [0; 512];
    let length =
        timeout(HELLO_WITHIN, received.recv(&mut answer)).await.expect("in time").expect("an answer");
    assert!(answer[..length].starts_with(b"\x12\x34") && answer[..length].ends_with(&address.octets()));
    assert!(stranger_socket.try_recv(&mut answer).is_err(), "the stranger was answered");
}

#[tokio::test]
async fn opens_no_listener_unless_all_can_be_bound() {
    let address = Ipv4Addr::new(127, 77, 3, 2);
    let Ok(_taken) = UdpSocket::bind((address, DNS_PORT)).await else {
        return skip::aloud("the proxy by network", &"this user may not bind the resolver's port");
    };
    let fixture = ProxyFixture::open().await;
    let error = serve::open(&fixture.egress, &ListenerConfig::Network { address, bottle: BOTTLE }).await;
    let error = error.expect_err("its resolver's port is taken").to_string();
    assert!(error.contains("UDP port 53"), "{error}");
    assert!(TcpStream::connect((address, EGRESS_PORT)).await.is_err(), "a part of it is open");
}
