//! The two halves of a stream.

use std::fmt;
use std::sync::Arc;

use bottle_contract::session::frame::{MAX_DATA, MAX_PAYLOAD};
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::ChannelError;
use crate::channel::{Keep, Line};
use crate::entry::{Frame, Signals};
use crate::table::{Offer, Taken};

/// The most bytes of one data frame; its first byte names the descriptor.
const MAX_BYTES: usize = MAX_DATA - 1;

/// What comes on a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A typed message, as JSON.
    Message(Bytes),
    /// Bytes of a descriptor.
    Data {
        /// Which one, such as `bottle_contract::session::guest::STDIN`.
        fd: u8,
        /// The bytes.
        bytes: Bytes,
    },
    /// The peer is done; this side may go on.
    End,
    /// The peer gave the stream up, both ways, or the connection is gone.
    Reset(String),
}

impl Event {
    /// A message as a `T`.
    ///
    /// # Errors
    /// What came instead: [`ChannelError::Unreadable`], [`ChannelError::UnexpectedData`],
    /// [`ChannelError::Ended`] or [`ChannelError::Reset`].
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

    /// Whether nothing comes after it.
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

/// Both halves of a stream. Dropped without an end it is reset, so that the peer never takes a part for
/// the whole.
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
    pub(crate) fn new(stream: u32, signals: Arc<Signals>, keep: Arc<Keep>) -> Self {
        let line = Line { stream, signals, keep };
        Self { sender: StreamSender(Arc::new(Sending(line.clone()))), receiver: StreamReceiver(line) }
    }

    /// The halves, each to be moved to its own task.
    #[must_use]
    pub fn split(self) -> (StreamSender, StreamReceiver) {
        (self.sender, self.receiver)
    }

    /// See [`StreamSender::message`].
    ///
    /// # Errors
    /// As there.
    pub async fn message<T: Serialize>(&self, message: &T) -> Result<(), ChannelError> {
        self.sender.message(message).await
    }

    /// See [`StreamSender::data`].
    ///
    /// # Errors
    /// As there.
    pub async fn data(&self, fd: u8, bytes: &[u8]) -> Result<(), ChannelError> {
        self.sender.data(fd, bytes).await
    }

    /// See [`StreamSender::data_bytes`].
    ///
    /// # Errors
    /// As there.
    pub async fn data_bytes(&self, fd: u8, bytes: Bytes) -> Result<(), ChannelError> {
        self.sender.data_bytes(fd, bytes).await
    }

    /// See [`StreamSender::end`].
    ///
    /// # Errors
    /// As there.
    pub async fn end(&self) -> Result<(), ChannelError> {
        self.sender.end().await
    }

    /// See [`StreamSender::reset`].
    pub async fn reset(&self, why: &str) {
        self.sender.reset(why).await;
    }

    /// See [`StreamReceiver::next`].
    pub async fn next(&mut self) -> Option<Event> {
        self.receiver.next().await
    }

    /// See [`StreamReceiver::message`].
    ///
    /// # Errors
    /// As there.
    pub async fn receive<T: DeserializeOwned>(&mut self) -> Result<T, ChannelError> {
        self.receiver.message().await
    }
}

/// The sending half. Clones send on the same stream, each frame whole; the last one to go without
/// [`StreamSender::end`] resets the stream, both ways.
#[derive(Clone)]
pub struct StreamSender(Arc<Sending>);

