//! Pools upstream connections.
//!
//! Connections are pooled by [`Target`]. So after a route changes `connect_to` or `private`, no request uses a
//! connection that was opened with the old settings. Requests to a target share an HTTP/2 connection. If the server
//! allows no further stream on the connection, the pool opens another connection. An HTTP/1.1 connection serves one
//! request at a time. The connection returns to the pool after the response body was read completely.
//!
//! If a request failed without a response, the pool sends the request again over another connection in two cases.
//! Either the server did not process the request, or a reused connection was closed and the method is idempotent (RFC
//! 9110, 9.2.2).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use tokio::sync::{Notify, OnceCell};
use tokio::time::timeout;
use tokio_util::either::Either;

use super::dial::Dialer;
use super::exchange::{Progress, SendError, for_http1, for_http2, http1_over, send_http1, within_deadline};
use super::http2_connection::Http2;
use super::replay::Replay;
use super::trust::Trust;
use super::{Target, Unreachable, UpstreamError};
use crate::bounds;
use crate::request::body::{Body, Observe, Observed};

/// The most attempts to send one request. Attempts fail when the server has already closed a pooled connection. After
/// the last attempt, the request fails.
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
    /// Idle HTTP/1.1 connections with the start of their idle time. The most recently used connection is last.
    idle: Vec<(http1::SendRequest<Body>, Instant)>,
    /// The HTTP/2 connections. Each connection is dialled once, while its requests wait.
    shared: Vec<Arc<Shared>>,
    /// Notifies requests that wait for a free stream.
    freed: Arc<Notify>,
    /// The server's most recently announced limit of concurrent streams.
    stream_limit: Option<usize>,
    /// Whether the server has closed an idle HTTP/1.1 connection when the next request arrived. If so, requests that
    /// must not be repeated use new connections.
    closes_idle: bool,
}

/// A pending or open HTTP/2 connection. If `dialled` contains `None`, the target does not support HTTP/2.
struct Shared {
    dialled: OnceCell<Option<Http2>>,
    used: Mutex<Instant>,
    /// The number of requests that use the connection.
    streams: AtomicUsize,
    /// Whether the server has answered a request on the connection.
    answered: AtomicBool,
}

/// A connection that is ready for a request. The variant depends on the ALPN protocol of the connection.
enum Sender {
    Exclusive(http1::SendRequest<Body>),
    Shared(http2::SendRequest<Body>, StreamLease),
}

/// A connection for one request.
struct Ready {
    sender: Sender,
    /// Whether the connection was in the pool.
    pooled: bool,
    /// Whether the connection has served a request before.
    reused: bool,
}

/// A new connection.
enum Dialled {
    Http1(http1::SendRequest<Body>),
    Http2(Http2),
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

    /// Sends `request` to `target` and returns the head of the response. Sends the request again if that is safe, see
    /// the module's documentation.
    ///
    /// # Errors
    /// [`UpstreamError`] with the step that failed.
    pub(crate) async fn send(
        self: &Arc<Self>,
        target: &Target,
        request: Request<Body>,
    ) -> Result<Response<PooledBody>, UpstreamError> {
        let mut replay = Replay::new(request);
        let mut cause = Unreachable::ClosesConnections;
        let mut resent = false;
        for _ in 0..MAX_ATTEMPTS {
            let Some(request) = replay.attempt() else { break };
            let Ready { sender, pooled, reused } = self.ready(target, replay.is_idempotent()).await?;
            let exclusive = matches!(sender, Sender::Exclusive(_));
            let error = match self.send_on(target, sender, request).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            cause = error.cause;
            let again = match error.progress {
                // If the connection was pooled, the server has closed the connection in the meantime.
                Progress::Unsent => pooled,
                Progress::Refused => !std::mem::replace(&mut resent, true),
                Progress::Closed if reused => {
                    if exclusive {
                        self.pooled().entry(target.clone()).or_default().closes_idle = true;
                    }
                    replay.is_idempotent() && !std::mem::replace(&mut resent, true)
                }
                Progress::Closed | Progress::Unknown => false,
            };
            if !again {
                break;
            }
        }
        Err(cause.at(&target.host))
    }

