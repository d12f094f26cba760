//! HTTP clients that use one connection through the proxy, for tests that are not possible with curl.

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio_rustls::client::TlsStream;

use super::fixture::{ProxyFixture, trusting};

/// The type of request bodies in tests.
pub(super) type TestBody = UnsyncBoxBody<Bytes, std::io::Error>;

/// Opens a CONNECT tunnel to `host` and starts TLS inside the tunnel.
pub(super) async fn tunnel(proxy: &ProxyFixture, host: &str, alpn: &[&[u8]]) -> TlsStream<UnixStream> {
    let mut socket = proxy.connect(9099).await;
    let ask = format!("CONNECT {host}:443 HTTP/1.1\r\nHost: {host}:443\r\n\r\n");
    socket.write_all(ask.as_bytes()).await.expect("ask");
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(socket.read_u8().await.expect("answer"));
    }
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    let name = ServerName::try_from(host.to_owned()).expect("name");
    trusting(&proxy.egress, alpn).connect(name, socket).await.expect("TLS")
}

/// Opens an HTTP/1.1 connection to `host` through the proxy.
pub(super) async fn http1(proxy: &ProxyFixture, host: &str) -> http1::SendRequest<TestBody> {
    let tls = tunnel(proxy, host, &[b"http/1.1"]).await;
    let (sender, connection) = http1::handshake(TokioIo::new(tls)).await.expect("HTTP/1.1");
    tokio::spawn(connection.with_upgrades());
    sender
}

/// Opens an HTTP/2 connection to `host` through the proxy.
pub(super) async fn http2(proxy: &ProxyFixture, host: &str) -> http2::SendRequest<TestBody> {
    let tls = tunnel(proxy, host, &[b"h2"]).await;
    assert_eq!(tls.get_ref().1.alpn_protocol(), Some(b"h2".as_slice()));
    let (sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(tls)).await.expect("HTTP/2");
    tokio::spawn(connection);
    sender
}

/// Returns a GET request for an HTTP/1.1 connection.
pub(super) fn get(host: &str, path: &str) -> Request<TestBody> {
    Request::get(path).header("host", host).body(no_body()).expect("request")
}

/// Returns a GET request for an HTTP/2 connection.
pub(super) fn get2(host: &str, path: &str) -> Request<TestBody> {
    Request::get(format!("https://{host}{path}")).body(no_body()).expect("request")
}

/// An empty body.
pub(super) fn no_body() -> TestBody {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// Returns the status and the complete body of a response.
pub(super) async fn read(response: Response<Incoming>) -> (StatusCode, Bytes) {
    let status = response.status();
    (status, response.into_body().collect().await.expect("body").to_bytes())
}
