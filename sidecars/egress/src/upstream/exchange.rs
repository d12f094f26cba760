//! Sends one request over one connection in the format of its HTTP version, with a deadline.

use std::error::Error as _;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri, Version, header};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1};
use hyper_util::rt::TokioIo;
use tokio::sync::Notify;
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
            let unsent = error.take_message().is_some();
            let error = error.into_error();
            let progress = if unsent { Progress::Unsent } else { Progress::of(&error) };
            Err(SendError { cause: error.into(), progress })
        }
        Err(_) => Err(Unreachable::ResponseTimeout.into()),
    }
}

/// An extension of a request: a callback that receives the headers of each 103 Early Hints before the response. HTTP/2
/// servers can send hints too, but hyper does not report the hints of HTTP/2 servers.
#[derive(Clone)]
pub(crate) struct OnEarlyHints(Arc<dyn Fn(&HeaderMap) + Send + Sync>);

impl OnEarlyHints {
    pub(crate) fn new(receive: impl Fn(&HeaderMap) + Send + Sync + 'static) -> Self {
        Self(Arc::new(receive))
    }
}

/// Sends `request` over an HTTP/1.1 connection and waits for the head of the response. The request's [`OnEarlyHints`]
/// receives early hints. Other interim responses (1xx) are skipped.
///
/// # Errors
/// [`SendError`] if no response arrives, or if more than [`bounds::INTERIM_RESPONSES`] interim responses arrive.
pub(super) async fn send_http1(
    sender: &mut http1::SendRequest<Body>,
    mut request: Request<Body>,
) -> Result<Response<Incoming>, SendError> {
    let flooded = Arc::new(Notify::new());
    let (count, flood) = (AtomicUsize::new(0), Arc::clone(&flooded));
    let hints: Option<OnEarlyHints> = request.extensions_mut().remove();
    hyper::ext::on_informational(&mut request, move |interim| {
        if count.fetch_add(1, Ordering::Relaxed) == bounds::INTERIM_RESPONSES {
            flood.notify_one();
        }
        if let Some(OnEarlyHints(receive)) =
            hints.as_ref().filter(|_| interim.status() == StatusCode::EARLY_HINTS)
        {
            receive(interim.headers());
        }
    });
    tokio::select! {
        biased;
        () = flooded.notified() => Err(Unreachable::InterimFlood.into()),
        response = within_deadline(sender.try_send_request(request)) => response,
    }
}

/// Why a request got no response.
pub(super) struct SendError {
    pub(super) cause: Unreachable,
    pub(super) progress: Progress,
}

/// What is known about the processing of a request that got no response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// No part of the request was sent.
    Unsent,
    /// The server reports that it processed no part of the request (RFC 9113, 8.7).
    Refused,
    /// The connection was closed before a response. Whether the server processed the request is not known.
    Closed,
    /// The server may have processed the request.
    Unknown,
}

impl Progress {
    fn of(error: &hyper::Error) -> Self {
        let causes = || std::iter::successors(error.source(), |cause| (*cause).source());
        if let Some(error) = causes().find_map(|cause| cause.downcast_ref::<h2::Error>()) {
            // A GOAWAY fails only the streams after the last stream that the server processes.
            let refused = error.is_go_away() || error.reason() == Some(h2::Reason::REFUSED_STREAM);
            return if refused && error.is_remote() { Self::Refused } else { Self::Unknown };
        }
        let closed = |error: &io::Error| {
            use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
            matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
        };
        let io = causes().find_map(|cause| cause.downcast_ref::<io::Error>());
        match io {
            _ if error.is_canceled() => Self::Unsent,
            _ if error.is_incomplete_message() => Self::Closed,
            Some(error) if closed(error) => Self::Closed,
            _ => Self::Unknown,
        }
    }
}

impl<Cause: Into<Unreachable>> From<Cause> for SendError {
    fn from(cause: Cause) -> Self {
        Self { cause: cause.into(), progress: Progress::Unknown }
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
        // An error of the connection also fails the requests on it, so the error is ignored here.
        let _ = connection.with_upgrades().await;
    });
    Ok(sender)
}
