//! The session protocol's frames over any byte stream: many independent streams on one connection.
//!
//! Owns the handshake, the stream table, credit and fairness. Refuses to know what is asked or answered:
//! requests and messages are JSON that the two ends agree on in `bottle_contract::session`.
//!
//! ```text
//!  Channel::open ─┐                                        ┌─► Incoming::next ─► Request::accept
//!                 ▼                                        │
//!   Stream ──► Table (credit, one frame per stream in turn) ──► write loop ══► peer
//!   Stream ◄── Table (bounds checked before anything waits)  ◄── read loop  ◄══ peer
//! ```
//!
//! The peer is hostile until shown otherwise. What may wait for a slow reader is bounded per stream
//! ([`WINDOW`](bottle_contract::session::frame::WINDOW)), per side
//! ([`MAX_STREAMS`](bottle_contract::session::frame::MAX_STREAMS)) and per connection; a peer that goes
//! over its credit, uses a stream that was never opened, speaks after its own end or announces a length
//! over the bound loses the connection, with the reason in [`Channel::closed`]. Sentences of the peer
//! (resets) are passed on as they are: whoever prints them makes them inert first.
//!
//! - `handshake`: both hellos, a deadline, the version check
//! - `table`: the state of every stream, no I/O; `entry`: one stream's part of it
//! - `drive`: the two loops that own the connection
//! - `channel`, `stream`: what callers hold
//! - `splice`: one stream passed through to another
//! - [`rejoin`](mod@rejoin): one byte stream for one connection after another; `stdio`: a process's own

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
