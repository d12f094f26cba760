//! Records a request while it is sent, so that the pool can send it again if an attempt fails before the server
//! answers.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request};
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

use crate::bounds;
use crate::request::body::{self, Body, BodyError, BrokenBody, PollFrame};

/// A request that can be sent again, as long as no response has arrived and at most [`bounds::REPLAY_BYTES`] bytes of
/// its body were sent.
pub(super) struct Replay {
    parts: Parts,
    /// `None` for a request without a body.
    body: Option<Arc<Mutex<Recorded>>>,
}

/// A body, and the part of it that was already sent.
struct Recorded {
    /// The rest of the body. `None` after the rest moved to the next attempt.
    rest: Option<Body>,
    /// The chunks sent so far. `None` if the chunks cannot be sent again.
    sent: Option<VecDeque<Bytes>>,
    length: usize,
}

impl Replay {
    /// Takes ownership of a request before its first attempt.
    pub(super) fn new(request: Request<Body>) -> Self {
        let (parts, body) = request.into_parts();
        let body = (!body.is_end_stream()).then(|| Recorded::new(body));
        Self { parts, body }
    }

    /// Returns the request for the next attempt, or `None` if its body cannot be sent again.
    pub(super) fn attempt(&mut self) -> Option<Request<Body>> {
        let body = match &mut self.body {
            None => body::empty(),
            Some(recorded) => {
                let (rest, sent) = recorded.lock().unwrap_or_else(PoisonError::into_inner).take()?;
                let body = if sent.is_empty() { rest } else { Resumed { sent, rest }.boxed_unsync() };
                // Each attempt has a new record, so that the previous attempt cannot read from this body.
                *recorded = Recorded::new(body);
                Recording(Arc::clone(recorded)).boxed_unsync()
            }
        };
        Some(Request::from_parts(self.parts.clone(), body))
    }

    /// Whether executing the request twice has the same effect as executing it once (RFC 9110, 9.2.2).
    pub(super) fn is_idempotent(&self) -> bool {
        let methods =
            [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE, Method::PUT, Method::DELETE];
        methods.contains(&self.parts.method)
    }
}

impl Drop for Replay {
    /// Releases the recorded chunks, because a response has arrived or the request has failed. hyper may still be
    /// sending the rest of the body.
    fn drop(&mut self) {
        if let Some(recorded) = &self.body {
            recorded.lock().unwrap_or_else(PoisonError::into_inner).sent = None;
        }
    }
}

impl Recorded {
    fn new(rest: Body) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self { rest: Some(rest), sent: Some(VecDeque::new()), length: 0 }))
    }

    fn take(&mut self) -> Option<(Body, VecDeque<Bytes>)> {
        let sent = self.sent.take()?;
        Some((self.rest.take()?, sent))
    }

    fn record(&mut self, frame: Option<&Result<Frame<Bytes>, BodyError>>) {
        let Some(sent) = &mut self.sent else { return };
        match frame {
            None => {}
            Some(Ok(frame)) => match frame.data_ref() {
                Some(data) if self.length + data.len() <= bounds::REPLAY_BYTES => {
                    self.length += data.len();
                    sent.push_back(data.clone());
                }
                // The body is too long to be sent again, or has trailers. Only streams have trailers.
                _ => self.sent = None,
            },
            Some(Err(_)) => self.sent = None,
        }
    }
}

/// The body of one attempt. Reading it fails after the next attempt has taken the rest of the body.
struct Recording(Arc<Mutex<Recorded>>);

impl HttpBody for Recording {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> PollFrame {
        let mut recorded = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(rest) = &mut recorded.rest else {
            return Poll::Ready(Some(Err(BrokenBody::Incomplete.into())));
        };
        let frame = ready!(Pin::new(rest).poll_frame(cx));
        recorded.record(frame.as_ref());
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        let recorded = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        recorded.rest.as_ref().is_some_and(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let recorded = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        recorded.rest.as_ref().map_or_else(SizeHint::default, HttpBody::size_hint)
    }
}

/// A body that consists of the chunks that an earlier attempt sent, and of the rest of the body.
struct Resumed {
    sent: VecDeque<Bytes>,
    rest: Body,
}

impl HttpBody for Resumed {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> PollFrame {
        match self.sent.pop_front() {
            Some(chunk) => Poll::Ready(Some(Ok(Frame::data(chunk)))),
            None => Pin::new(&mut self.rest).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.sent.is_empty() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let sent: u64 = self.sent.iter().map(|chunk| chunk.len() as u64).sum();
        let rest = self.rest.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower() + sent);
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper + sent);
        }
        hint
    }
}
