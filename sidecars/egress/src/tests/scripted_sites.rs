//! Upstream sites that send scripted bytes, for protocol errors that a web server library does not make.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bottle_test_support::authority::{Alpn, Authority, Leaf};
use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::fixture::{ProxyFixture, SITE};

/// A connection from the proxy.
pub(super) type SiteStream = TlsStream<TcpStream>;

/// Opens a proxy with one route to a site. `serve` receives each connection and its number, which begins at 0.
pub(super) async fn proxy_to<F, S>(alpn: Alpn, route: &str, serve: S) -> (ProxyFixture, Arc<AtomicUsize>)
where
    F: Future<Output = ()> + Send + 'static,
    S: Fn(SiteStream, usize) -> F + Send + Sync + 'static,
{
    let authority = Authority::new("scripted").expect("authority");
    let tls = TlsAcceptor::from(authority.server_config(&[SITE], Leaf::Valid, alpn).expect("config"));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("listen");
    let port = listener.local_addr().expect("address").port();
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    tokio::spawn(async move {
        let serve = Arc::new(serve);
        while let Ok((socket, _)) = listener.accept().await {
            let (tls, serve, number) =
                (tls.clone(), Arc::clone(&serve), counted.fetch_add(1, Ordering::SeqCst));
            tokio::spawn(async move {
                if let Ok(stream) = tls.accept(socket).await {
                    serve(stream, number).await;
                }
            });
        }
    });
    let proxy = ProxyFixture::open().await;
    (ProxyFixture::reopened_with_log(proxy, authority.pem(), port, route).await, connections)
}

/// Reads the head of an HTTP/1.1 request and its body. Returns `None` at the end of the connection.
pub(super) async fn read_request(stream: &mut SiteStream) -> Option<(String, Vec<u8>)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).expect("ASCII");
    let length = head
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await.ok()?;
    Some((head, body))
}

/// Sends `bytes` and flushes them. Ignores errors, because the proxy may have closed the connection.
pub(super) async fn write(stream: &mut SiteStream, bytes: &[u8]) {
    let _ = stream.write_all(bytes).await;
    let _ = stream.flush().await;
}

/// The server's side of an HTTP/2 connection, frame by frame (RFC 9113).
pub(super) struct Http2Site {
    stream: SiteStream,
    unread: BytesMut,
}

/// The head of a frame.
pub(super) struct Http2Frame {
    kind: u8,
    flags: u8,
    stream: u32,
}

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;
pub(super) const REFUSED_STREAM: u32 = 7;

impl Http2Site {
    /// Reads the client's preface and announces `limit` concurrent streams in the settings.
    pub(super) async fn start(mut stream: SiteStream, limit: u32) -> Option<Self> {
        let mut preface = [0; 24];
        stream.read_exact(&mut preface).await.ok()?;
        let mut site = Self { stream, unread: BytesMut::new() };
        site.limit(limit).await;
        Some(site)
    }

    /// Announces a limit of concurrent streams.
    pub(super) async fn limit(&mut self, limit: u32) {
        self.send(SETTINGS, 0, 0, &[&[0, 3][..], &limit.to_be_bytes()].concat()).await;
    }

    pub(super) async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).expect("length").to_be_bytes();
        let head = [&length[1..], &[kind, flags][..], &stream.to_be_bytes()].concat();
        write(&mut self.stream, &[&head[..], payload].concat()).await;
    }

    /// Returns the next frame that is not a SETTINGS frame. Returns `None` at the end of the connection. Dropping the
    /// future before it is ready loses no bytes.
    pub(super) async fn frame(&mut self) -> Option<Http2Frame> {
        loop {
            let Some(head) = self.unread.first_chunk::<9>().copied() else {
                self.read().await?;
                continue;
            };
            let length = 9 + u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            while self.unread.len() < length {
                self.read().await?;
            }
            self.unread.advance(length);
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            match head[3] {
                SETTINGS if head[4] & ACK == 0 => self.send(SETTINGS, ACK, 0, &[]).await,
                SETTINGS => {}
                kind => return Some(Http2Frame { kind, flags: head[4], stream }),
            }
        }
    }

    async fn read(&mut self) -> Option<()> {
        (self.stream.read_buf(&mut self.unread).await.ok()? > 0).then_some(())
    }

    /// Returns the stream id of the next complete request.
    pub(super) async fn request(&mut self) -> Option<u32> {
        loop {
            let frame = self.frame().await?;
            if matches!(frame.kind, HEADERS | DATA) && frame.flags & END_STREAM != 0 {
                return Some(frame.stream);
            }
        }
    }

    /// Answers with status 200 and a body.
    pub(super) async fn answer(&mut self, stream: u32, body: &[u8]) {
        // The encoded header `:status: 200`, which is index 8 of HPACK's static table.
        self.send(HEADERS, END_HEADERS, stream, &[0x88]).await;
        self.send(DATA, END_STREAM, stream, body).await;
    }
}
