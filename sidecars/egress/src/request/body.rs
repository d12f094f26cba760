//! Bodies with an idle timeout, and observers of bodies.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep};

use crate::upstream::pool::Back;

/// Why a body ended early.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// A body in the pipeline.
pub(crate) type Body = UnsyncBoxBody<Bytes, BodyError>;

/// An empty body.
pub(crate) fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// A body of these bytes.
pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// A body that fails when no frame arrives for `limit` while it is polled.
pub(crate) struct Patient<B> {
    body: B,
    patience: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<B> Patient<B> {
    /// Waits at most `limit` for each frame of `body`.
    pub(crate) fn new(body: B, patience: Duration) -> Self {
        Self { body, patience, waiting: None }
    }
}

/// A body sent nothing for too long.
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

/// Observes a body.
pub(crate) trait Watch {
    /// Called with each chunk.
    fn piece(&mut self, _piece: &Bytes) {}

    /// Called once, at the end or when the body is dropped. `whole`: the body was complete.
    fn over(&mut self, _whole: bool) {}
}

/// A body that passes unchanged while an observer reads it.
pub(crate) struct Watched<B: HttpBody, W: Watch> {
    body: B,
    watch: W,
    is_over: bool,
}

impl<B: HttpBody, W: Watch> Watched<B, W> {
    pub(crate) fn new(body: B, watch: W) -> Self {
        Self { body, watch, is_over: false }
    }

    fn over(&mut self, whole: bool) {
        if !std::mem::replace(&mut self.is_over, true) {
            self.watch.over(whole);
        }
    }
}

impl<B, W> HttpBody for Watched<B, W>
where
    B: HttpBody<Data = Bytes> + Unpin,
    W: Watch + Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => match frame.data_ref() {
                Some(piece) => self.watch.piece(piece),
                // Nothing follows trailers.
                None => self.over(true),
            },
            Some(Err(_)) => self.over(false),
            None => self.over(true),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B: HttpBody, W: Watch> Drop for Watched<B, W> {
    fn drop(&mut self) {
        // A body with a known length is not polled again after its last byte.
        let whole = self.body.is_end_stream();
        self.over(whole);
    }
}

/// A response body that returns its connection to the pool at its end.
pub(crate) type Returned = Watched<Incoming, Returning>;

/// Returns the connection when the body was read to its end, and drops (closes) it otherwise.
pub(crate) struct Returning(pub(crate) Option<Back>);

impl Watch for Returning {
    fn over(&mut self, whole: bool) {
        if let Some(back) = self.0.take().filter(|_| whole) {
            back.give();
        }
    }
}
