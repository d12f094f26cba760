//! Bodies on their way, both ways, with a deadline on silence.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep};

use crate::upstream::pool::Back;

/// Why a body broke off.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// A body that the pipeline passes on.
pub(crate) type Body = UnsyncBoxBody<Bytes, BodyError>;

/// No bytes.
pub(crate) fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// These bytes.
pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// A body that arrives, given up when nothing of it comes for `patience` while somebody waits for it.
pub(crate) struct Patient<B> {
    body: B,
    patience: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<B> Patient<B> {
    /// Waits at most `patience` for each frame of `body`.
    pub(crate) fn new(body: B, patience: Duration) -> Self {
        Self { body, patience, waiting: None }
    }
}

/// Nothing of a body came for too long.
#[derive(Debug, thiserror::Error)]
#[error("a body was silent for {} s", .0.as_secs())]
struct Silent(Duration);

impl<B> HttpBody for Patient<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<BodyError>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
            this.waiting = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let until = Instant::now() + this.patience;
        let waiting = this.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        ready!(waiting.as_mut().poll(cx));
        Poll::Ready(Some(Err(Box::new(Silent(this.patience)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// An answer's body; at its end the connection goes back to the pool.
pub(crate) struct Returned {
    body: Incoming,
    back: Option<Back>,
    ended: bool,
}

impl Returned {
    /// `back` is given when `body` was read to its end, and dropped (closing the connection) otherwise.
    pub(crate) fn new(body: Incoming, back: Option<Back>) -> Self {
        Self { body, back, ended: false }
    }
}

impl HttpBody for Returned {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        self.ended |= frame.is_none();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Returned {
    fn drop(&mut self) {
        // A body with a known length is not polled again after its last byte.
        if (self.ended || self.body.is_end_stream())
            && let Some(back) = self.back.take()
        {
            back.give();
        }
    }
}
