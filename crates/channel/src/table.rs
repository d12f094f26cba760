//! The table of a connection's streams, and the rules of the protocol. The table performs no I/O: it takes
//! received frames and returns frames to write.
//!
//! ```text
//!   try_send   ─► outbound ─► write queue ─► next_frame    (queueing a frame spends credit)
//!   next_event ◄─ inbound  ◄─ receive                      (consuming an event returns credit)
//! ```
//! A stream is removed from the table when both directions are closed and the receiver has consumed the last event.
//! Until its removal, the stream counts toward [`MAX_STREAMS`]. A peer therefore cannot enlarge the table by opening
//! and resetting streams.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bottle_protocol::session::frame::{Header, Kind, MAX_STREAMS, WINDOW};
use bytes::{Buf, Bytes};

use crate::entry::{Entry, Frame, Half, Signals};
use crate::{ChannelError, Closed, Event, Side};

/// The maximum number of bytes that a connection buffers for readers: a full window for every stream of one side. If
/// the peer exceeds this limit, the connection is closed. Only long messages on many unread streams come near this
/// limit.
const MAX_BUFFERED: usize = MAX_STREAMS * WINDOW as usize;

/// A protocol violation. A violation closes the connection. Correct peers never violate the protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Violation {
    #[error("the peer sent a `{0}` frame after the handshake")]
    Hello(Kind),
    #[error("the peer used stream {0}, which was never opened")]
    NeverOpened(u32),
    #[error("the peer opened stream {0}, whose id is not its own or not new")]
    BadOpen(u32),
    #[error("the peer sent a frame after ending stream {0}")]
    AfterEnd(u32),
    #[error("the peer sent more on stream {0} than it had credit for")]
    OverCredit(u32),
    #[error("the peer granted more credit on stream {0} than was used")]
    OverGrant(u32),
    #[error("the peer opens streams faster than it reads their resets")]
    Flood,
    #[error("the peer sent more unread data than a connection may buffer")]
    TooMuchUnread,
}

/// The outcome of an attempt to send a frame.
pub(crate) enum SendOutcome {
    Queued,
    /// The stream's credit is smaller than the cost of the frame. Contains the unsent frame.
    NeedsCredit(Frame),
}

/// The next event for a receiver.
pub(crate) enum Next {
    Event(Event),
    Empty,
    /// The stream is closed.
    Closed,
}

/// The table of a connection's streams.
pub(crate) struct Table {
    side: Side,
    streams: HashMap<u32, Entry>,
    /// The streams with frames to write, in the order in which they take turns. Each stream is listed at most once.
    write_queue: VecDeque<u32>,
    /// The ids of streams that this side rejected when the peer opened them. Such a stream has no entry in `streams`;
    /// this side only has to write a reset for it.
    refusals: VecDeque<u32>,
    /// The ids of streams that the peer opened and that this side has not accepted yet.
    arrivals: VecDeque<u32>,
    /// Whether this side accepts streams from the peer.
    pub(crate) accepting: bool,
    next_own: u32,
    last_theirs: u32,
    own: usize,
    theirs: usize,
    buffered: usize,
    pub(crate) closed: Option<Closed>,
}

impl Table {
    pub(crate) fn new(side: Side) -> Self {
        Self {
            side,
            streams: HashMap::new(),
            write_queue: VecDeque::new(),
            refusals: VecDeque::new(),
            arrivals: VecDeque::new(),
            accepting: true,
            next_own: if side == Side::Dialed { 1 } else { 2 },
            last_theirs: 0,
            own: 0,
            theirs: 0,
            buffered: 0,
            closed: None,
        }
    }

    fn is_own(&self, stream: u32) -> bool {
        (stream % 2 == 1) == (self.side == Side::Dialed)
    }

    // ---- this side -------------------------------------------------------------------------------

