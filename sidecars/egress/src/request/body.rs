//! Bodies with an idle timeout, and bodies with an observer.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

/// Why a body ended before it was complete.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// A frame of a body, or the error that ended the body.
pub(crate) type FrameResult = Result<Frame<Bytes>, BodyError>;

/// The outcome of polling a body for its next frame.
pub(crate) type PollFrame = Poll<Option<FrameResult>>;

/// A body in the pipeline.
pub(crate) type Body = UnsyncBoxBody<Bytes, BodyError>;

/// An empty body.
pub(crate) fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// A body that consists of `bytes`.
pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// A body that fails if no frame arrives within `limit` while it is polled.
pub(crate) struct IdleTimeout<B> {
    body: B,
    limit: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<B> IdleTimeout<B> {
    /// Waits at most `limit` for each frame of `body`.
    pub(crate) fn new(body: B, limit: Duration) -> Self {
        Self { body, limit, waiting: None }
    }
}

/// Why the proxy ended a body before it was complete.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BrokenBody {
    #[error("a body sent nothing for {} s", .0.as_secs())]
    Idle(Duration),
    #[error("a buffered body is incomplete")]
    Incomplete,
    #[error("the response ended early")]
    EndedEarly,
    #[error("the response was cut")]
    Cut,
}

impl<B> HttpBody for IdleTimeout<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<BodyError>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> PollFrame {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
            this.waiting = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let until = Instant::now() + this.limit;
        let waiting = this.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        ready!(waiting.as_mut().poll(cx));
        Poll::Ready(Some(Err(BrokenBody::Idle(this.limit).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// An observer of a body.
pub(crate) trait Observe {
    /// Called with each chunk.
    fn on_data(&mut self, _data: &Bytes) {}

    /// Called with the trailers. The observer may change them.
    fn on_trailers(&mut self, _trailers: &mut HeaderMap) {}

    /// Called once, when the body ends or is dropped. `whole` says whether the body was complete.
    fn on_end(&mut self, _whole: bool) {}
}

/// A body with an observer. The data is forwarded unchanged.
pub(crate) struct Observed<B: HttpBody, W: Observe> {
    body: B,
    observer: W,
    ended: bool,
}

impl<B: HttpBody, W: Observe> Observed<B, W> {
    pub(crate) fn new(body: B, observer: W) -> Self {
        Self { body, observer, ended: false }
    }

    fn finish(&mut self, whole: bool) {
        if !std::mem::replace(&mut self.ended, true) {
            self.observer.on_end(whole);
        }
    }
}

impl<B, W> HttpBody for Observed<B, W>
where
    B: HttpBody<Data = Bytes> + Unpin,
    W: Observe + Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let mut frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        match &mut frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    self.observer.on_data(data);
                } else if let Some(trailers) = frame.trailers_mut() {
                    self.observer.on_trailers(trailers);
                    // Trailers are the last frame of a body.
                    self.finish(true);
                }
            }
            Some(Err(_)) => self.finish(false),
            None => self.finish(true),
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

impl<B: HttpBody, W: Observe> Drop for Observed<B, W> {
    fn drop(&mut self) {
        // A body with a known length is not polled again after its last byte, so its end is checked here.
        let whole = self.body.is_end_stream();
        self.finish(whole);
    }
}
