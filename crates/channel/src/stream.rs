//! Streams, and the sender and receiver of a stream.

use std::fmt;
use std::sync::Arc;

use bottle_protocol::session::frame::{MAX_DATA, MAX_PAYLOAD};
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::ChannelError;
use crate::channel::{KeepAlive, StreamHandle};
use crate::entry::{Frame, Signals};
use crate::table::{Next, SendOutcome};

/// The maximum number of content bytes in one data frame. Longer data is split into several frames. One byte less than
/// [`MAX_DATA`], because the first byte of a data frame's payload is the descriptor.
const MAX_BYTES: usize = MAX_DATA - 1;

/// An event on a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A typed message, as JSON.
    Message(Bytes),
    /// Bytes of a descriptor.
    Data {
        /// The descriptor, for example `bottle_protocol::session::guest::STDIN`.
        fd: u8,
        /// The bytes.
        bytes: Bytes,
    },
    /// The peer ended its direction. This side may continue to send.
    End,
    /// Either side reset both directions of the stream, or the connection closed. Contains the reason.
    Reset(String),
}

impl Event {
    /// Parses a message as a `T`.
    ///
    /// # Errors
    /// [`ChannelError::Unreadable`] if the message is not a `T`. If the event is not a message:
    /// [`ChannelError::UnexpectedData`], [`ChannelError::Ended`] or [`ChannelError::Reset`].
    pub fn parse<T: DeserializeOwned>(self) -> Result<T, ChannelError> {
        match self {
            Self::Message(json) => {
                serde_json::from_slice(&json).map_err(|e| ChannelError::Unreadable(e.to_string()))
            }
            Self::Data { .. } => Err(ChannelError::UnexpectedData),
            Self::End => Err(ChannelError::Ended),
            Self::Reset(why) => Err(ChannelError::Reset(why)),
        }
    }

    /// Whether this event is the last event of its stream.
    #[must_use]
    pub fn is_last(&self) -> bool {
        matches!(self, Self::End | Self::Reset(_))
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Message(bytes) | Self::Data { bytes, .. } => bytes.len(),
            Self::End => 0,
            Self::Reset(why) => why.len(),
        }
    }
}

/// The sender and the receiver of a stream. Dropping a stream that was not ended resets it, so that the peer
/// never mistakes partial data for complete data.
pub struct Stream {
    sender: StreamSender,
    receiver: StreamReceiver,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stream").field(&self.receiver.0.stream).finish()
    }
}

impl Stream {
    pub(crate) fn new(stream: u32, signals: Arc<Signals>, keep: Arc<KeepAlive>) -> Self {
        let handle = StreamHandle { stream, signals, keep };
        Self { sender: StreamSender(Arc::new(Sending(handle.clone()))), receiver: StreamReceiver(handle) }
    }

    /// Splits the stream into its sender and receiver, for separate tasks.
    #[must_use]
    pub fn split(self) -> (StreamSender, StreamReceiver) {
        (self.sender, self.receiver)
    }

    /// Sends a typed message; see [`StreamSender::message`].
    ///
    /// # Errors
    /// The errors of [`StreamSender::message`].
    pub async fn message<T: Serialize>(&self, message: &T) -> Result<(), ChannelError> {
        self.sender.message(message).await
    }

    /// Sends data; see [`StreamSender::data`].
    ///
    /// # Errors
    /// The errors of [`StreamSender::data`].
    pub async fn data(&self, fd: u8, bytes: &[u8]) -> Result<(), ChannelError> {
        self.sender.data(fd, bytes).await
    }

    /// Sends data without a copy; see [`StreamSender::data_bytes`].
    ///
    /// # Errors
    /// The errors of [`StreamSender::data_bytes`].
    pub async fn data_bytes(&self, fd: u8, bytes: Bytes) -> Result<(), ChannelError> {
        self.sender.data_bytes(fd, bytes).await
    }

    /// Ends the sending direction; see [`StreamSender::end`].
    ///
    /// # Errors
    /// The errors of [`StreamSender::end`].
    pub async fn end(&self) -> Result<(), ChannelError> {
        self.sender.end().await
    }

    /// Resets the stream; see [`StreamSender::reset`].
    pub async fn reset(&self, why: &str) {
        self.sender.reset(why).await;
    }

    /// Waits until the stream is closed; see [`StreamSender::closed`].
    pub async fn closed(&self) {
        self.sender.closed().await;
    }

    /// Receives the next event; see [`StreamReceiver::next`].
    pub async fn next(&mut self) -> Option<Event> {
        self.receiver.next().await
    }

    /// Receives a message; see [`StreamReceiver::message`].
    ///
    /// # Errors
    /// The errors of [`StreamReceiver::message`].
    pub async fn receive<T: DeserializeOwned>(&mut self) -> Result<T, ChannelError> {
        self.receiver.message().await
    }
}

/// The sending half of a stream. All clones send on the same stream, one frame at a time. Dropping the last clone
/// without [`StreamSender::end`] resets both directions of the stream.
#[derive(Clone)]
pub struct StreamSender(Arc<Sending>);

struct Sending(StreamHandle);

impl Drop for Sending {
    fn drop(&mut self) {
        self.0.shared().table().drop_sender(self.0.stream);
        self.0.shared().writes.notify_one();
    }
}