    /// Opens a stream with `request` as its first frame.
    pub(crate) fn open(&mut self, request: Bytes) -> Result<(u32, Arc<Signals>), ChannelError> {
        if let Some(closed) = &self.closed {
            return Err(ChannelError::Closed(closed.clone()));
        }
        let next = self.next_own.checked_add(2);
        let (true, Some(next)) = (self.own < MAX_STREAMS, next) else {
            return Err(ChannelError::TooManyStreams(MAX_STREAMS));
        };
        let stream = self.next_own;
        let frame = Frame::Open(request);
        frame.header(stream)?;
        self.next_own = next;
        self.own += 1;
        let mut entry = Entry::new(None);
        entry.outbound.push_back(frame);
        let signals = entry.signals.clone();
        self.streams.insert(stream, entry);
        self.enqueue(stream);
        Ok((stream, signals))
    }

    /// Returns the oldest request of the peer that this side has not accepted yet.
    pub(crate) fn take_request(&mut self) -> Option<(u32, Bytes, Arc<Signals>)> {
        let stream = self.arrivals.pop_front()?;
        let entry = self.streams.get_mut(&stream)?;
        let request = entry.request.take()?;
        self.buffered -= request.len();
        Some((stream, request, entry.signals.clone()))
    }

    /// Rejects all waiting and future requests.
    pub(crate) fn stop_accepting(&mut self) {
        self.accepting = false;
        while let Some((stream, ..)) = self.take_request() {
            self.reset(stream, "this side accepts no requests");
            self.drop_receiver(stream);
        }
    }

    /// Queues a message or data frame if the credit suffices.
    pub(crate) fn try_send(&mut self, stream: u32, frame: Frame) -> Result<SendOutcome, ChannelError> {
        let cost = frame.header(stream)?.cost();
        let entry = self.sendable(stream)?;
        if entry.credit < cost {
            return Ok(SendOutcome::NeedsCredit(frame));
        }
        entry.credit -= cost;
        entry.outbound.push_back(frame);
        self.enqueue(stream);
        Ok(SendOutcome::Queued)
    }

