//! One stream: what waits to be written, what waits to be read, and the credit of both directions.

use std::collections::VecDeque;
use std::sync::Arc;

use bottle_contract::session::frame::{Header, Kind, MAX_SENTENCE, WINDOW};
use bytes::Bytes;
use tokio::sync::{Mutex, Notify};

use crate::{ChannelError, Event};

/// A frame of an open stream, before its header is made.
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

    /// A reset whose sentence fits its frame.
    pub(crate) fn reset(why: &str) -> Self {
        let mut end = why.len().min(MAX_SENTENCE);
        while !why.is_char_boundary(end) {
            end -= 1;
        }
        Self::Reset(why[..end].to_owned())
    }
}

/// How the holders of a stream's halves wait.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    /// An event waits, or the stream is gone. One waiter: the receiver.
    pub(crate) readable: Notify,
    /// Credit came, or the stream is gone. One waiter: the holder of `turn`.
    pub(crate) writable: Notify,
    /// Nothing more can be sent because the stream was lost. Any number of waiters.
    pub(crate) lost: Notify,
    /// Senders of one stream take turns, so that a long message is not starved by many short ones.
    pub(crate) turn: Mutex<()>,
}

impl Signals {
    /// Wakes everybody: the stream was given up or the connection is gone.
    pub(crate) fn wake_all(&self) {
        self.readable.notify_one();
        self.writable.notify_one();
        self.lost.notify_waiters();
    }
}

/// Where a direction stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Half {
    Open,
    /// The last frame waits to be written (sending only).
    Closing,
    Over,
}

/// A stream in the table.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) signals: Arc<Signals>,
    pub(crate) sending: Half,
    pub(crate) receiving: Half,
    pub(crate) outbound: VecDeque<Frame>,
    /// Stands in the table's turn queue.
    pub(crate) listed: bool,
    /// What may still be sent.
    pub(crate) credit: u32,
    /// What the peer sent and has not been granted again.
    pub(crate) held: u32,
    /// The part of `held` that the receiver has taken.
    pub(crate) owed: u32,
    pub(crate) inbound: VecDeque<(Event, u32)>,
    /// Nobody reads any more: what comes is dropped and granted again.
    pub(crate) unread: bool,
    /// Reset by the peer or lost with the connection.
    pub(crate) lost: bool,
    /// Reset by this side: what the peer sent before it knew is no fault of its.
    pub(crate) given_up: bool,
    /// The peer's request, until somebody takes it.
    pub(crate) request: Option<Bytes>,
}

impl Entry {
    pub(crate) fn new(request: Option<Bytes>) -> Self {
        Self {
            signals: Arc::default(),
            sending: Half::Open,
            receiving: Half::Open,
            outbound: VecDeque::new(),
            listed: false,
            credit: WINDOW,
            held: 0,
            owed: 0,
            inbound: VecDeque::new(),
            unread: false,
            lost: false,
            given_up: false,
            request,
        }
    }

    /// Credit goes back in few, large pieces; see `frame::MAX_COST` for why that cannot stall.
    pub(crate) fn grants(&self) -> bool {
        self.owed >= WINDOW / 2 && self.receiving == Half::Open
    }

    /// Nothing will be written, nothing will come, and nobody is about to read.
    pub(crate) fn finished(&self) -> bool {
        self.sending == Half::Over
            && self.receiving == Half::Over
            && self.request.is_none()
            && (self.unread || self.inbound.is_empty())
    }

    /// Bytes that wait for the receiver.
    pub(crate) fn waiting(&self) -> usize {
        self.inbound.iter().map(|(event, _)| event.len()).sum()
    }
}
