//! Every stream of a connection and the rules between them. No I/O: frames go in and come out.
//!
//! ```text
//!   offer ─► outbound ─► turn queue ─► next_frame          (credit is spent when a frame is offered)
//!   take  ◄─ inbound  ◄─ arrive                            (credit is owed when an event is taken)
//! ```
//! A stream leaves the table when both directions are over and its last event was read; until then it
//! counts against [`MAX_STREAMS`], so a peer cannot make it grow by opening and giving up.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bottle_contract::session::frame::{Header, Kind, MAX_STREAMS, WINDOW};
use bytes::{Buf, Bytes};

use crate::entry::{Entry, Frame, Half, Signals};
use crate::{ChannelError, Closed, Event, Side};

/// What may wait for readers on a whole connection, in bytes: every stream of one side with a full
/// window. Only long messages on many streams that nobody reads come near it.
const MAX_WAITING: usize = MAX_STREAMS * WINDOW as usize;

/// Something no honest peer does; the connection is closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Violation {
    #[error("the peer sent a `{0}` frame that only belongs at the beginning")]
    Hello(Kind),
    #[error("the peer used stream {0}, which was never opened")]
    Unopened(u32),
    #[error("the peer opened stream {0}, which is not its to open or not a new one")]
    BadOpen(u32),
    #[error("the peer went on after ending stream {0}")]
    AfterEnd(u32),
    #[error("the peer sent more on stream {0} than it had credit for")]
    OverCredit(u32),
    #[error("the peer granted more credit on stream {0} than was used")]
    OverGrant(u32),
    #[error("the peer opens streams faster than it reads their refusals")]
    Flood,
    #[error("the peer left more unread than a connection may hold")]
    TooMuchWaiting,
}

/// What became of an offered frame.
pub(crate) enum Offer {
    Taken,
    /// Not enough credit: here it is again.
    Wait(Frame),
}

/// What a reader finds.
pub(crate) enum Taken {
    Event(Event),
    Nothing,
    /// The stream is no more.
    Gone,
}

/// See the module.
pub(crate) struct Table {
    side: Side,
    streams: HashMap<u32, Entry>,
    /// Streams with something to write, each once, in turn.
    turns: VecDeque<u32>,
    /// Streams refused without ever having been in the table.
    refusals: VecDeque<u32>,
    /// The peer's new streams, until taken.
    arrivals: VecDeque<u32>,
    /// Whether anybody takes them.
    pub(crate) accepting: bool,
    next_own: u32,
    last_theirs: u32,
    own: usize,
    theirs: usize,
    waiting: usize,
    pub(crate) closed: Option<Closed>,
}

