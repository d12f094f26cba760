//! Errors of channels.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The reason why a connection closed. Cheap to clone; all streams of a connection report the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Closed(pub(crate) Arc<str>);

impl Closed {
    pub(crate) fn because(reason: impl Into<String>) -> Self {
        Self(reason.into().into())
    }
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An error on a channel or stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    /// The peer sent no complete hello in time.
    #[error("no hello from the peer within {} s", .0.as_secs())]
    Silent(Duration),
    /// The peer's first bytes are not a valid hello.
    #[error("the peer's hello is invalid: {0}")]
    BadHello(String),
    /// The peer uses another protocol version. Guest, bundle and host must be the same program.
    #[error("the peer uses protocol version {theirs}, this program uses version {ours}")]
    Version {
        /// This program's version.
        ours: u32,
        /// The peer's version.
        theirs: u32,
    },
    /// The connection is closed.
    #[error("the connection is closed: {0}")]
    Closed(Closed),
    /// The stream was reset by the peer or by this side.
    #[error("the stream was reset: {0}")]
    Reset(String),
    /// The stream ended where a message was expected, or this side sends after its end.
    #[error("the stream has ended")]
    Ended,
    /// Data arrived where a message was expected.
    #[error("data arrived on the stream where a message was expected")]
    UnexpectedData,
    /// The peer's message does not have the expected type.
    #[error("cannot parse the peer's message: {0}")]
    Unreadable(String),
    /// A request or message that cannot be encoded.
    #[error("cannot encode the message: {0}")]
    Unwritable(String),
    /// A request or message over the frame's bound.
    #[error("a message of {length} bytes is over the bound of {bound}")]
    TooLong {
        /// Its length.
        length: usize,
        /// The bound.
        bound: usize,
    },
    /// This side has the maximum of open streams.
    #[error("{0} streams are open already, the maximum of one side")]
    TooManyStreams(usize),
}
