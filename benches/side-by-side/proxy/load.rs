//! The load: as many requests as come back in a given time.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::Bytes;
use futures_util::future::try_join_all;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::HOST;
use crate::peer::Peer;

/// Requests under way at one time.
const CLIENTS: usize = 16;

/// Connections that share them where one carries many.
const SHARED: usize = 4;

/// A way to ask.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Load {
    KeptHttp1,
    KeptHttp2,
    NewConnections,
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KeptHttp1 => "HTTP/1.1, connections kept",
            Self::KeptHttp2 => "HTTP/2, connections kept",
            Self::NewConnections => "HTTP/1.1, a new connection each",
        })
    }
}

impl Load {
    /// Requests per second that `peer` answers.
    pub(crate) async fn per_second(self, peer: &Peer, turn: Duration) -> Result<f64> {
        // Connections that are kept are made before the clock starts.
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
        let counts = try_join_all(clients.into_iter().map(|client| client.run(peer, until))).await?;
        Ok(f64::from(counts.iter().sum::<u32>()) / started.elapsed().as_secs_f64())
    }
}

enum Client {
    Http1(http1::SendRequest<Empty<Bytes>>),
    Http2(http2::SendRequest<Empty<Bytes>>),
    New,
}

impl Client {
    async fn run(mut self, peer: &Peer, until: Instant) -> Result<u32> {
        let mut count = 0;
        while Instant::now() < until {
            match &mut self {
                Self::Http1(sender) => {
                    sender.ready().await?;
                    whole(sender.send_request(get("/v1/models")).await?).await?;
                }
                Self::Http2(sender) => {
                    sender.ready().await?;
                    let uri = format!("https://{HOST}/v1/models");
                    whole(sender.send_request(get(&uri)).await?).await?;
                }
                Self::New => {
                    let mut sender = http1(peer).await?;
                    whole(sender.send_request(get("/v1/models")).await?).await?;
                }
            }
            count += 1;
        }
        Ok(count)
    }
}

/// The median time of a request, in seconds, one after the other on one connection.
pub(crate) async fn one_by_one(peer: &Peer, turn: Duration) -> Result<f64> {
    let mut sender = http1(peer).await?;
    let mut times = Vec::new();
    let until = Instant::now() + turn;
    while Instant::now() < until {
        let started = Instant::now();
        sender.ready().await?;
        whole(sender.send_request(get("/v1/models")).await?).await?;
        times.push(started.elapsed().as_secs_f64());
    }
    Ok(crate::median(&mut times))
}

async fn http1(peer: &Peer) -> Result<http1::SendRequest<Empty<Bytes>>> {
    let tls = peer.connect(&peer.tls(b"http/1.1")?).await?;
    let (sender, connection) = http1::handshake(TokioIo::new(tls)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

async fn http2(peer: &Peer) -> Result<http2::SendRequest<Empty<Bytes>>> {
    let tls = peer.connect(&peer.tls(b"h2")?).await?;
    ensure!(tls.get_ref().1.alpn_protocol() == Some(b"h2"), "the peer speaks no HTTP/2");
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(tls)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

fn get(uri: &str) -> Request<Empty<Bytes>> {
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = uri.parse().unwrap_or_default();
    let host = http::HeaderValue::from_static(HOST);
    if !uri.starts_with("https") {
        request.headers_mut().insert(http::header::HOST, host);
    }
    request
}

async fn whole(response: Response<Incoming>) -> Result<()> {
    ensure!(response.status() == 200, "the answer is {}", response.status());
    let body = response.into_body().collect().await?.to_bytes();
    ensure!(body.len() == 1024, "the body has {} bytes", body.len());
    Ok(())
}
