//! Sends one request over one connection in the format of its HTTP version, with a deadline.

use http::{HeaderValue, Request, Response, Uri, Version, header};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::time::timeout;

use super::dial::UpstreamIo;
use super::{Target, Unreachable};
use crate::bounds;
use crate::request::body::Body;

/// The result of hyper's `try_send_request`.
type Sent = Result<Response<Incoming>, TrySendError<Request<Body>>>;

/// Waits at most [`bounds::RESPONSE_WITHIN`] for the head of a response.
///
/// # Errors
/// [`SendError`] if no response arrives.
pub(super) async fn within_deadline(
    response: impl Future<Output = Sent>,
) -> Result<Response<Incoming>, SendError> {
    match timeout(bounds::RESPONSE_WITHIN, response).await {
        Ok(Ok(response)) => Ok(response),
        Ok(Err(mut error)) => {
            let unsent = error.take_message();
            Err(SendError { cause: error.into_error().into(), unsent: unsent.map(Box::new) })
        }
        Err(_) => Err(Unreachable::ResponseTimeout.into()),
    }
}

/// Why a request got no response.
pub(super) struct SendError {
    pub(super) cause: Unreachable,
    /// The request, if none of it was sent.
    pub(super) unsent: Option<Box<Request<Body>>>,
}

impl<Cause: Into<Unreachable>> From<Cause> for SendError {
    fn from(cause: Cause) -> Self {
        Self { cause: cause.into(), unsent: None }
    }
}

/// Formats a request for HTTP/1.1: the path in the request line, the authority in the Host header.
pub(super) fn for_http1(mut request: Request<Body>, target: &Target) -> Result<Request<Body>, http::Error> {
    let mut uri = Uri::builder();
    if let Some(path) = request.uri().path_and_query() {
        uri = uri.path_and_query(path.clone());
    }
    *request.uri_mut() = uri.build()?;
    *request.version_mut() = Version::HTTP_11;
    let host = HeaderValue::try_from(target.authority())?;
    request.headers_mut().insert(header::HOST, host);
    Ok(request)
}

/// Formats a request for HTTP/2: path and authority in the URI, no Host header.
pub(super) fn for_http2(mut request: Request<Body>, target: &Target) -> Result<Request<Body>, http::Error> {
    let mut uri = Uri::builder().scheme("https").authority(target.authority());
    if let Some(path) = request.uri().path_and_query() {
        uri = uri.path_and_query(path.clone());
    }
    *request.uri_mut() = uri.build()?;
    *request.version_mut() = Version::HTTP_2;
    request.headers_mut().remove(header::HOST);
    Ok(request)
}

/// Starts HTTP/1.1 on `io`. A spawned task drives the connection.
pub(super) async fn http1_over(io: UpstreamIo) -> hyper::Result<http1::SendRequest<Body>> {
    let (sender, connection) = http1::Builder::new()
        .max_headers(bounds::HEADERS)
        .max_header_size(bounds::HEADER_BYTES)
        .max_buf_size(bounds::HEADER_BYTES)
        .handshake(TokioIo::new(io))
        .await?;
    tokio::spawn(async move {
        // An error of the connection also fails the requests on it.
        let _ = connection.with_upgrades().await;
    });
    Ok(sender)
}

/// Starts HTTP/2 on `io`. A spawned task drives the connection.
pub(super) async fn http2_over(io: UpstreamIo) -> hyper::Result<http2::SendRequest<Body>> {
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(bounds::WINDOW)
        .initial_connection_window_size(bounds::CONNECTION_WINDOW)
        .max_header_list_size(u32::try_from(bounds::HEADER_BYTES).unwrap_or(u32::MAX))
        .keep_alive_interval(bounds::PING_EVERY)
        .keep_alive_timeout(bounds::PING_WITHIN)
        .handshake(TokioIo::new(io))
        .await?;
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(sender)
}
