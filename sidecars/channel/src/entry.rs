//! State of one stream: outbound and inbound queues, and credit in both directions.

use std::collections::VecDeque;
use std::sync::Arc;

use bottle_contract::session::frame::{Header, Kind, MAX_SENTENCE, WINDOW};
use bytes::Bytes;
use tokio::sync::{Mutex, Notify};

use crate::{ChannelError, Event};

/// A frame of an open stream, before its header is encoded.
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

    /// Makes a reset, with its message cut to fit a frame.
    pub(crate) fn reset(why: &str) -> Self {
        let mut end = why.len().min(MAX_SENTENCE);
        while !why.is_char_boundary(end) {
            end -= 1;
        }
        Self::Reset(why[..end].to_owned())
    }
}

/// Notifications for the holders of a stream's halves.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    /// An event arrived, or the stream is closed. One waiter: the receiver.
    pub(crate) readable: Notify,
    /// Credit arrived, or the stream is closed. One waiter: the holder of `turn`.
    pub(crate) writable: Notify,
    /// The stream is lost and nothing can be sent. Any number of waiters.
    pub(crate) lost: Notify,
    /// Senders of one stream take turns, so that short messages do not starve a long one.
    pub(crate) turn: Mutex<()>,
}

impl Signals {
    /// Wakes all waiters: the stream was reset or the connection closed.
    pub(crate) fn wake_all(&self) {
        self.readable.notify_one();
        self.writable.notify_one();
        self.lost.notify_waiters();
    }
}

/// The state of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Half {
    Open,
    /// The last frame waits to be written (sending only).
    Closing,
    Closed,
}

/// The state of a stream in the table.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) signals: Arc<Signals>,
    pub(crate) sending: Half,
    pub(crate) receiving: Half,
    pub(crate) outbound: VecDeque<Frame>,
    /// Whether it is in the table's write queue.
    pub(crate) queued: bool,
    /// Credit that remains for sending.
    pub(crate) credit: u32,
    /// Bytes that the peer has used of its window.
    pub(crate) used: u32,
    /// The part of `used` that the receiver has consumed but not credited yet.
    pub(crate) owed: u32,
    pub(crate) inbound: VecDeque<(Event, u32)>,
    /// The receiver was dropped: incoming data is discarded and credited.
    pub(crate) unread: bool,
    /// Reset by the peer or lost with the connection.
    pub(crate) lost: bool,
    /// Reset by this side: frames that the peer sent before it knew are no violation.
    pub(crate) reset_here: bool,
    /// The peer's request, until it is accepted.
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

    /// Whether a credit is due. Credit returns in few, large grants; `frame::MAX_COST` explains why that
    /// cannot stall.
    pub(crate) fn credit_due(&self) -> bool {
        self.owed >= WINDOW / 2 && self.receiving == Half::Open
    }

    /// Whether nothing remains to be written, received or read.
    pub(crate) fn finished(&self) -> bool {
        self.sending == Half::Closed
            && self.receiving == Half::Closed
            && self.request.is_none()
            && (self.unread || self.inbound.is_empty())
    }

    /// Bytes buffered for the receiver.
    pub(crate) fn buffered(&self) -> usize {
        self.inbound.iter().map(|(event, _)| event.len()).sum()
    }
}