struct Sending(Line);

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
    fn line(&self) -> &Line {
        &self.0.0
    }

    /// Sends a typed message, waiting for credit.
    ///
    /// # Errors
    /// [`ChannelError::TooLong`], or what became of the stream: [`ChannelError::Closed`],
    /// [`ChannelError::Reset`], [`ChannelError::Ended`].
    pub async fn message<T: Serialize>(&self, message: &T) -> Result<(), ChannelError> {
        let json = serde_json::to_vec(message).map_err(|e| ChannelError::Unwritable(e.to_string()))?;
        self.message_bytes(json.into()).await
    }

    /// Sends a message that is JSON already.
    ///
    /// # Errors
    /// As [`StreamSender::message`].
    pub async fn message_bytes(&self, json: Bytes) -> Result<(), ChannelError> {
        if json.len() > MAX_PAYLOAD {
            return Err(ChannelError::TooLong { length: json.len(), bound: MAX_PAYLOAD });
        }
        self.send(Frame::Message(json)).await
    }

    /// Sends bytes of descriptor `fd`, cut into frames, waiting for credit before each. An empty slice
    /// is one empty frame, which closes a process's standard input.
    ///
    /// # Errors
    /// What became of the stream, as [`StreamSender::message`].
    pub async fn data(&self, fd: u8, bytes: &[u8]) -> Result<(), ChannelError> {
        self.data_bytes(fd, Bytes::copy_from_slice(bytes)).await
    }

    /// As [`StreamSender::data`], without a copy.
    ///
    /// # Errors
    /// As there.
    pub async fn data_bytes(&self, fd: u8, mut bytes: Bytes) -> Result<(), ChannelError> {
        loop {
            let piece = bytes.split_to(bytes.len().min(MAX_BYTES));
            self.send(Frame::Data { fd, bytes: piece }).await?;
            if bytes.is_empty() {
                return Ok(());
            }
        }
    }

    /// Says that nothing more will be sent, after everything that was. The peer may go on sending.
    ///
    /// # Errors
    /// [`ChannelError::Closed`] or [`ChannelError::Reset`] when the stream was lost before; ending twice
    /// is no error.
    pub async fn end(&self) -> Result<(), ChannelError> {
        let _turn = self.line().signals.turn.lock().await;
        let ended = self.line().shared().table().end(self.line().stream);
        self.line().shared().writes.notify_one();
        ended
    }

    /// Gives the stream up at once, both ways, dropping what was queued; the peer gets the sentence.
    // Async like its siblings, though it never waits: a reset must work when nothing else does.
    #[allow(clippy::unused_async)]
    pub async fn reset(&self, why: &str) {
        self.line().shared().table().reset(self.line().stream, why);
        self.line().shared().writes.notify_one();
    }

    /// Resolves when the stream is gone: given up by either side, finished by both, or lost with the
    /// connection. For whoever works for the peer and has nothing to send or receive meanwhile.
    pub async fn closed(&self) {
        let line = self.line();
        loop {
            let mut lost = std::pin::pin!(line.signals.lost.notified());
            lost.as_mut().enable();
            if line.shared().table().is_lost(line.stream) {
                return;
            }
            lost.await;
        }
    }

    async fn send(&self, mut frame: Frame) -> Result<(), ChannelError> {
        let line = self.line();
        let _turn = line.signals.turn.lock().await;
        loop {
            let credit = line.signals.writable.notified();
            let offer = line.shared().table().offer(line.stream, frame)?;
            match offer {
                Offer::Taken => {
                    line.shared().writes.notify_one();
                    return Ok(());
                }
                Offer::Wait(again) => frame = again,
            }
            credit.await;
        }
    }
}

/// The receiving half. Dropped, what comes is thrown away and credited, so that the peer is not stuck.
pub struct StreamReceiver(Line);

impl fmt::Debug for StreamReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StreamReceiver").field(&self.0.stream).finish()
    }
}

impl StreamReceiver {
    /// The next event; `None` after [`Event::End`] or [`Event::Reset`]. Taking data gives the peer its
    /// credit back. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            let readable = self.0.signals.readable.notified();
            let taken = self.0.shared().table().take(self.0.stream);
            match taken {
                Taken::Event(event) => {
                    self.0.shared().writes.notify_one();
                    return Some(event);
                }
                Taken::Gone => return None,
                Taken::Nothing => readable.await,
            }
        }
    }

    /// The next event as a message, for requests and answers.
    ///
    /// # Errors
    /// What came instead; see [`Event::parse`].
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
