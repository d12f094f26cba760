//! Accepts connections and serves HTTP/1.1 and HTTP/2 on them, within fixed bounds.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bottle_daemon::{BindError, Listener, ListenerConfig};
use bottle_policy::names::{DNS_PORT, EGRESS_PORTS, HTTPS_PORT};
use bottle_resolver::Resolver;
use http::{Method, Version};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;

use super::early_hints::{EarlyHints, EarlyHintsIo};
use super::io::ClientIo;
use super::{ConnectionContext, tunnel};
use crate::egress::Egress;
use crate::request::body::Body;
use crate::tls::hello::{self, Protocol};
use crate::{bounds, request};

/// Why the listeners cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error(transparent)]
    Port(#[from] BindError),
    #[error(transparent)]
    Resolver(#[from] bottle_resolver::BindError),
}

/// Opens all listeners, and in network mode the DNS resolver. Accepts no connection before all of them are bound.
///
/// # Errors
/// [`OpenError`] with the listener that cannot be bound. All other listeners are then closed.
pub(crate) async fn open(egress: &Arc<Egress>, proxy: &ListenerConfig) -> Result<(), OpenError> {
    let mut listeners = Vec::new();
    for port in EGRESS_PORTS {
        listeners.push(Listener::bind(proxy, port).await?);
    }
    if let ListenerConfig::Network { address, bottle } = proxy {
        Resolver::bind(*address, DNS_PORT, Some(*bottle)).await?.serve();
    }
    let slots = Arc::new(Semaphore::new(bounds::CONNECTIONS));
    for listener in listeners {
        tokio::spawn(listen(Arc::clone(egress), listener, Arc::clone(&slots)));
    }
    Ok(())
}

/// Accepts connections until the process ends.
async fn listen(egress: Arc<Egress>, listener: Listener, slots: Arc<Semaphore>) {
    /// The id of the next connection.
    static NEXT: AtomicU64 = AtomicU64::new(1);
    while let Some((socket, slot)) = listener.accept(&slots).await {
        let (egress, io) = (Arc::clone(&egress), ClientIo::new(socket, slot));
        let connection = ConnectionContext::direct(NEXT.fetch_add(1, Ordering::Relaxed), listener.port());
        tokio::spawn(async move {
            // An error of one connection affects only the bottle, so the error is ignored.
            let _ = serve_connection(egress, io, connection).await;
        });
    }
}

async fn serve_connection(
    egress: Arc<Egress>,
    io: ClientIo,
    connection: ConnectionContext,
) -> io::Result<()> {
    match (hello::read(io).await?, connection.port) {
        (Protocol::Tls(hello), HTTPS_PORT) => tunnel::tls(egress, *hello, connection).await,
        (Protocol::Http(io), port) if port != HTTPS_PORT => http1(egress, io, connection).await,
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "unexpected protocol on this port")),
    }
}

/// The service that responds to the requests of one connection.
fn service(
    egress: Arc<Egress>,
    connection: ConnectionContext,
    hints: Option<EarlyHints>,
) -> impl HttpService<Incoming, ResBody = Body, Error = Infallible, Future: Send> {
    let connection = Arc::new(connection);
    service_fn(move |mut request| {
        // A client of HTTP/1.0 does not expect interim responses (RFC 9110, 15.2).
        let hints = hints.clone().filter(|_| request.version() == Version::HTTP_11);
        if let Some(hints) = &hints {
            hints.open();
            request.extensions_mut().insert(hints.clone());
        }
        let (egress, connection) = (egress.with_newest_secrets(), Arc::clone(&connection));
        async move {
            let response = match *request.method() {
                Method::CONNECT if connection.is_proxy() => tunnel::accept(egress, &connection, request),
                _ => request::handle(egress, connection, request).await,
            };
            if let Some(hints) = hints {
                hints.close();
            }
            Ok::<_, Infallible>(response)
        }
    })
}

/// Serves HTTP/1.1 on `io` until the connection ends.
pub(super) async fn http1<IO>(egress: Arc<Egress>, io: IO, connection: ConnectionContext) -> io::Result<()>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (io, hints) = EarlyHintsIo::new(io);
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(bounds::HEADERS_WITHIN)
        .max_headers(bounds::HEADERS)
        .max_header_size(bounds::HEADER_BYTES)
        .max_buf_size(bounds::HEADER_BYTES)
        .auto_date_header(false)
        // Some clients of plain HTTP close their sending side and still read the response. Over TLS, closing the
        // connection ends the request (RFC 5246, 7.2.1). Otherwise the request of a disconnected client would continue
        // until the proxy next writes to this client.
        .half_close(!connection.tls)
        .serve_connection(TokioIo::new(io), service(egress, connection, Some(hints)))
        .with_upgrades()
        .await
        .map_err(io::Error::other)
}

/// Serves HTTP/2 on `io` until the connection ends.
pub(super) async fn http2<IO>(egress: Arc<Egress>, io: IO, connection: ConnectionContext) -> io::Result<()>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(bounds::STREAMS)
        .max_pending_accept_reset_streams(bounds::PENDING_RESETS)
        .max_local_error_reset_streams(bounds::LOCAL_RESETS)
        .max_header_list_size(u32::try_from(bounds::HEADER_BYTES).unwrap_or(u32::MAX))
        .initial_stream_window_size(bounds::WINDOW)
        .initial_connection_window_size(bounds::CONNECTION_WINDOW)
        .keep_alive_interval(bounds::PING_EVERY)
        .keep_alive_timeout(bounds::PING_WITHIN)
        .auto_date_header(false)
        .serve_connection(TokioIo::new(io), service(egress, connection, None))
        .await
        .map_err(io::Error::other)
}
