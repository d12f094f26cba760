//! Pools upstream connections.
//!
//! Connections are pooled by [`Target`]. After a route changes `connect_to` or `private`, no request therefore uses a
//! connection that was opened under the old settings. All requests to a target share one HTTP/2 connection. An HTTP/1.1
//! connection serves one request at a time. The connection returns to the pool when the response body was read
//! completely.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use tokio::sync::OnceCell;
use tokio_util::either::Either;

use super::dial::Dialer;
use super::exchange::{SendError, for_http1, for_http2, http1_over, http2_over, within_deadline};
use super::trust::Trust;
use super::{Target, Unreachable, UpstreamError};
use crate::bounds;
use crate::request::body::{Body, PooledBody, ReturnToPool};

/// The most attempts to send one request. Each failed attempt used a pooled connection that turned out to be closed.
/// After these attempts, the request fails.
const MAX_ATTEMPTS: usize = 8;

/// Sends requests upstream: dials and verifies connections, sends requests over them, and pools them.
pub(crate) struct Upstream {
    dialer: Dialer,
    trust: Trust,
    pooled: Mutex<HashMap<Target, Pooled>>,
}

/// The pooled connections of one target.
#[derive(Default)]
struct Pooled {
    /// Idle HTTP/1.1 connections with the start of their idle time. The latest one is last.
    idle: Vec<(http1::SendRequest<Body>, Instant)>,
    /// The shared HTTP/2 connection. The connection is dialled once, while all requests wait.
    shared: Option<Arc<Shared>>,
}

/// A pending or open HTTP/2 connection. The inner `None` means that the target does not support HTTP/2.
struct Shared {
    dialled: OnceCell<Option<http2::SendRequest<Body>>>,
    used: Mutex<Instant>,
}

/// A connection that is ready for a request, according to its ALPN protocol.
enum Sender {
    Exclusive(http1::SendRequest<Body>),
    Shared(http2::SendRequest<Body>),
}

impl Upstream {
    /// Creates an empty pool. Connections are dialled when requests need them.
    pub(crate) fn new(dialer: Dialer, trust: Trust) -> Arc<Self> {
        Arc::new(Self { dialer, trust, pooled: Mutex::default() })
    }

    /// Returns the dialer, for connections that do not use HTTP.
    pub(crate) fn dialer(&self) -> &Dialer {
        &self.dialer
    }

    /// Replaces the resolver.
    #[cfg(test)]
    pub(crate) fn set_resolver(&mut self, resolver: super::dns_lookup::HostResolver) {
        self.dialer.resolver = resolver;
    }

    /// Sends `request` to `target` and returns the head of the response.
    ///
    /// If the server closed a pooled connection before anything was sent, the request is sent again over another
    /// connection.
    ///
    /// # Errors
    /// [`UpstreamError`] with the step that failed.
    pub(crate) async fn send(
        self: &Arc<Self>,
        target: &Target,
        mut request: Request<Body>,
    ) -> Result<Response<PooledBody>, UpstreamError> {
        for _ in 0..MAX_ATTEMPTS {
            let (sender, pooled) = self.sender(target).await?;
            match self.send_on(target, sender, request).await {
                Ok(response) => return Ok(response),
                // The server has closed the pooled connection in the meantime.
                Err(SendError { unsent: Some(unsent), .. }) if pooled => request = *unsent,
                Err(SendError { cause, .. }) => return Err(cause.at(&target.host)),
            }
        }
        Err(Unreachable::ClosesConnections.at(&target.host))
    }

