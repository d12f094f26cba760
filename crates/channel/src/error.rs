//! Errors of channels and streams.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Why a connection closed. Cheap to clone. All streams of a connection report the same reason.
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
    /// The peer did not send a complete hello within this time.
    #[error("no hello from the peer within {} s", .0.as_secs())]
    Silent(Duration),
    /// The peer's first bytes are not a valid hello.
    #[error("the peer's hello is invalid: {0}")]
    BadHello(String),
    /// The peer uses another protocol version. Guest, bundle and host must run the same version of this
    /// program.
    #[error("the peer uses protocol version {theirs}, this program uses version {ours}")]
    Version {
        /// The protocol version of this program.
        ours: u32,
        /// The protocol version of the peer.
        theirs: u32,
    },
    /// The connection is closed.
    #[error("the connection is closed: {0}")]
    Closed(Closed),
    /// The stream was reset by the peer or by this side.
    #[error("the stream was reset: {0}")]
    Reset(String),
    /// The stream ended where a message was expected, or this side sent on a stream that it had already ended.
    #[error("the stream has ended")]
    Ended,
    /// Data arrived where a message was expected.
    #[error("data arrived on the stream where a message was expected")]
    UnexpectedData,
    /// The peer's message is not of the expected type.
    #[error("cannot parse the peer's message: {0}")]
    Unreadable(String),
    /// A request or message cannot be encoded as JSON.
    #[error("cannot encode the message: {0}")]
    Unwritable(String),
    /// A request or message is longer than the largest payload of a frame.
    #[error("a message of {length} bytes is over the bound of {bound}")]
    TooLong {
        /// The length of the request or message, in bytes.
        length: usize,
        /// The largest payload of a frame, in bytes.
        bound: usize,
    },
    /// This side has already opened the maximum number of streams.
    #[error("{0} streams are open already, the maximum of one side")]
    TooManyStreams(usize),
}
