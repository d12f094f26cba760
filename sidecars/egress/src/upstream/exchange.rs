//! Sends one request over one connection, in the form that the HTTP version requires, with a deadline.

use http::{HeaderValue, Request, Response, Uri, Version, header};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::time::timeout;

use super::Target;
use super::dial::UpstreamIo;
use crate::bounds;
use crate::request::body::Body;

/// The outcome of hyper's `try_send_request`.
type Sent<B> = Result<Response<Incoming>, TrySendError<Request<B>>>;

/// Waits for the head of a response, for at most [`bounds::RESPONSE_WITHIN`].
///
/// # Errors
/// A message for the user, with the request if none of it was sent.
pub(super) async fn within_deadline<B>(
    response: impl Future<Output = Sent<B>>,
) -> Result<Response<Incoming>, (String, Option<Request<B>>)> {
    match timeout(bounds::RESPONSE_WITHIN, response).await {
        Ok(Ok(response)) => Ok(response),
        Ok(Err(mut error)) => {
            let unsent = error.take_message();
            Err((describe(error.error()), unsent))
        }
        Err(_) => Err(("no answer in time".to_owned(), None)),
    }
}

/// The error about a request that cannot be built, in [`within_deadline`]'s form.
pub(super) fn unsendable(error: http::Error) -> (String, Option<Request<Body>>) {
    (error.to_string(), None)
}

/// hyper's errors display the kind and hide the cause; a user needs both.
fn describe(error: &hyper::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// HTTP/1.1 puts the path in the request line and the authority in the Host header.
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

/// HTTP/2 puts both in the URI and has no Host header.
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

/// Starts HTTP/1.1 on `io`; a spawned task drives the connection.
pub(super) async fn http1_over(io: UpstreamIo) -> hyper::Result<http1::SendRequest<Body>> {
    let (sender, connection) = http1::Builder::new()
        .max_headers(bounds::HEADERS)
        .max_header_size(bounds::HEADER_BYTES)
        .max_buf_size(bounds::HEADER_BYTES)
        .handshake(TokioIo::new(io))
        .await?;
    tokio::spawn(async move {
        // Requests on the connection fail by themselves.
        let _ = connection.with_upgrades().await;
    });
    Ok(sender)
}

/// Starts HTTP/2 on `io`; a spawned task drives the connection.
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
