//! Multiplexes independent streams over one byte stream, in the frames of the session protocol.
//!
//! This crate implements the handshake, the stream table, flow control and fairness between streams. The
//! crate does not interpret requests and messages, which are JSON of types in `bottle_protocol::session`.
//!
//! ```text
//!  Channel::open ─┐                                        ┌─► Incoming::next ─► Request::accept
//!                 ▼                                        │
//!   Stream ──► Table (credit, one frame per stream in turn) ──► write loop ══► peer
//!   Stream ◄── Table (bounds checked before buffering)       ◄── read loop  ◄══ peer
//! ```
//!
//! The peer is untrusted. The amount of data that is buffered for a slow reader is bounded per stream
//! ([`WINDOW`](bottle_protocol::session::frame::WINDOW)) and per connection. The number of streams that each side may
//! open is bounded too ([`MAX_STREAMS`](bottle_protocol::session::frame::MAX_STREAMS)). The connection is closed if the
//! peer exceeds its credit, uses a stream that was never opened, sends on a stream that it has ended, or announces a
//! frame that is longer than allowed. [`Channel::closed`] returns the reason for the close. The messages of the peer's
//! resets are not escaped: callers must escape these messages before display.
//!
//! - `handshake`: exchange of hellos, with a deadline and a version check
//! - `table`: the state of all streams, without I/O; `entry`: the state of one stream
//! - `drive`: the read and write loops; `batch`: combines frames into one write
//! - `channel` and `stream`: the handles that callers use
//! - `splice`: forwards one stream to another
//! - [`rejoin`](mod@rejoin): consecutive connections on one byte stream; `stdio`: a process's standard
//!   streams

mod batch;
mod channel;
mod drive;
mod entry;
mod error;
mod handshake;
pub mod rejoin;
mod splice;
mod stdio;
mod stream;
mod table;

pub use channel::{Channel, Incoming, Request, Side};
pub use error::{ChannelError, Closed};
pub use handshake::HELLO_DEADLINE;
pub use rejoin::{Rejoinable, rejoin};
pub use splice::splice;
pub use stdio::Stdio;
pub use stream::{Event, Stream, StreamReceiver, StreamSender};
