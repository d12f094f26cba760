//! Generates load: sends requests to a proxy for a given time, and measures how many are answered.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::Bytes;
use futures_util::future::try_join_all;
use futures_util::{SinkExt, StreamExt};
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio_tungstenite::tungstenite::Message;

use crate::HOST;
use crate::content::{Content, LENGTH};
use crate::peer::Peer;
use crate::site::{LAST, SOCKET};

/// The number of concurrent requests.
const CLIENTS: usize = 16;

/// The number of HTTP/2 connections that the concurrent requests share.
const SHARED: usize = 4;

/// How the requests use connections and HTTP versions.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Load {
    KeptHttp1,
    KeptHttp2,
    NewConnections,
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KeptHttp1 => "HTTP/1.1, kept-alive connections",
            Self::KeptHttp2 => "HTTP/2, kept-alive connections",
            Self::NewConnections => "HTTP/1.1, a new connection each",
        })
    }
}

impl Load {
    /// Returns how many requests with `content` the target `peer` answers per second. `turn` is the duration of the
    /// measurement.
    pub(crate) async fn per_second(self, peer: &Peer, content: Content, turn: Duration) -> Result<f64> {
        // Connections that are kept alive are opened before the measurement starts.
        let mut clients = Vec::new();
        let mut shared = Vec::new();
        for n in 0..CLIENTS {
            clients.push(match self {
                Self::KeptHttp1 => Client::Http1(http1(peer).await?),
                Self::KeptHttp2 => {
                    if shared.len() < SHARED {
                        shared.push(http2(peer).await?);
                    }
                    Client::Http2(shared[n % SHARED.min(shared.len())].clone())
                }
                Self::NewConnections => Client::New,
            });
        }
        let started = Instant::now();
        let until = started + turn;
        let counts = try_join_all(clients.into_iter().map(|client| client.run(peer, content, until))).await?;
        Ok(f64::from(counts.iter().sum::<u32>()) / started.elapsed().as_secs_f64())
    }
}

enum Client {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
    New,
}

impl Client {
    async fn run(mut self, peer: &Peer, content: Content, until: Instant) -> Result<u32> {
        let (target, body) = (content.target(), Bytes::from(content.question()));
        let mut count = 0;
        while Instant::now() < until {
            match &mut self {
                Self::Http1(sender) => {
                    sender.ready().await?;
                    whole(sender.send_request(post(&target, body.clone())).await?).await?;
                }
                Self::Http2(sender) => {
                    sender.ready().await?;
                    let uri = format!("https://{HOST}{target}");
                    whole(sender.send_request(post(&uri, body.clone())).await?).await?;
                }
                Self::New => {
                    let mut sender = http1(peer).await?;
                    whole(sender.send_request(post(&target, body.clone())).await?).await?;
                }
            }
            count += 1;
        }
        Ok(count)
    }
}

/// Sends requests one after another on one connection. Returns the median duration of a request, in seconds.
pub(crate) async fn one_by_one(peer: &Peer, content: Content, turn: Duration) -> Result<f64> {
    let (target, body) = (content.target(), Bytes::from(content.question()));
    let mut sender = http1(peer).await?;
    let mut times = Vec::new();
    let until = Instant::now() + turn;
    while Instant::now() < until {
        let started = Instant::now();
        sender.ready().await?;
        whole(sender.send_request(post(&target, body.clone())).await?).await?;
        times.push(started.elapsed().as_secs_f64());
    }
    Ok(crate::median(&mut times))
}

/// Sends messages with `content` over one WebSocket. Returns how many MiB of text `peer` relays to the site per second.
pub(crate) async fn over_websocket(peer: &Peer, content: Content, turn: Duration) -> Result<f64> {
    let tls = peer.connect(&peer.tls(b"http/1.1")?).await?;
    let (mut socket, _) = tokio_tungstenite::client_async(format!("wss://{HOST}{SOCKET}"), tls).await?;
    let message = Message::text(content.question());
    let started = Instant::now();
    let mut sent = 0;
    while started.elapsed() < turn {
        socket.send(message.clone()).await?;
        sent += LENGTH;
    }
    socket.send(Message::text(LAST)).await?;
    ensure!(socket.next().await.is_some_and(|answer| answer.is_ok()), "the WebSocket was closed");
    Ok(sent as f64 / f64::from(1 << 20) / started.elapsed().as_secs_f64())
}

/// Opens idle connections, which remain open until the returned values are dropped.
pub(crate) async fn idle(peer: &Peer, count: usize) -> Result<Vec<impl Sized + use<>>> {
    let mut idle = Vec::new();
    for _ in 0..count {
        let mut sender = http1(peer).await?;
        let request = post(&Content::Prose.target(), Content::Prose.question().into());
        whole(sender.send_request(request).await?).await?;
        idle.push(sender);
    }
    Ok(idle)
}

/// Sends one request whose body has `bytes` bytes.
pub(crate) async fn large(peer: &Peer, bytes: usize) -> Result<()> {
    let line = Content::Code.question();
    let text: Vec<u8> = line.bytes().cycle().take(bytes).collect();
    let mut sender = http1(peer).await?;
    whole(sender.send_request(post(&Content::Ordinary.target(), text.into())).await?).await
}

async fn http1(peer: &Peer) -> Result<http1::SendRequest<Full<Bytes>>> {
    let tls = peer.connect(&peer.tls(b"http/1.1")?).await?;
    let (sender, connection) = http1::handshake(TokioIo::new(tls)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

async fn http2(peer: &Peer) -> Result<http2::SendRequest<Full<Bytes>>> {
    let tls = peer.connect(&peer.tls(b"h2")?).await?;
    ensure!(tls.get_ref().1.alpn_protocol() == Some(b"h2"), "the peer has no HTTP/2");
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(tls)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

fn post(uri: &str, body: Bytes) -> Request<Full<Bytes>> {
    let mut request = Request::post(uri).body(Full::new(body)).unwrap_or_default();
    let headers = request.headers_mut();
    headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if !uri.starts_with("https") {
        headers.insert(http::header::HOST, HeaderValue::from_static(HOST));
    }
    request
}

async fn whole(response: Response<Incoming>) -> Result<()> {
    ensure!(response.status() == 200, "the answer is {}", response.status());
    let body = response.into_body().collect().await?.to_bytes();
    ensure!(body.len() == LENGTH, "the body has {} bytes", body.len());
    Ok(())
}
