//! Stage 7 of the request pipeline: sends the allowed request upstream and streams the response back.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, Version};
use http_body_util::BodyExt;
use hyper::body::Body as HttpBody;

use super::body::{Body, BodyError, IdleTimeout, Observe, Observed};
use super::credentials::InjectedHead;
use super::headers;
use crate::bounds;
use crate::upstream::pool::Upstream;
use crate::upstream::{OnEarlyHints, Target, Unreachable, UpstreamError};

/// A request to send. Host, path and query are in canonical form; headers and body are as received, except for stripped
/// and injected headers.
pub(super) struct Outgoing {
    pub(super) target: Target,
    pub(super) method: Method,
    /// Path and query in canonical form, as the policy decided on them.
    pub(super) path_and_query: String,
    pub(super) headers: InjectedHead,
    pub(super) body: Body,
    /// Receives the early hints before the response.
    pub(super) hints: Option<OnEarlyHints>,
}

/// Sends a request and returns the response. The response body is streamed.
///
/// # Errors
/// [`UpstreamError`] with the step that failed. Also an error if the host switches to a protocol that the request did
/// not ask for.
pub(super) async fn send(
    upstream: &Arc<Upstream>,
    outgoing: Outgoing,
) -> Result<Response<Body>, UpstreamError> {
    let (target, request) = outgoing.into_request()?;
    let response = upstream.send(&target, request).await?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        // This response would make the bottle's connection a tunnel.
        return Err(Unreachable::UnrequestedUpgrade.at(&target.host));
    }
    Ok(for_bottle(response))
}

/// Returns the response as the bottle receives it.
pub(super) fn for_bottle<B>(response: Response<B>) -> Response<Body>
where
    B: HttpBody<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Into<BodyError>,
{
    let (mut parts, body) = response.into_parts();
    headers::for_bottle(&mut parts.headers);
    // The connections to upstream and to the bottle may have different HTTP versions. hyper's server sets the version
    // for the bottle. The extensions are cleared because the reason phrase is unscanned text from upstream; hyper
    // writes the standard phrase of the status instead.
    parts.version = Version::default();
    parts.extensions.clear();
    let body = IdleTimeout::new(body, bounds::RESPONSE_BODY_IDLE);
    Response::from_parts(parts, Observed::new(body, WithoutOwnTrailers).boxed_unsync())
}

/// Prevents a response's trailers from forging headers that only the proxy may set.
struct WithoutOwnTrailers;

impl Observe for WithoutOwnTrailers {
    fn on_trailers(&mut self, trailers: &mut HeaderMap) {
        headers::remove_own(trailers);
    }
}

impl Outgoing {
    /// Returns the request without the hop-by-hop headers of the bottle's connection, and its target.
    pub(super) fn into_request(self) -> Result<(Target, Request<Body>), UpstreamError> {
        let Self { target, method, path_and_query, headers, body, hints } = self;
        let request = Request::builder().method(method).uri(path_and_query).body(body);
        let mut request = request.map_err(|error| Unreachable::Request(error).at(&target.host))?;
        *request.headers_mut() = headers.into_headers();
        headers::for_upstream(request.headers_mut());
        if let Some(hints) = hints {
            request.extensions_mut().insert(hints);
        }
        Ok((target, request))
    }
}