impl Table {
    pub(crate) fn new(side: Side) -> Self {
        Self {
            side,
            streams: HashMap::new(),
            turns: VecDeque::new(),
            refusals: VecDeque::new(),
            arrivals: VecDeque::new(),
            accepting: true,
            next_own: if side == Side::Dialed { 1 } else { 2 },
            last_theirs: 0,
            own: 0,
            theirs: 0,
            waiting: 0,
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
        self.list(stream);
        Ok((stream, signals))
    }

    /// The peer's oldest request that nobody has taken.
    pub(crate) fn take_request(&mut self) -> Option<(u32, Bytes, Arc<Signals>)> {
        let stream = self.arrivals.pop_front()?;
        let entry = self.streams.get_mut(&stream)?;
        let request = entry.request.take()?;
        self.waiting -= request.len();
        Some((stream, request, entry.signals.clone()))
    }

    /// Nobody takes requests any more: those that wait are refused, and all that come.
    pub(crate) fn stop_accepting(&mut self) {
        self.accepting = false;
        while let Some((stream, ..)) = self.take_request() {
            self.reset(stream, "nobody takes requests here");
            self.drop_receiver(stream);
        }
    }

    /// Queues a message or data frame if its cost fits the credit.
    pub(crate) fn offer(&mut self, stream: u32, frame: Frame) -> Result<Offer, ChannelError> {
        let cost = frame.header(stream)?.cost();
        let entry = self.sendable(stream)?;
        if entry.credit < cost {
            return Ok(Offer::Wait(frame));
        }
        entry.credit -= cost;
        entry.outbound.push_back(frame);
        self.list(stream);
        Ok(Offer::Taken)
    }

    /// Queues the end of this side. Ending twice is once.
    pub(crate) fn end(&mut self, stream: u32) -> Result<(), ChannelError> {
        match self.sendable(stream) {
            Ok(entry) => {
                entry.sending = Half::Closing;
                entry.outbound.push_back(Frame::End);
                self.list(stream);
                Ok(())
            }
            Err(ChannelError::Ended) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Gives the stream up, both ways; what was queued is dropped.
    pub(crate) fn reset(&mut self, stream: u32, why: &str) {
        let Some(entry) = self.streams.get_mut(&stream) else { return };
        if entry.sending == Half::Over && entry.receiving == Half::Over {
            return;
        }
        let unknown_to_peer = matches!(entry.outbound.front(), Some(Frame::Open(_)));
        entry.given_up = true;
        entry.outbound.clear();
        entry.sending = if unknown_to_peer {
            Half::Over
        } else {
            entry.outbound.push_back(Frame::reset(why));
            Half::Closing
        };
        self.waiting -= entry.waiting();
        entry.receiving = Half::Over;
        entry.inbound.clear();
        entry.inbound.push_back((Event::Reset(format!("given up on this side: {why}")), 0));
        self.waiting += entry.waiting();
        entry.signals.wake_all();
        self.list(stream);
        self.sweep(stream);
    }

    /// Whether the stream was given up by either side, or lost with the connection.
    pub(crate) fn is_lost(&self, stream: u32) -> bool {
        self.streams.get(&stream).is_none_or(|entry| entry.lost || entry.given_up)
    }

    /// The next event of a stream.
    pub(crate) fn take(&mut self, stream: u32) -> Taken {
        let Some(entry) = self.streams.get_mut(&stream) else { return Taken::Gone };
        let Some((event, cost)) = entry.inbound.pop_front() else {
            return if entry.receiving == Half::Open { Taken::Nothing } else { Taken::Gone };
        };
        entry.owed += cost;
        self.waiting -= event.len();
        if entry.grants() {
            self.list(stream);
        }
        self.sweep(stream);
        Taken::Event(event)
    }

    /// The last sender is gone; without an end that is giving up, so that nobody takes a part for the
    /// whole.
    pub(crate) fn drop_sender(&mut self, stream: u32) {
        if self.streams.get(&stream).is_some_and(|entry| entry.sending == Half::Open) {
            self.reset(stream, "its sender went away without ending it");
        }
    }

    /// The receiver is gone; what waits and what comes is dropped.
    pub(crate) fn drop_receiver(&mut self, stream: u32) {
        let Some(entry) = self.streams.get_mut(&stream) else { return };
        entry.unread = true;
        self.waiting -= entry.waiting();
        entry.owed += entry.inbound.drain(..).map(|(_, cost)| cost).sum::<u32>();
        if entry.grants() {
            self.list(stream);
        }
        self.sweep(stream);
    }

    // ---- the peer's side -------------------------------------------------------------------------

    /// A frame from the peer.
    pub(crate) fn arrive(&mut self, header: Header, payload: Bytes) -> Result<(), Violation> {
        let stream = header.stream;
        match header.kind {
            Kind::Hello => return Err(Violation::Hello(header.kind)),
            Kind::Open => return self.arrive_open(stream, payload),
            _ => {}
        }
        let opened = if self.is_own(stream) { stream < self.next_own } else { stream <= self.last_theirs };
        if !opened {
            return Err(Violation::Unopened(stream));
        }
        let Some(entry) = self.streams.get_mut(&stream) else {
            // It crossed our end or reset on the wire.
            return Ok(());
        };
        match header.kind {
            Kind::Credit => grant(entry, stream, payload)?,
            Kind::Reset => {
                entry.outbound.clear();
                entry.sending = Half::Over;
                entry.lost = true;
                entry.signals.wake_all();
                if entry.receiving == Half::Open {
                    self.deliver(stream, Event::Reset(String::from_utf8_lossy(&payload).into_owned()), 0)?;
                }
            }
            // Sent before our reset reached the peer.
            _ if entry.given_up => {}
            _ if entry.receiving == Half::Over => return Err(Violation::AfterEnd(stream)),
            Kind::End => self.deliver(stream, Event::End, 0)?,
            Kind::Message | Kind::Data => self.arrive_content(header, payload)?,
            Kind::Hello | Kind::Open => {}
        }
        self.sweep(stream);
        Ok(())
    }

    fn arrive_open(&mut self, stream: u32, request: Bytes) -> Result<(), Violation> {
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
        self.wait(request.len())?;
        self.streams.insert(stream, Entry::new(Some(request)));
        self.arrivals.push_back(stream);
        Ok(())
    }

    fn arrive_content(&mut self, header: Header, mut payload: Bytes) -> Result<(), Violation> {
        let (stream, cost) = (header.stream, header.cost());
        let Some(entry) = self.streams.get_mut(&stream) else { return Ok(()) };
        if entry.held + cost > WINDOW {
            return Err(Violation::OverCredit(stream));
        }
        entry.held += cost;
        let event = if header.kind == Kind::Data {
            // The header's bounds make a data payload at least one byte.
            let fd = payload.get_u8();
            Event::Data { fd, bytes: payload }
        } else {
            Event::Message(payload)
        };
        self.deliver(stream, event, cost)
    }

    fn deliver(&mut self, stream: u32, event: Event, cost: u32) -> Result<(), Violation> {
        self.wait(event.len())?;
        let Some(entry) = self.streams.get_mut(&stream) else { return Ok(()) };
        if event.is_last() {
            entry.receiving = Half::Over;
        }
        entry.inbound.push_back((event, cost));
        entry.signals.readable.notify_one();
        if entry.unread {
            self.drop_receiver(stream);
        }
        Ok(())
    }

    fn wait(&mut self, bytes: usize) -> Result<(), Violation> {
        self.waiting += bytes;
        if self.waiting > MAX_WAITING { Err(Violation::TooMuchWaiting) } else { Ok(()) }
    }

    /// The connection is gone: every stream ends with a reset that says why.
    pub(crate) fn lose(&mut self, closed: &Closed) {
        self.closed = Some(closed.clone());
        let last = Event::Reset(format!("connection lost: {closed}"));
        for entry in self.streams.values_mut() {
            entry.outbound.clear();
            entry.sending = Half::Over;
            if entry.receiving == Half::Open {
                entry.receiving = Half::Over;
                self.waiting += last.len();
                entry.inbound.push_back((last.clone(), 0));
            }
            entry.lost = true;
            entry.signals.wake_all();
        }
        self.turns.clear();
        self.refusals.clear();
    }

    // ---- the wire --------------------------------------------------------------------------------

    /// The next frame to write: one per stream in turn.
    pub(crate) fn next_frame(&mut self) -> Option<(u32, Frame)> {
        if let Some(stream) = self.refusals.pop_front() {
            let why = if self.accepting { "too many streams are open" } else { "nobody takes requests here" };
            return Some((stream, Frame::reset(why)));
        }
        while let Some(stream) = self.turns.pop_front() {
            let Some(entry) = self.streams.get_mut(&stream) else { continue };
            entry.listed = false;
            let Some(frame) = pop(entry) else { continue };
            if !entry.outbound.is_empty() || entry.grants() {
                self.list(stream);
            }
            self.sweep(stream);
            return Some((stream, frame));
        }
        None
    }

    /// Whether nothing waits to be written.
    pub(crate) fn is_idle(&self) -> bool {
        self.turns.is_empty() && self.refusals.is_empty()
    }

    fn list(&mut self, stream: u32) {
        if let Some(entry) = self.streams.get_mut(&stream)
            && !entry.listed
        {
            entry.listed = true;
            self.turns.push_back(stream);
        }
    }

    fn sweep(&mut self, stream: u32) {
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
    // The header's bounds make a credit payload four bytes.
    let grant = payload.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
    entry.credit = match entry.credit.checked_add(grant) {
        Some(credit) if credit <= WINDOW => credit,
        _ => return Err(Violation::OverGrant(stream)),
    };
    entry.signals.writable.notify_one();
    Ok(())
}

fn pop(entry: &mut Entry) -> Option<Frame> {
    if entry.grants() {
        let owed = std::mem::take(&mut entry.owed);
        entry.held -= owed;
        return Some(Frame::Credit(owed));
    }
    let frame = entry.outbound.pop_front()?;
    if matches!(frame, Frame::End | Frame::Reset(_)) {
        entry.sending = Half::Over;
    }
    Some(frame)
}