    /// Sends `request` over a new HTTP/1.1 connection. After a response with status 101, the connection is a tunnel.
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
            send_http1(&mut sender, request).await
        };
        sent.await.map_err(|error: SendError| error.cause.at(&target.host))
    }

    /// Drops connections that were idle for too long. A timer calls this function.
    pub(crate) fn sweep(&self) {
        self.pooled().retain(|_, pooled| {
            pooled
                .idle
                .retain(|(sender, since)| !sender.is_closed() && since.elapsed() < bounds::UPSTREAM_IDLE);
            pooled.shared.retain(|shared| !shared.is_idle());
            !pooled.idle.is_empty() || !pooled.shared.is_empty()
        });
    }

    fn pooled(&self) -> std::sync::MutexGuard<'_, HashMap<Target, Pooled>> {
        self.pooled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a connection for a request.
    async fn ready(self: &Arc<Self>, target: &Target, idempotent: bool) -> Result<Ready, UpstreamError> {
        loop {
            let lease = {
                let mut pooled = self.pooled();
                let pooled = pooled.entry(target.clone()).or_default();
                while idempotent || !pooled.closes_idle {
                    let Some((sender, since)) = pooled.idle.pop() else { break };
                    if sender.is_ready() && since.elapsed() < bounds::UPSTREAM_IDLE {
                        return Ok(Ready { sender: Sender::Exclusive(sender), pooled: true, reused: true });
                    }
                }
                pooled.lease().ok_or_else(|| Arc::clone(&pooled.freed).notified_owned())
            };
            let lease = match lease {
                Ok(lease) => lease,
                Err(freed) => {
                    let freed = timeout(bounds::RESPONSE_WITHIN, freed).await;
                    freed.map_err(|_| Unreachable::StreamTimeout.at(&target.host))?;
                    continue;
                }
            };
            // Concurrent requests wait until the first request has dialled the connection and negotiated its ALPN
            // protocol.
            let (mut exclusive, mut is_first) = (None, false);
            let dialled = lease
                .shared
                .dialled
                .get_or_try_init(|| async {
                    Ok(match self.dial(target).await? {
                        Dialled::Http2(connection) => {
                            is_first = true;
                            Some(connection)
                        }
                        Dialled::Http1(sender) => {
                            exclusive = Some(sender);
                            None
                        }
                    })
                })
                .await?;
            if let Some(sender) = exclusive {
                return Ok(Ready { sender: Sender::Exclusive(sender), pooled: false, reused: false });
            }
            match dialled {
                Some(connection) => {
                    let reused = lease.shared.answered.load(Ordering::Relaxed);
                    if !is_first && !reused {
                        connection.settled().await;
                    }
                    if !is_first && lease.exceeds(connection.stream_limit()) {
                        continue;
                    }
                    let sender = connection.sender();
                    return Ok(Ready { sender: Sender::Shared(sender, lease), pooled: true, reused });
                }
                None => match self.dial(target).await? {
                    Dialled::Http1(sender) => {
                        return Ok(Ready { sender: Sender::Exclusive(sender), pooled: false, reused: false });
                    }
                    // The server supports HTTP/2 now. The next iteration dials a connection that several requests can
                    // share.
                    Dialled::Http2(_) => self.evict(target, &lease.shared),
                },
            }
        }
    }

    async fn dial(&self, target: &Target) -> Result<Dialled, UpstreamError> {
        let io = self.dialer.dial(target, &self.trust.any).await?;
        let http2 = match &io {
            Either::Right(tls) => tls.is_http2(),
            Either::Left(_) => false,
        };
        let failed = |error| Unreachable::Http(error).at(&target.host);
        if http2 {
            Http2::over(io).await.map(Dialled::Http2).map_err(failed)
        } else {
            http1_over(io).await.map(Dialled::Http1).map_err(failed)
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
                let response = send_http1(&mut sender, request).await?;
                let (upstream, target) = (Arc::clone(self), target.clone());
                let connection = PooledConnection::Exclusive { upstream, target, sender };
                Ok(response.map(|body| PooledBody::new(body, ReturnToPool(Some(connection)))))
            }
            Sender::Shared(mut sender, lease) => {
                let request = for_http2(request, target)?;
                let response = within_deadline(sender.try_send_request(request)).await?;
                lease.shared.answered.store(true, Ordering::Relaxed);
                let connection = PooledConnection::Shared(lease);
                Ok(response.map(|body| PooledBody::new(body, ReturnToPool(Some(connection)))))
            }
        }
    }

    fn put(&self, target: Target, sender: http1::SendRequest<Body>) {
        let mut pooled = self.pooled();
        let idle = &mut pooled.entry(target).or_default().idle;
        if idle.len() < bounds::UPSTREAM_IDLE_CONNECTIONS {
            idle.push((sender, Instant::now()));
        }
    }

    fn evict(&self, target: &Target, shared: &Arc<Shared>) {
        if let Some(pooled) = self.pooled().get_mut(target) {
            pooled.shared.retain(|other| !Arc::ptr_eq(other, shared));
        }
    }
}

