//! Multiplexes independent streams over one byte stream, with the session protocol's frames.
//!
//! Owns the handshake, the stream table, flow control and fairness. It does not interpret requests and
//! messages: these are JSON that both ends define in `bottle_contract::session`.
//!
//! ```text
//!  Channel::open ─┐                                        ┌─► Incoming::next ─► Request::accept
//!                 ▼                                        │
//!   Stream ──► Table (credit, one frame per stream in turn) ──► write loop ══► peer
//!   Stream ◄── Table (bounds checked before anything waits)  ◄── read loop  ◄══ peer
//! ```
//!
//! The peer is untrusted. Buffered data for a slow reader is bounded per stream
//! ([`WINDOW`](bottle_contract::session::frame::WINDOW)), per side
//! ([`MAX_STREAMS`](bottle_contract::session::frame::MAX_STREAMS)) and per connection. A peer that exceeds
//! its credit, uses a stream that was never opened, sends after its own end, or announces a length over the
//! bound loses the connection; [`Channel::closed`] reports the reason. Reset messages of the peer are passed
//! on unescaped: callers must escape them before display.
//!
//! - `handshake`: hellos, deadline, version check
//! - `table`: the state of all streams, no I/O; `entry`: the state of one stream
//! - `drive`: the read and write loops
//! - `channel`, `stream`: the handles of callers
//! - `splice`: forwards one stream to another
//! - [`rejoin`](mod@rejoin): successive connections on one byte stream; `stdio`: on a process's standard streams

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
