//! The state of one stream: outbound and inbound queues, and credit in both directions.

use std::collections::VecDeque;
use std::sync::Arc;

use bottle_protocol::session::frame::{Header, Kind, MAX_SENTENCE, WINDOW};
use bytes::Bytes;
use tokio::sync::{Mutex, Notify};

use crate::{ChannelError, Event};

/// A frame of an open stream, before it is encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Frame {
    Open(Bytes),
    Message(Bytes),
    Data { fd: u8, bytes: Bytes },
    End,
    Reset(String),
    Credit(u32),
}

impl Frame {
    pub(crate) fn header(&self, stream: u32) -> Result<Header, ChannelError> {
        let (kind, length) = match self {
            Self::Open(request) => (Kind::Open, request.len()),
            Self::Message(message) => (Kind::Message, message.len()),
            Self::Data { bytes, .. } => (Kind::Data, bytes.len() + 1),
            Self::End => (Kind::End, 0),
            Self::Reset(why) => (Kind::Reset, why.len()),
            Self::Credit(_) => (Kind::Credit, 4),
        };
        Header::new(kind, stream, length).map_err(|e| ChannelError::Unwritable(e.to_string()))
    }

    /// Creates a reset frame with the message `why`, truncated to [`MAX_SENTENCE`] bytes.
    pub(crate) fn reset(why: &str) -> Self {
        let mut end = why.len().min(MAX_SENTENCE);
        while !why.is_char_boundary(end) {
            end -= 1;
        }
        Self::Reset(why[..end].to_owned())
    }
}

/// Notifications for the sender and the receiver of a stream.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    /// Notified when an event arrives or the stream closes. The only waiter is the receiver.
    pub(crate) readable: Notify,
    /// Notified when credit arrives or the stream closes. The only waiter is the task that holds `turn`.
    pub(crate) writable: Notify,
    /// Notified when the stream is lost and nothing can be sent. Any number of tasks may wait.
    pub(crate) lost: Notify,
    /// Held by the task that currently sends on the stream. Other senders of the stream wait for the lock, so that
    /// short messages cannot starve a long message.
    pub(crate) turn: Mutex<()>,
}

impl Signals {
    /// Wakes all waiters, because the stream was reset or the connection closed.
    pub(crate) fn wake_all(&self) {
        self.readable.notify_one();
        self.writable.notify_one();
        self.lost.notify_waiters();
    }
}

/// The state of one direction of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Half {
    Open,
    /// The last frame is queued but not written. Only the sending direction has this state.
    Closing,
    Closed,
}

/// The state of one stream in the table.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) signals: Arc<Signals>,
    pub(crate) sending: Half,
    pub(crate) receiving: Half,
    pub(crate) outbound: VecDeque<Frame>,
    /// Whether the stream is in the table's write queue.
    pub(crate) queued: bool,
    /// The credit that this side has left for sending, measured as [`Header::cost`].
    pub(crate) credit: u32,
    /// The part of the peer's window that the peer has used, measured as [`Header::cost`].
    pub(crate) used: u32,
    /// The part of `used` that the receiver has consumed and that this side has not yet returned to the peer as credit.
    pub(crate) owed: u32,
    pub(crate) inbound: VecDeque<(Event, u32)>,
    /// Whether the receiver was dropped. If it was, incoming data is discarded and its credit is returned to the peer.
    pub(crate) unread: bool,
    /// Whether the peer reset the stream, or the connection was lost.
    pub(crate) lost: bool,
    /// Whether this side reset the stream. If it did, frames that the peer sent before it received the reset are no
    /// violation.
    pub(crate) reset_here: bool,
    /// The peer's request, until this side accepts it.
    pub(crate) request: Option<Bytes>,
}

impl Entry {
    pub(crate) fn new(request: Option<Bytes>) -> Self {
        Self {
            signals: Arc::default(),
            sending: Half::Open,
            receiving: Half::Open,
            outbound: VecDeque::new(),
            queued: false,
            credit: WINDOW,
            used: 0,
            owed: 0,
            inbound: VecDeque::new(),
            unread: false,
            lost: false,
            reset_here: false,
            request,
        }
    }

    /// Whether to send credit to the peer now. Credit is returned in few, large grants. The documentation of
    /// `frame::MAX_COST` explains why large grants cannot stall the stream.
    pub(crate) fn credit_due(&self) -> bool {
        self.owed >= WINDOW / 2 && self.receiving == Half::Open
    }

    /// Whether both directions are closed and the receiver has read everything.
    pub(crate) fn finished(&self) -> bool {
        self.sending == Half::Closed
            && self.receiving == Half::Closed
            && self.request.is_none()
            && (self.unread || self.inbound.is_empty())
    }

    /// The number of bytes that are buffered for the receiver.
    pub(crate) fn buffered(&self) -> usize {
        self.inbound.iter().map(|(event, _)| event.len()).sum()
    }
}
