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

/// Looks at a body that goes by.
pub(crate) trait Watch {
    /// The next piece of it.
    fn piece(&mut self, _piece: &Bytes) {}

    /// It is over, or given up: told once. `whole`: all of it came.
    fn over(&mut self, _whole: bool) {}
}

/// A body that goes on as it is while somebody looks at it.
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
                // Nothing comes behind trailers.
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

/// An answer's body; at its end the connection goes back to the pool.
pub(crate) type Returned = Watched<Incoming, Returning>;

/// What is given back when the body was read to its end, and dropped (closing the connection) otherwise.
pub(crate) struct Returning(pub(crate) Option<Back>);

impl Watch for Returning {
    fn over(&mut self, whole: bool) {
        if let Some(back) = self.0.take().filter(|_| whole) {
            back.give();
        }
    }
}