impl fmt::Debug for StreamSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StreamSender").field(&self.0.0.stream).finish()
    }
}

impl StreamSender {
    fn handle(&self) -> &StreamHandle {
        &self.0.0
    }

    /// Sends a typed message. Waits for credit.
    ///
    /// # Errors
    /// [`ChannelError::TooLong`], or an error for the state of the stream: [`ChannelError::Closed`],
    /// [`ChannelError::Reset`], [`ChannelError::Ended`].
    pub async fn message<T: Serialize>(&self, message: &T) -> Result<(), ChannelError> {
        let json = serde_json::to_vec(message).map_err(|e| ChannelError::Unwritable(e.to_string()))?;
        self.message_bytes(json.into()).await
    }

    /// Sends a message that is already JSON.
    ///
    /// # Errors
    /// The errors of [`StreamSender::message`].
    pub async fn message_bytes(&self, json: Bytes) -> Result<(), ChannelError> {
        if json.len() > MAX_PAYLOAD {
            return Err(ChannelError::TooLong { length: json.len(), bound: MAX_PAYLOAD });
        }
        self.send(Frame::Message(json)).await
    }

    /// Sends bytes of descriptor `fd`, split into frames. Waits for credit before each frame. An empty slice
    /// is sent as one empty frame, which closes the standard input of a process.
    ///
    /// # Errors
    /// The errors of [`StreamSender::message`] for the state of the stream.
    pub async fn data(&self, fd: u8, bytes: &[u8]) -> Result<(), ChannelError> {
        self.data_bytes(fd, Bytes::copy_from_slice(bytes)).await
    }

    /// Like [`StreamSender::data`], without copying the bytes.
    ///
    /// # Errors
    /// The errors of [`StreamSender::data`].
    pub async fn data_bytes(&self, fd: u8, mut bytes: Bytes) -> Result<(), ChannelError> {
        loop {
            let piece = bytes.split_to(bytes.len().min(MAX_BYTES));
            self.send(Frame::Data { fd, bytes: piece }).await?;
            if bytes.is_empty() {
                return Ok(());
            }
        }
    }

    /// Ends the sending direction after all queued frames. The peer may continue to send.
    ///
    /// # Errors
    /// [`ChannelError::Closed`] or [`ChannelError::Reset`] if the stream is already lost. Ending a stream
    /// twice is no error.
    pub async fn end(&self) -> Result<(), ChannelError> {
        let _turn = self.handle().signals.turn.lock().await;
        let ended = self.handle().shared().table().end(self.handle().stream);
        self.handle().shared().writes.notify_one();
        ended
    }

    /// Resets both directions of the stream immediately and drops queued frames. The peer receives the
    /// message `why`.
    // This method is async like the other methods, but it never waits, because a reset must always succeed.
    #[allow(clippy::unused_async)]
    pub async fn reset(&self, why: &str) {
        self.handle().shared().table().reset(self.handle().stream, why);
        self.handle().shared().writes.notify_one();
    }

    /// Waits until the stream is closed: reset by either side, ended by both sides, or lost with the connection. Tasks
    /// that work for the peer without sending or receiving can use this method to notice that the stream is closed.
    pub async fn closed(&self) {
        let handle = self.handle();
        loop {
            let mut lost = std::pin::pin!(handle.signals.lost.notified());
            lost.as_mut().enable();
            if handle.shared().table().is_lost(handle.stream) {
                return;
            }
            lost.await;
        }
    }

    async fn send(&self, mut frame: Frame) -> Result<(), ChannelError> {
        let handle = self.handle();
        let _turn = handle.signals.turn.lock().await;
        loop {
            let credit = handle.signals.writable.notified();
            let outcome = handle.shared().table().try_send(handle.stream, frame)?;
            match outcome {
                SendOutcome::Queued => {
                    handle.shared().writes.notify_one();
                    return Ok(());
                }
                SendOutcome::NeedsCredit(again) => frame = again,
            }
            credit.await;
        }
    }
}

/// The receiving half of a stream. After the receiver is dropped, incoming data is discarded and its credit is returned
/// to the peer, so that the peer does not stall.
pub struct StreamReceiver(StreamHandle);

impl fmt::Debug for StreamReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StreamReceiver").field(&self.0.stream).finish()
    }
}

impl StreamReceiver {
    /// Returns the next event, or `None` after [`Event::End`] or [`Event::Reset`]. Reading data returns
    /// credit to the peer. Cancel-safe.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            let readable = self.0.signals.readable.notified();
            let next = self.0.shared().table().next_event(self.0.stream);
            match next {
                Next::Event(event) => {
                    self.0.shared().writes.notify_one();
                    return Some(event);
                }
                Next::Closed => return None,
                Next::Empty => readable.await,
            }
        }
    }

    /// Returns the next event as a message. Callers use this method for requests and responses.
    ///
    /// # Errors
    /// The errors of [`Event::parse`], and [`ChannelError::Ended`] if no event follows.
    pub async fn message<T: DeserializeOwned>(&mut self) -> Result<T, ChannelError> {
        self.next().await.ok_or(ChannelError::Ended)?.parse()
    }
}

impl Drop for StreamReceiver {
    fn drop(&mut self) {
        self.0.shared().table().drop_receiver(self.0.stream);
        self.0.shared().writes.notify_one();
    }
}