    /// Sends `request` over a new HTTP/1.1 connection. A response with status 101 turns the connection into a tunnel.
    ///
    /// # Errors
    /// [`UpstreamError`] with the step that failed.
    pub(crate) async fn send_exclusive(
        self: &Arc<Self>,
        target: &Target,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, UpstreamError> {
        let io = self.dialer.dial(target, &self.trust.http1).await?;
        let sent = async {
            let mut sender = http1_over(io).await?;
            let request = for_http1(request, target)?;
            within_deadline(sender.try_send_request(request)).await
        };
        sent.await.map_err(|error: SendError| error.cause.at(&target.host))
    }

    /// Drops connections that were idle for too long. A timer calls this.
    pub(crate) fn sweep(&self) {
        let mut pooled = self.pooled.lock().unwrap_or_else(PoisonError::into_inner);
        pooled.retain(|_, pooled| {
            pooled
                .idle
                .retain(|(sender, since)| !sender.is_closed() && since.elapsed() < bounds::UPSTREAM_IDLE);
            if pooled.shared.as_ref().is_some_and(|shared| shared.is_idle()) {
                pooled.shared = None;
            }
            !pooled.idle.is_empty() || pooled.shared.is_some()
        });
    }

    /// Returns a connection for a request, and whether the connection was pooled.
    async fn sender(self: &Arc<Self>, target: &Target) -> Result<(Sender, bool), UpstreamError> {
        loop {
            let shared = {
                let mut pooled = self.pooled.lock().unwrap_or_else(PoisonError::into_inner);
                let pooled = pooled.entry(target.clone()).or_default();
                while let Some((sender, since)) = pooled.idle.pop() {
                    if sender.is_ready() && since.elapsed() < bounds::UPSTREAM_IDLE {
                        return Ok((Sender::Exclusive(sender), true));
                    }
                }
                Arc::clone(pooled.shared.get_or_insert_with(Shared::undialled))
            };
            // Concurrent requests wait until the first connection has negotiated its ALPN protocol.
            let mut exclusive = None;
            let dialled = shared
                .dialled
                .get_or_try_init(|| async {
                    Ok(match self.dial(target).await? {
                        Sender::Shared(sender) => Some(sender),
                        Sender::Exclusive(sender) => {
                            exclusive = Some(sender);
                            None
                        }
                    })
                })
                .await?;
            if let Some(sender) = exclusive {
                return Ok((Sender::Exclusive(sender), false));
            }
            match dialled {
                Some(sender) if !sender.is_closed() => {
                    *shared.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
                    return Ok((Sender::Shared(sender.clone()), true));
                }
                Some(_) => self.evict(target, &shared),
                None => return Ok((self.dial(target).await?, false)),
            }
        }
    }

    async fn dial(&self, target: &Target) -> Result<Sender, UpstreamError> {
        let io = self.dialer.dial(target, &self.trust.any).await?;
        let http2 = match &io {
            Either::Right(tls) => tls.get_ref().1.alpn_protocol() == Some(b"h2"),
            Either::Left(_) => false,
        };
        let failed = |error| Unreachable::Http(error).at(&target.host);
        if http2 {
            http2_over(io).await.map(Sender::Shared).map_err(failed)
        } else {
            http1_over(io).await.map(Sender::Exclusive).map_err(failed)
        }
    }

    async fn send_on(
        self: &Arc<Self>,
        target: &Target,
        sender: Sender,
        request: Request<Body>,
    ) -> Result<Response<PooledBody>, SendError> {
        match sender {
            Sender::Exclusive(mut sender) => {
                let request = for_http1(request, target)?;
                let response = within_deadline(sender.try_send_request(request)).await?;
                let connection =
                    PooledConnection { upstream: Arc::clone(self), target: target.clone(), sender };
                Ok(response.map(|body| PooledBody::new(body, ReturnToPool(Some(connection)))))
            }
            Sender::Shared(mut sender) => {
                let request = for_http2(request, target)?;
                let response = within_deadline(sender.try_send_request(request)).await;
                Ok(response?.map(|body| PooledBody::new(body, ReturnToPool(None))))
            }
        }
    }

    fn put(&self, target: Target, sender: http1::SendRequest<Body>) {
        let mut pooled = self.pooled.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = &mut pooled.entry(target).or_default().idle;
        if idle.len() < bounds::UPSTREAM_IDLE_CONNECTIONS {
            idle.push((sender, Instant::now()));
        }
    }

    fn evict(&self, target: &Target, closed: &Arc<Shared>) {
        let mut pooled = self.pooled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pooled) = pooled.get_mut(target)
            && pooled.shared.as_ref().is_some_and(|shared| Arc::ptr_eq(shared, closed))
        {
            pooled.shared = None;
        }
    }
}

impl Shared {
    fn undialled() -> Arc<Self> {
        Arc::new(Self { dialled: OnceCell::new(), used: Mutex::new(Instant::now()) })
    }

    /// Whether the connection was unused for so long that the next request must dial and negotiate ALPN again.
    fn is_idle(self: &Arc<Self>) -> bool {
        let used = *self.used.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::strong_count(self) == 1 && used.elapsed() >= bounds::UPSTREAM_IDLE
    }
}

/// An HTTP/1.1 connection in use. The connection returns to the pool when its response was read completely.
pub(crate) struct PooledConnection {
    upstream: Arc<Upstream>,
    target: Target,
    sender: http1::SendRequest<Body>,
}

impl PooledConnection {
    /// Returns the connection to the pool.
    pub(crate) fn release(mut self) {
        if self.sender.is_ready() {
            self.upstream.put(self.target, self.sender);
            return;
        }
        // The connection's task determines whether the connection can take another request.
        tokio::spawn(async move {
            if self.sender.ready().await.is_ok() {
                self.upstream.put(self.target, self.sender);
            }
        });
    }
}
