//! The handles of a connection: [`Channel`] opens streams, and [`Incoming`] receives the streams that the
//! peer opens.

use std::sync::Arc;

use bottle_protocol::session::Hello;
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite, BufReader};

use crate::drive::{Shared, drive};
use crate::entry::Signals;
use crate::handshake::{HELLO_DEADLINE, shake};
use crate::{ChannelError, Closed, Stream};

/// The size of the read buffer, in bytes. Two data frames fit into the buffer.
const READ_BUFFER: usize = 64 * 1024;

/// One of the two sides of a connection. The dialling side opens streams with odd ids. The accepting side opens streams
/// with even ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The side that dialled the connection.
    Dialed,
    /// The side that accepted the connection.
    Accepted,
}

/// Keeps the connection open. When the last `Arc` of this value is dropped, the connection writes its queued frames and
/// closes.
pub(crate) struct KeepAlive(pub(crate) Arc<Shared>);

impl Drop for KeepAlive {
    fn drop(&mut self) {
        self.0.close("every handle was dropped");
    }
}

/// A connection to a peer. Cheap to clone. The connection stays open until either side closes it, or until all its
/// `Channel`s, `Incoming`s, requests and streams are dropped.
#[derive(Clone)]
pub struct Channel {
    keep: Arc<KeepAlive>,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel").field("closed", &self.keep.0.table().closed).finish_non_exhaustive()
    }
}

impl Channel {
    /// Exchanges hellos within [`HELLO_DEADLINE`], then drives the connection on a background task of the current
    /// runtime. The third returned value is the peer's hello. The caller must check the peer's role in this hello.
    ///
    /// # Errors
    /// [`ChannelError::Silent`], [`ChannelError::BadHello`], and [`ChannelError::Version`] if the peer uses
    /// another protocol version.
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
        let keep = Arc::new(KeepAlive(shared.clone()));
        tokio::spawn(async move { drive(reader, writer, &shared).await });
        Ok((Channel { keep: keep.clone() }, Incoming { keep }, theirs))
    }

    /// Opens a stream with `request` as its first frame. Does not wait for the peer.
    ///
    /// # Errors
    /// [`ChannelError::Closed`], [`ChannelError::TooManyStreams`], and [`ChannelError::TooLong`] if the
    /// request does not fit into a frame.
    // This method is async so that a later version can wait for a free stream without a change to the callers.
    #[allow(clippy::unused_async)]
    pub async fn open<R: Serialize>(&self, request: &R) -> Result<Stream, ChannelError> {
        let request = serde_json::to_vec(request).map_err(|e| ChannelError::Unwritable(e.to_string()))?;
        self.open_bytes(request.into())
    }

    /// Opens a stream with a request that is already JSON, for example a request that arrived on another channel.
    ///
    /// # Errors
    /// The errors of [`Channel::open`].
    pub fn open_bytes(&self, request: Bytes) -> Result<Stream, ChannelError> {
        let shared = &self.keep.0;
        let (stream, signals) = shared.table().open(request)?;
        shared.writes.notify_one();
        Ok(Stream::new(stream, signals, self.keep.clone()))
    }

    /// Waits until the connection is closed, and returns the reason.
    pub async fn closed(&self) -> Closed {
        self.keep.0.closed().await
    }

    /// Closes the connection. From this call on, the connection accepts no new frames. The connection writes its queued
    /// frames for at most two seconds and is then shut down within two more seconds. After the shutdown,
    /// [`Channel::closed`] resolves.
    pub fn close(&self) {
        self.keep.0.close("closed by this side");
    }

    /// Waits until all queued frames are written, or the connection is closed.
    pub async fn flush(&self) {
        let shared = &self.keep.0;
        let mut idle = std::pin::pin!(shared.idle.notified());
        // `enable` registers this task as a waiter before the write loop is woken. The write loop notifies the waiter
        // only after it has written all frames that were queued before this call.
        idle.as_mut().enable();
        shared.writes.notify_one();
        tokio::select! {
            () = idle => {}
            _ = shared.closed() => {}
        }
    }
}

/// The streams that the peer opens, in order of arrival. Dropping `Incoming` rejects all waiting and future streams of
/// the peer.
pub struct Incoming {
    keep: Arc<KeepAlive>,
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Incoming")
    }
}

impl Incoming {
    /// Returns the next request, or `None` if the connection is closed. Cancel-safe.
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

/// A stream that the peer opened and that this side has not accepted yet. Dropping the `Request` rejects the stream.
pub struct Request {
    payload: Bytes,
    stream: Stream,
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The payload may contain secrets.
        f.debug_struct("Request").field("length", &self.payload.len()).finish_non_exhaustive()
    }
}

impl Request {
    /// Returns the bytes of the request, as received.
    #[must_use]
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// Parses the request as a `T`.
    ///
    /// # Errors
    /// [`ChannelError::Unreadable`] if the request is not a `T`.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, ChannelError> {
        serde_json::from_slice(&self.payload).map_err(|e| ChannelError::Unreadable(e.to_string()))
    }

    /// Accepts the stream.
    #[must_use]
    pub fn accept(self) -> Stream {
        self.stream
    }

    /// Rejects the stream with the message `why`.
    pub async fn refuse(self, why: &str) {
        self.stream.reset(why).await;
    }
}

/// The handle that the sender and the receiver of a stream share.
#[derive(Clone)]
pub(crate) struct StreamHandle {
    pub(crate) stream: u32,
    pub(crate) signals: Arc<Signals>,
    pub(crate) keep: Arc<KeepAlive>,
}

impl StreamHandle {
    pub(crate) fn shared(&self) -> &Shared {
        &self.keep.0
    }
}
