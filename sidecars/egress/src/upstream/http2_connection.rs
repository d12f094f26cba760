//! An HTTP/2 connection to a server, driven by one task.
//!
//! hyper splits an HTTP/2 connection into several futures: one future takes the requests, one future reads and writes
//! frames, and each request adds further futures. If each future were a separate task, the futures would run on several
//! threads, and the head of a request would often be written before its body. Here, one task polls all futures, and
//! polls the futures that write frames last. So a short request is a single write.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{BoxFuture, Fuse, FusedFuture, FutureExt};
use futures_util::stream::{FuturesUnordered, StreamExt};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::time::{sleep, timeout};

use super::dial::UpstreamIo;
use super::interim_limit::InterimLimit;
use crate::bounds;
use crate::request::body::Body;

/// Interval at which the proxy checks whether the server has announced its limit of streams. hyper does not report the
/// announcement.
const SETTLE_POLL: Duration = Duration::from_millis(1);

/// An open HTTP/2 connection. A spawned task drives it until this value and all its senders are dropped.
pub(super) struct Http2 {
    sender: http2::SendRequest<Body>,
    /// How many concurrent streams the server allows. [`Driver`] updates this number.
    streams: Arc<AtomicUsize>,
}

impl Http2 {
    /// Starts HTTP/2 on `io`.
    pub(super) async fn over(io: UpstreamIo) -> hyper::Result<Self> {
        let parts = Parts::default();
        let (sender, connection) = http2::Builder::new(parts.clone())
            .timer(TokioTimer::new())
            .initial_stream_window_size(bounds::WINDOW)
            .initial_connection_window_size(bounds::CONNECTION_WINDOW)
            .max_header_list_size(u32::try_from(bounds::HEADER_BYTES).unwrap_or(u32::MAX))
            .keep_alive_interval(bounds::PING_EVERY)
            .keep_alive_timeout(bounds::PING_WITHIN)
            .initial_max_send_streams(bounds::STREAMS_ASSUMED)
            .handshake(TokioIo::new(InterimLimit::new(io)))
            .await?;
        let streams = Arc::new(AtomicUsize::new(bounds::STREAMS_ASSUMED));
        let driver = Driver {
            requests: Some(connection),
            frames: parts.take().map(FutureExt::fuse).collect(),
            others: FuturesUnordered::new(),
            parts,
            streams: Arc::clone(&streams),
        };
        tokio::spawn(driver);
        Ok(Self { sender, streams })
    }

    /// Returns a sender for one request.
    pub(super) fn sender(&self) -> http2::SendRequest<Body> {
        self.sender.clone()
    }

    /// Waits until the server has announced its limit of streams, or for [`bounds::SETTINGS_WITHIN`]. Without this
    /// wait, hyper would queue requests beyond the limit, and the pool could not send them over another connection.
    pub(super) async fn settled(&self) {
        let settled = async {
            while self.stream_limit() == bounds::STREAMS_ASSUMED {
                sleep(SETTLE_POLL).await;
            }
        };
        // If the server announces no limit, the assumed limit remains.
        let _ = timeout(bounds::SETTINGS_WITHIN, settled).await;
    }

    /// Returns how many concurrent streams the server allows now. Returns 0 if the connection takes no further
    /// requests.
    pub(super) fn stream_limit(&self) -> usize {
        if self.sender.is_closed() { 0 } else { self.streams.load(Ordering::Relaxed) }
    }
}

type Part = BoxFuture<'static, ()>;

/// Receives the futures of a connection from hyper. hyper creates these futures while the connection's other futures
/// are polled.
#[derive(Clone, Default)]
struct Parts(Arc<Mutex<Vec<Part>>>);

impl Parts {
    fn take(&self) -> impl Iterator<Item = Part> + use<> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_iter()
    }
}

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Parts {
    fn execute(&self, part: F) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Box::pin(part));
    }
}

/// Drives a connection. The driver ends when the connection and all requests on it have ended.
struct Driver {
    /// The future that takes requests. `None` if the connection takes no further requests.
    requests: Option<http2::Connection<TokioIo<InterimLimit<UpstreamIo>>, Body, Parts>>,
    /// The futures that read and write frames. hyper creates them when the connection starts.
    frames: Vec<Fuse<Part>>,
    /// The futures of request bodies in transit and of pending responses.
    others: FuturesUnordered<Part>,
    parts: Parts,
    streams: Arc<AtomicUsize>,
}

impl Driver {
    fn poll_others(&mut self, cx: &mut Context<'_>) {
        loop {
            self.others.extend(self.parts.take());
            if !matches!(self.others.poll_next_unpin(cx), Poll::Ready(Some(()))) {
                return;
            }
        }
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        // An error of the connection also fails the requests on it, so the error is ignored here.
        if this.requests.as_mut().is_some_and(|requests| Pin::new(requests).poll(cx).is_ready()) {
            this.requests = None;
        }
        this.poll_others(cx);
        for part in &mut this.frames {
            let _ = part.poll_unpin(cx);
        }
        // The frames may have contained responses, so the futures of these requests are polled again.
        this.poll_others(cx);
        let streams = this.requests.as_ref().map_or(0, http2::Connection::current_max_send_streams);
        this.streams.store(streams, Ordering::Relaxed);
        let is_over = this.requests.is_none()
            && this.frames.iter().all(FusedFuture::is_terminated)
            && this.others.is_empty();
        if is_over { Poll::Ready(()) } else { Poll::Pending }
    }
}
