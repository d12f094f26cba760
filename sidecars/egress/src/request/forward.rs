//! Stage 7, forwarding: sends the decided request upstream and streams the response back.

use std::sync::Arc;

use bytes::Bytes;
use http::header::SEC_WEBSOCKET_EXTENSIONS;
use http::{HeaderMap, Method, Request, Response, StatusCode, Version};
use http_body_util::BodyExt;
use hyper::body::Body as HttpBody;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::body::{self, Body, BodyError, IdleTimeout, Observe, Observed};
use super::credentials::InjectedHead;
use super::headers;
use super::messages::MessageRelay;
use crate::bounds;
use crate::egress::Egress;
use crate::listener::bridge;
use crate::upstream::pool::Upstream;
use crate::upstream::{Target, Unreachable, UpstreamError};

/// A request to send: of the bottle's own spelling only headers and body remain.
pub(super) struct Outgoing {
    pub(super) target: Target,
    pub(super) method: Method,
    /// Canonical, as decided on.
    pub(super) path_and_query: String,
    pub(super) headers: InjectedHead,
    pub(super) body: Body,
}

/// Sends a request and returns its response, whose body streams.
///
/// # Errors
/// [`UpstreamError`] naming the failed step.
pub(super) async fn send(
    upstream: &Arc<Upstream>,
    outgoing: Outgoing,
) -> Result<Response<Body>, UpstreamError> {
    let (target, request) = outgoing.into_request()?;
    Ok(for_bottle(upstream.send(&target, request).await?))
}

/// Sends a WebSocket upgrade. The bottle receives 101 only after upstream sent it. From then on messages are relayed in
/// both directions, scanned where the route requires it, until one side ends or the bottle is locked.
///
/// # Errors
/// [`UpstreamError`] naming the failed step.
pub(super) async fn websocket(
    egress: &Arc<Egress>,
    outgoing: Outgoing,
    bottle: OnUpgrade,
    messages: Option<MessageRelay>,
) -> Result<Response<Body>, UpstreamError> {
    let (target, mut request) = outgoing.into_request()?;
    headers::set_websocket_upgrade(request.headers_mut());
    if messages.is_some() {
        // Declines every extension that changes how messages are encoded, such as compression.
        request.headers_mut().remove(SEC_WEBSOCKET_EXTENSIONS);
    }
    let mut response = egress.upstream.send_exclusive(&target, request).await?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(for_bottle(response));
    }
    let upstream = hyper::upgrade::on(&mut response);
    let (scanned, lockout) = (messages.is_some(), Arc::clone(&egress.lockout));
    tokio::spawn(async move {
        let Ok((bottle, upstream)) = tokio::try_join!(bottle, upstream) else { return };
        match messages {
            Some(messages) => messages.relay(bottle, upstream).await,
            // Both ends see how it ended.
            None => tokio::select! {
                _ = bridge(TokioIo::new(bottle), TokioIo::new(upstream)) => {}
                _ = lockout.locked() => {}
            },
        }
    });
    let (mut parts, _) = response.into_parts();
    headers::for_bottle(&mut parts.headers);
    parts.extensions.clear();
    headers::set_websocket_upgrade(&mut parts.headers);
    if scanned {
        parts.headers.remove(SEC_WEBSOCKET_EXTENSIONS);
    }
    Ok(Response::from_parts(parts, body::empty()))
}

fn for_bottle<B>(response: Response<B>) -> Response<Body>
where
    B: HttpBody<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Into<BodyError>,
{
    let (mut parts, body) = response.into_parts();
    headers::for_bottle(&mut parts.headers);
    // The two sides have HTTP versions of their own, and hyper's server writes its own. The reason phrase, an
    // extension, is unscanned text from upstream; the status has a standard one.
    parts.version = Version::default();
    parts.extensions.clear();
    let body = IdleTimeout::new(body, bounds::RESPONSE_BODY_IDLE);
    Response::from_parts(parts, Observed::new(body, WithoutOwnTrailers).boxed_unsync())
}

/// Keeps a response's trailers from forging the proxy's own headers.
struct WithoutOwnTrailers;

impl Observe for WithoutOwnTrailers {
    fn on_trailers(&mut self, trailers: &mut HeaderMap) {
        headers::remove_own(trailers);
    }
}

impl Outgoing {
    /// The request without the headers of the bottle's connection, and where to send it.
    fn into_request(self) -> Result<(Target, Request<Body>), UpstreamError> {
        let Self { target, method, path_and_query, headers, body } = self;
        let request = Request::builder().method(method).uri(path_and_query).body(body);
        let mut request = request.map_err(|error| Unreachable::Request(error).at(&target.host))?;
        *request.headers_mut() = headers.into_headers();
        headers::for_upstream(request.headers_mut());
        Ok((target, request))
    }
}