    /// Queues an end frame for the sending direction of this side. Idempotent.
    pub(crate) fn end(&mut self, stream: u32) -> Result<(), ChannelError> {
        match self.sendable(stream) {
            Ok(entry) => {
                entry.sending = Half::Closing;
                entry.outbound.push_back(Frame::End);
                self.enqueue(stream);
                Ok(())
            }
            Err(ChannelError::Ended) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Resets both directions of the stream and drops queued frames.
    pub(crate) fn reset(&mut self, stream: u32, why: &str) {
        let Some(entry) = self.streams.get_mut(&stream) else { return };
        if entry.sending == Half::Closed && entry.receiving == Half::Closed {
            return;
        }
        let unknown_to_peer = matches!(entry.outbound.front(), Some(Frame::Open(_)));
        entry.reset_here = true;
        entry.outbound.clear();
        entry.sending = if unknown_to_peer {
            Half::Closed
        } else {
            entry.outbound.push_back(Frame::reset(why));
            Half::Closing
        };
        self.buffered -= entry.buffered();
        entry.receiving = Half::Closed;
        entry.inbound.clear();
        entry.inbound.push_back((Event::Reset(format!("reset by this side: {why}")), 0));
        self.buffered += entry.buffered();
        entry.signals.wake_all();
        self.enqueue(stream);
        self.remove_if_finished(stream);
    }

    /// Whether either side reset the stream, the connection was lost, or the stream has left the table.
    pub(crate) fn is_lost(&self, stream: u32) -> bool {
        self.streams.get(&stream).is_none_or(|entry| entry.lost || entry.reset_here)
    }

    /// Returns the next event of a stream.
    pub(crate) fn next_event(&mut self, stream: u32) -> Next {
        let Some(entry) = self.streams.get_mut(&stream) else { return Next::Closed };
        let Some((event, cost)) = entry.inbound.pop_front() else {
            return if entry.receiving == Half::Open { Next::Empty } else { Next::Closed };
        };
        entry.owed += cost;
        self.buffered -= event.len();
        if entry.credit_due() {
            self.enqueue(stream);
        }
        self.remove_if_finished(stream);
        Next::Event(event)
    }

    /// Handles the drop of the last sender. Resets a stream that was not ended, so that the peer never mistakes
    /// partial data for complete data.
    pub(crate) fn drop_sender(&mut self, stream: u32) {
        if self.streams.get(&stream).is_some_and(|entry| entry.sending == Half::Open) {
            self.reset(stream, "the sender was dropped without an end");
        }
    }

    /// Handles the drop of the receiver: discards the data that is buffered and the data that still arrives.
    pub(crate) fn drop_receiver(&mut self, stream: u32) {
        let Some(entry) = self.streams.get_mut(&stream) else { return };
        entry.unread = true;
        self.buffered -= entry.buffered();
        entry.owed += entry.inbound.drain(..).map(|(_, cost)| cost).sum::<u32>();
        if entry.credit_due() {
            self.enqueue(stream);
        }
        self.remove_if_finished(stream);
    }

    // ---- the peer's side -------------------------------------------------------------------------

    /// Handles a frame from the peer.
    pub(crate) fn receive(&mut self, header: Header, payload: Bytes) -> Result<(), Violation> {
        let stream = header.stream;
        match header.kind {
            Kind::Hello => return Err(Violation::Hello(header.kind)),
            Kind::Open => return self.receive_open(stream, payload),
            _ => {}
        }
        let opened = if self.is_own(stream) { stream < self.next_own } else { stream <= self.last_theirs };
        if !opened {
            return Err(Violation::NeverOpened(stream));
        }
        let Some(entry) = self.streams.get_mut(&stream) else {
            // The peer sent this frame before it received this side's end or reset.
            return Ok(());
        };
        match header.kind {
            Kind::Credit => grant(entry, stream, payload)?,
            Kind::Reset => {
                entry.outbound.clear();
                entry.sending = Half::Closed;
                entry.lost = true;
                entry.signals.wake_all();
                if entry.receiving == Half::Open {
                    self.deliver(stream, Event::Reset(String::from_utf8_lossy(&payload).into_owned()), 0)?;
                }
            }
            // The peer sent this frame before it received this side's reset.
            _ if entry.reset_here => {}
            _ if entry.receiving == Half::Closed => return Err(Violation::AfterEnd(stream)),
            Kind::End => self.deliver(stream, Event::End, 0)?,
            Kind::Message | Kind::Data => self.receive_content(header, payload)?,
            Kind::Hello | Kind::Open => {}
        }
        self.remove_if_finished(stream);
        Ok(())
    }

    fn receive_open(&mut self, stream: u32, request: Bytes) -> Result<(), Violation> {
        if self.is_own(stream) || stream <= self.last_theirs {
            return Err(Violation::BadOpen(stream));
        }
        self.last_theirs = stream;
        if self.theirs >= MAX_STREAMS || !self.accepting {
            if self.refusals.len() >= MAX_STREAMS {
                return Err(Violation::Flood);
            }
            self.refusals.push_back(stream);
            return Ok(());
        }
        self.theirs += 1;
        self.count_buffered(request.len())?;
        self.streams.insert(stream, Entry::new(Some(request)));
        self.arrivals.push_back(stream);
        Ok(())
    }

    fn receive_content(&mut self, header: Header, mut payload: Bytes) -> Result<(), Violation> {
        let (stream, cost) = (header.stream, header.cost());
        let Some(entry) = self.streams.get_mut(&stream) else { return Ok(()) };
        if entry.used + cost > WINDOW {
            return Err(Violation::OverCredit(stream));
        }
        entry.used += cost;
        let event = if header.kind == Kind::Data {
            // `Header::decode` guarantees at least one byte of payload.
            let fd = payload.get_u8();
            Event::Data { fd, bytes: payload }
        } else {
            Event::Message(payload)
        };
        self.deliver(stream, event, cost)
    }

    fn deliver(&mut self, stream: u32, event: Event, cost: u32) -> Result<(), Violation> {
        self.count_buffered(event.len())?;
        let Some(entry) = self.streams.get_mut(&stream) else { return Ok(()) };
        if event.is_last() {
            entry.receiving = Half::Closed;
        }
        entry.inbound.push_back((event, cost));
        entry.signals.readable.notify_one();
        if entry.unread {
            self.drop_receiver(stream);
        }
        Ok(())
    }

    fn count_buffered(&mut self, bytes: usize) -> Result<(), Violation> {
        self.buffered += bytes;
        if self.buffered > MAX_BUFFERED { Err(Violation::TooMuchUnread) } else { Ok(()) }
    }

    /// Ends every stream with a reset that contains the reason for the lost connection.
    pub(crate) fn lose(&mut self, closed: &Closed) {
        self.closed = Some(closed.clone());
        let last = Event::Reset(format!("connection lost: {closed}"));
        for entry in self.streams.values_mut() {
            entry.outbound.clear();
            entry.sending = Half::Closed;
            if entry.receiving == Half::Open {
                entry.receiving = Half::Closed;
                self.buffered += last.len();
                entry.inbound.push_back((last.clone(), 0));
            }
            entry.lost = true;
            entry.signals.wake_all();
        }
        self.write_queue.clear();
        self.refusals.clear();
    }

    // ---- the wire --------------------------------------------------------------------------------

    /// Returns the next frame to write. The streams take turns, one frame each.
    pub(crate) fn next_frame(&mut self) -> Option<(u32, Frame)> {
        if let Some(stream) = self.refusals.pop_front() {
            let why =
                if self.accepting { "too many streams are open" } else { "this side accepts no requests" };
            return Some((stream, Frame::reset(why)));
        }
        while let Some(stream) = self.write_queue.pop_front() {
            let Some(entry) = self.streams.get_mut(&stream) else { continue };
            entry.queued = false;
            let Some(frame) = pop(entry) else { continue };
            if !entry.outbound.is_empty() || entry.credit_due() {
                self.enqueue(stream);
            }
            self.remove_if_finished(stream);
            return Some((stream, frame));
        }
        None
    }

    /// Whether no frames wait to be written.
    pub(crate) fn is_idle(&self) -> bool {
        self.write_queue.is_empty() && self.refusals.is_empty()
    }

    fn enqueue(&mut self, stream: u32) {
        if let Some(entry) = self.streams.get_mut(&stream)
            && !entry.queued
        {
            entry.queued = true;
            self.write_queue.push_back(stream);
        }
    }

    fn remove_if_finished(&mut self, stream: u32) {
        if self.streams.get(&stream).is_some_and(Entry::finished) {
            if let Some(entry) = self.streams.remove(&stream) {
                entry.signals.lost.notify_waiters();
            }
            if self.is_own(stream) {
                self.own -= 1;
            } else {
                self.theirs -= 1;
            }
        }
    }

    fn sendable(&mut self, stream: u32) -> Result<&mut Entry, ChannelError> {
        if let Some(closed) = &self.closed {
            return Err(ChannelError::Closed(closed.clone()));
        }
        let Some(entry) = self.streams.get_mut(&stream) else { return Err(ChannelError::Ended) };
        match (entry.sending, entry.inbound.back()) {
            (Half::Open, _) => Ok(entry),
            (_, Some((Event::Reset(why), _))) => Err(ChannelError::Reset(why.clone())),
            _ => Err(ChannelError::Ended),
        }
    }
}

fn grant(entry: &mut Entry, stream: u32, payload: Bytes) -> Result<(), Violation> {
    // `Header::decode` guarantees four bytes of payload.
    let grant = payload.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
    entry.credit = match entry.credit.checked_add(grant) {
        Some(credit) if credit <= WINDOW => credit,
        _ => return Err(Violation::OverGrant(stream)),
    };
    entry.signals.writable.notify_one();
    Ok(())
}

fn pop(entry: &mut Entry) -> Option<Frame> {
    if entry.credit_due() {
        let owed = std::mem::take(&mut entry.owed);
        entry.used -= owed;
        return Some(Frame::Credit(owed));
    }
    let frame = entry.outbound.pop_front()?;
    if matches!(frame, Frame::End | Frame::Reset(_)) {
        entry.sending = Half::Closed;
    }
    Some(frame)
}
