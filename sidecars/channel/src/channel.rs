//! What holds a connection: the handle that opens streams, and the queue of those the peer opens.

use std::sync::Arc;

use bottle_contract::session::Hello;
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite, BufReader};

use crate::drive::{Shared, drive};
use crate::entry::Signals;
use crate::handshake::{HELLO_DEADLINE, shake};
use crate::{ChannelError, Closed, Stream};

/// What is read from the connection at once: two data frames fit.
const READ_BUFFER: usize = 64 * 1024;

/// Which side of a connection this is; the dialler opens odd stream ids, the other even ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The side that made the connection.
    Dialed,
    /// The side that accepted it.
    Accepted,
}

/// Keeps the connection alive: when the last handle of it goes, so does the connection, after what was
/// queued is written.
pub(crate) struct Keep(pub(crate) Arc<Shared>);

impl Drop for Keep {
    fn drop(&mut self) {
        self.0.close("nobody holds it any more");
    }
}

/// A live connection. Cheap to clone. It lives until either side closes it, or until every `Channel`,
/// `Incoming`, request and stream of it is dropped.
#[derive(Clone)]
pub struct Channel {
    keep: Arc<Keep>,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel").field("closed", &self.keep.0.table().closed).finish_non_exhaustive()
    }
}

impl Channel {
    /// Exchanges hellos within [`HELLO_DEADLINE`], then drives the connection on
    /// a background task of the current runtime. The third value is the peer's hello; whether its role
    /// is the expected one is the caller's to check.
    ///
    /// # Errors
    /// [`ChannelError::Silent`], [`ChannelError::BadHello`], and [`ChannelError::Version`] for a peer of
    /// another protocol.
    pub async fn establish<IO>(
        io: IO,
        side: Side,
        hello: Hello,
    ) -> Result<(Channel, Incoming, Hello), ChannelError>
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (reader, mut writer) = tokio::io::split(io);
        let mut reader = BufReader::with_capacity(READ_BUFFER, reader);
        let theirs = shake(&mut reader, &mut writer, &hello, HELLO_DEADLINE).await?;
        let shared = Arc::new(Shared::new(side));
        let keep = Arc::new(Keep(shared.clone()));
        tokio::spawn(async move { drive(reader, writer, &shared).await });
        Ok((Channel { keep: keep.clone() }, Incoming { keep }, theirs))
    }

    /// Opens a stream with `request` as its first frame. It does not wait for the peer.
    ///
    /// # Errors
    /// [`ChannelError::Closed`], [`ChannelError::TooManyStreams`], and [`ChannelError::TooLong`] for a
    /// request over the frame's bound.
    // Async, so that waiting for a free stream can be added without touching every caller.
    #[allow(clippy::unused_async)]
    pub async fn open<R: Serialize>(&self, request: &R) -> Result<Stream, ChannelError> {
        let request = serde_json::to_vec(request).map_err(|e| ChannelError::Unwritable(e.to_string()))?;
        self.open_bytes(request.into())
    }

    /// Opens a stream with a request that is JSON already, such as one passed on from another channel.
    ///
    /// # Errors
    /// As [`Channel::open`].
    pub fn open_bytes(&self, request: Bytes) -> Result<Stream, ChannelError> {
        let shared = &self.keep.0;
        let (stream, signals) = shared.table().open(request)?;
        shared.writes.notify_one();
        Ok(Stream::new(stream, signals, self.keep.clone()))
    }

    /// Resolves when the connection is gone, and says why.
    pub async fn closed(&self) -> Closed {
        self.keep.0.closed().await
    }

    /// Ends the connection: nothing new is sent, what is queued is still written (for two seconds at
    /// most). [`Channel::closed`] resolves after that.
    pub fn close(&self) {
        self.keep.0.close("closed on this side");
    }

    /// Waits until everything queued has been written, or the connection is gone.
    pub async fn flush(&self) {
        let shared = &self.keep.0;
        let mut idle = std::pin::pin!(shared.idle.notified());
        // Registered before anything is looked at; the write loop then reports its next idle moment,
        // which comes after everything that was queued before this call.
        idle.as_mut().enable();
        shared.writes.notify_one();
        tokio::select! {
            () = idle => {}
            _ = shared.closed() => {}
        }
    }
}

/// The streams the peer opens, in order. Dropping it refuses all that wait and all that come.
pub struct Incoming {
    keep: Arc<Keep>,
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Incoming")
    }
}

impl Incoming {
    /// The next request; `None` when the connection is gone. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Request> {
        let shared = &self.keep.0;
        loop {
            let arrival = shared.arrivals.notified();
            let (request, closed) = {
                let mut table = shared.table();
                (table.take_request(), table.closed.is_some())
            };
            match request {
                Some((stream, payload, signals)) => {
                    return Some(Request {
                        payload,
                        stream: Stream::new(stream, signals, self.keep.clone()),
                    });
                }
                None if closed => return None,
                None => arrival.await,
            }
        }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.keep.0.table().stop_accepting();
        self.keep.0.writes.notify_one();
    }
}

/// A stream the peer opened and nobody has answered yet. Dropped, it is refused.
pub struct Request {
    payload: Bytes,
    stream: Stream,
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The payload may hold secrets.
        f.debug_struct("Request").field("length", &self.payload.len()).finish_non_exhaustive()
    }
}

impl Request {
    /// The request as it came.
    #[must_use]
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// The request as a `T`.
    ///
    /// # Errors
    /// [`ChannelError::Unreadable`] when it is none.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, ChannelError> {
        serde_json::from_slice(&self.payload).map_err(|e| ChannelError::Unreadable(e.to_string()))
    }

    /// Takes the stream.
    #[must_use]
    pub fn accept(self) -> Stream {
        self.stream
    }

    /// Resets the stream with a sentence.
    pub async fn refuse(self, why: &str) {
        self.stream.reset(why).await;
    }
}

/// A half of a stream, as both halves know it.
#[derive(Clone)]
pub(crate) struct Line {
    pub(crate) stream: u32,
    pub(crate) signals: Arc<Signals>,
    pub(crate) keep: Arc<Keep>,
}

impl Line {
    pub(crate) fn shared(&self) -> &Shared {
        &self.keep.0
    }
}
