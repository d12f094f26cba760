//! Hostile clients: split `ClientHello`s, other protocols, floods, and clients that never finish a request.

use std::io;
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::UnixStream;
use tokio::time::{Instant, timeout};

use super::fixture::{ProxyFixture, SITE, trusting};
use crate::bounds;

/// Splits the first TLS flight into records of `size` bytes and sends them byte by byte.
async fn splitting(mut client: DuplexStream, mut proxy: UnixStream, size: usize) {
    let mut flight = vec![0; 16 * 1024];
    let read = client.read(&mut flight).await.expect("hello");
    let (header, hello) = flight[..read].split_at(5);
    for part in hello.chunks(size) {
        let length = u16::try_from(part.len()).expect("length").to_be_bytes();
        for byte in header[..3].iter().chain(&length).chain(part) {
            proxy.write_all(&[*byte]).await.expect("byte");
        }
    }
    // An error is ignored, because the test checks how each side ends.
    let _ = tokio::io::copy_bidirectional(&mut client, &mut proxy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_a_split_client_hello_whole() {
    let proxy = ProxyFixture::open().await;
    for size in [1, 3, 60, 4096] {
        for host in [SITE, "evil.example.org"] {
            let socket = proxy.connect(443).await;
            let (ours, theirs) = tokio::io::duplex(64 * 1024);
            tokio::spawn(splitting(theirs, socket, size));
            let name = ServerName::try_from(host).expect("name");
            let mut tls =
                trusting(&proxy.egress, &[]).connect(name, ours).await.expect("the proxy's certificate");
            let ask = format!("GET /a HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
            tls.write_all(ask.as_bytes()).await.expect("ask");
            let mut answer = String::new();
            // A server may close the connection without a TLS `close_notify`. The test then checks the bytes that were
            // received before the error.
            let _ = tls.read_to_string(&mut answer).await;
            let expected = if host == SITE { "HTTP/1.1 200" } else { "HTTP/1.1 403" };
            assert!(answer.starts_with(expected), "{size} {host}: {answer}");
        }
    }
}

/// Sends `bytes` to `port`. Returns the proxy's response up to the close of the connection.
async fn send(proxy: &ProxyFixture, port: u16, bytes: &[u8]) -> Vec<u8> {
    let mut socket = proxy.connect(port).await;
    // The proxy may close the connection before it has read all bytes.
    let _ = socket.write_all(bytes).await;
    let mut answer = Vec::new();
    let closed = timeout(Duration::from_secs(5), socket.read_to_end(&mut answer)).await;
    let _ = closed.expect("the proxy closes");
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closes_connections_that_are_neither_tls_nor_http() {
    let proxy = ProxyFixture::open().await;
    let endless_hello = [&[0x16, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff][..], &[0; 70_000]].concat();
    for (port, bytes) in [
        (9099, b"\x05\x01\x00".as_slice()),
        (9099, b"\x16\x03\x01\x00\x05hello"),
        (443, b"GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n"),
        (443, b"SSH-2.0-OpenSSH_9.9\r\n"),
        (80, b"\x16\x03\x01\x00\x05hello"),
        (80, b"\x00\x00\x00\x00"),
        (443, &endless_hello),
    ] {
        let answer = send(&proxy, port, bytes).await;
        // The proxy sends at most a TLS alert.
        assert!(answer.is_empty() || answer.first() == Some(&0x15), "{port}: {answer:?}");
    }
    let inside = b"CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\n\r\nSSH-2.0-x\r\n";
    let answer = String::from_utf8_lossy(&send(&proxy, 9099, inside).await).into_owned();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("\r\n\r\n"), "{answer}");
    assert!(proxy.site.visits().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denies_ambiguous_requests() {
    let proxy = ProxyFixture::open().await;
    for head in [
        "POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        "POST / HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: api.example.com\r\nHost: evil.example.org\r\n\r\n",
        "GET http://user@api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : api.example.com\r\n\r\n",
    ] {
        let head = head.replacen("\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1);
        let answer = String::from_utf8_lossy(&send(&proxy, 80, head.as_bytes()).await).into_owned();
        assert!(answer.starts_with("HTTP/1.1 4"), "{head}: {answer}");
    }
    assert!(proxy.site.visits().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bounds_the_number_and_size_of_headers() {
    let proxy = ProxyFixture::open().await;
    let many = "A: b\r\n".repeat(bounds::HEADERS + 1);
    let long = format!("A: {}\r\n", "b".repeat(bounds::HEADER_BYTES));
    for headers in [long, many] {
        let head = format!("GET / HTTP/1.1\r\nHost: api.example.com\r\n{headers}\r\n");
        let answer = String::from_utf8_lossy(&send(&proxy, 80, head.as_bytes()).await).into_owned();
        assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    }
}

/// Advances the paused clock in steps until the proxy closes the connection.
///
/// The clock advances only between the steps, because it does not advance by itself during a blocking task. The proxy
/// therefore has real time to accept the connection, to handle its timers, and to close. A close can be delayed, because
/// a process that another test has just forked holds copies of all sockets until it executes its program.
async fn closed_by_the_clock(socket: &mut UnixStream, step: Duration) {
    const STEPS: u32 = 400;
    let pause = || std::thread::sleep(Duration::from_millis(20));
    for _ in 0..STEPS {
        tokio::task::spawn_blocking(pause).await.expect("paused");
        match socket.try_read(&mut [0; 256]) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => tokio::time::advance(step).await,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("the connection is still open");
}

#[tokio::test(start_paused = true)]
async fn closes_connections_that_never_finish() {
    let proxy = ProxyFixture::open().await;
    for (port, bytes, within) in [
        (443, b"".as_slice(), bounds::HELLO_WITHIN),
        (443, b"\x16\x03\x01\x02\x00\x01", bounds::HELLO_WITHIN),
        (80, b"GET / HTTP/1.1\r\nHost: ", bounds::HEADERS_WITHIN),
        (9099, b"CONNECT api.example.com:443 HTTP/1.1\r\nHost: a\r\n\r\n", bounds::HELLO_WITHIN),
    ] {
        let started = Instant::now();
        let mut socket = proxy.connect(port).await;
        socket.write_all(bytes).await.expect("write");
        closed_by_the_clock(&mut socket, within / 4).await;
        assert!(started.elapsed() >= within, "{port} {bytes:?}: {:?}", started.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queues_a_flood_of_connections() {
    bottle_harden::process::allow_files(4096).expect("file limit");
    let proxy = ProxyFixture::open().await;
    // The last connections wait, because each listener reserves one permit for the connection that it accepts next.
    let mut open = Vec::new();
    for _ in 0..bounds::CONNECTIONS {
        let mut socket = proxy.connect(80).await;
        socket.write_all(b"G").await.expect("write");
        open.push(socket);
    }
    let ask = b"GET /allowlist HTTP/1.1\r\nHost: _egress.local\r\nConnection: close\r\n\r\n";
    let mut late = proxy.connect(80).await;
    late.write_all(ask).await.expect("ask");
    let mut answer = [0; 12];
    let early = timeout(Duration::from_millis(300), late.read_exact(&mut answer)).await;
    assert!(early.is_err(), "the flood did not fill the proxy");
    open.clear();
    timeout(Duration::from_secs(5), late.read_exact(&mut answer)).await.expect("a free slot").expect("read");
    assert_eq!(&answer, b"HTTP/1.1 200");
}