impl Pooled {
    /// Returns a stream of an HTTP/2 connection. The connection may still have to be dialled. Returns `None` if all
    /// streams are in use and the target already has [`bounds::UPSTREAM_HTTP2_CONNECTIONS`] connections.
    fn lease(&mut self) -> Option<StreamLease> {
        let announced = &mut self.stream_limit;
        self.shared.retain(|shared| match shared.stream_limit() {
            // The server takes no further requests on this connection, so the pool drops the connection.
            Some(0) => false,
            Some(limit) => {
                *announced = Some(limit);
                true
            }
            None => true,
        });
        let assumed = self.stream_limit.unwrap_or(bounds::STREAMS_ASSUMED);
        let is_free = |shared: &&Arc<Shared>| {
            shared.streams.load(Ordering::Relaxed) < shared.stream_limit().unwrap_or(assumed)
        };
        let shared = match self.shared.iter().find(is_free) {
            Some(shared) => Arc::clone(shared),
            None if self.shared.len() < bounds::UPSTREAM_HTTP2_CONNECTIONS => {
                let shared = Shared::undialled();
                self.shared.push(Arc::clone(&shared));
                shared
            }
            None => return None,
        };
        shared.streams.fetch_add(1, Ordering::Relaxed);
        Some(StreamLease { shared, freed: Arc::clone(&self.freed) })
    }
}

impl Shared {
    fn undialled() -> Arc<Self> {
        Arc::new(Self {
            dialled: OnceCell::new(),
            used: Mutex::new(Instant::now()),
            streams: AtomicUsize::new(0),
            answered: AtomicBool::new(false),
        })
    }

    /// Returns how many requests may use the connection, or `None` while it is dialled.
    fn stream_limit(&self) -> Option<usize> {
        // If the target does not support HTTP/2, each request has its own connection.
        self.dialled.get().map(|dialled| dialled.as_ref().map_or(usize::MAX, Http2::stream_limit))
    }

    /// Whether the connection was unused for so long that the next request must dial and negotiate ALPN again.
    fn is_idle(self: &Arc<Self>) -> bool {
        let used = *self.used.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::strong_count(self) == 1 && used.elapsed() >= bounds::UPSTREAM_IDLE
    }
}

/// A reserved stream of an HTTP/2 connection. The stream is reserved from the choice of the connection to the end of
/// the response.
pub(crate) struct StreamLease {
    shared: Arc<Shared>,
    freed: Arc<Notify>,
}

impl StreamLease {
    /// Whether the connection has more leases than its limit. This happens if the pool granted leases before the limit
    /// was known, or if the connection takes no further requests.
    fn exceeds(&self, limit: usize) -> bool {
        self.shared.streams.load(Ordering::Relaxed) > limit
    }
}

impl Drop for StreamLease {
    fn drop(&mut self) {
        *self.shared.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.shared.streams.fetch_sub(1, Ordering::Relaxed);
        self.freed.notify_waiters();
    }
}

/// A response body that returns its connection to the pool when the body ends.
pub(crate) type PooledBody = Observed<Incoming, ReturnToPool>;

/// Returns the connection to the pool if the body was read completely. Otherwise drops the connection, which closes it.
pub(crate) struct ReturnToPool(Option<PooledConnection>);

impl Observe for ReturnToPool {
    fn on_end(&mut self, whole: bool) {
        if let Some(connection) = self.0.take().filter(|_| whole) {
            connection.release();
        }
    }
}

/// A connection in use. Dropping the value closes an HTTP/1.1 connection, and frees the stream of an HTTP/2 connection.
enum PooledConnection {
    /// An HTTP/1.1 connection.
    Exclusive {
        /// The pool.
        upstream: Arc<Upstream>,
        /// The connection's target.
        target: Target,
        /// The connection.
        sender: http1::SendRequest<Body>,
    },
    /// A stream of an HTTP/2 connection.
    #[expect(dead_code, reason = "dropping the lease frees the stream")]
    Shared(StreamLease),
}

impl PooledConnection {
    /// Returns the connection to the pool, because its response was read completely.
    fn release(self) {
        let Self::Exclusive { upstream, target, mut sender } = self else { return };
        if sender.is_ready() {
            upstream.put(target, sender);
            return;
        }
        // Another task waits until hyper has determined whether the connection can take another request.
        tokio::spawn(async move {
            if sender.ready().await.is_ok() {
                upstream.put(target, sender);
            }
        });
    }
}
