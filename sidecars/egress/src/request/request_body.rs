//! The request body as it arrives from the bottle.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, header};
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Incoming, SizeHint};
use tokio::time::timeout;

use super::body::{Body, BodyError, IdleTimeout, Observed, PollFrame};
use super::credentials::CredentialRewrite;
use crate::bounds;

/// An unread request body.
///
/// When the body is dropped, the proxy continues to read it for a limited time ([`drain`]). A client that is still
/// sending the body does not read the response yet, and would lose the response if the proxy closed the connection.
/// With HTTP/2, the client would treat the reset of the stream as a failure of the request.
pub(super) struct RequestBody {
    body: Option<IdleTimeout<Incoming>>,
    drains: bool,
}

impl RequestBody {
    /// Creates the body of a request with `headers`.
    pub(super) fn new(body: Incoming, headers: &HeaderMap) -> Self {
        // With `Expect`, the client sends no body until the proxy reads it.
        let drains = !headers.contains_key(header::EXPECT);
        let body = Some(IdleTimeout::new(body, bounds::REQUEST_BODY_IDLE));
        Self { body, drains }
    }

    /// Returns the body to send upstream. The body's trailers are stripped like the headers.
    pub(super) fn into_body(self, rewrite: CredentialRewrite) -> Body {
        Observed::new(self, rewrite).boxed_unsync()
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> PollFrame {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(body).poll_frame(cx));
        if !matches!(frame, Some(Ok(_))) {
            self.body = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), HttpBody::size_hint)
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if let Some(body) = self.body.take().filter(|body| self.drains && !body.is_end_stream()) {
            tokio::spawn(timeout(bounds::DRAIN_WITHIN, drain(body)));
        }
    }
}

/// Reads and discards up to [`bounds::DRAIN_BYTES`] bytes.
async fn drain(mut body: IdleTimeout<Incoming>) {
    let mut remaining = bounds::DRAIN_BYTES;
    while let Some(Ok(frame)) = body.frame().await {
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        match remaining.checked_sub(bytes) {
            Some(less) => remaining = less,
            None => return,
        }
    }
}
