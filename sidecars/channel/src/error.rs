//! What can go wrong on a channel, in words.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Why a connection is gone. Cheap to clone; every stream of the connection tells the same.
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

/// A request that could not be sent or answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    /// The peer said nothing, or not enough, in time.
    #[error("no hello from the peer within {} s", .0.as_secs())]
    Silent(Duration),
    /// The peer's first bytes are no hello.
    #[error("the peer's hello is not one: {0}")]
    BadHello(String),
    /// Guest, bundle and host are one program; this peer is another version of it.
    #[error("the peer speaks protocol {theirs}, this program speaks protocol {ours}")]
    Version {
        /// This program's.
        ours: u32,
        /// The peer's.
        theirs: u32,
    },
    /// The connection is gone.
    #[error("the connection is gone: {0}")]
    Closed(Closed),
    /// The stream was given up by the peer, or by this side.
    #[error("the stream was given up: {0}")]
    Reset(String),
    /// The stream ended where a message was expected, or something is sent on it after its end.
    #[error("the stream has ended")]
    Ended,
    /// Bytes came where a message was expected.
    #[error("bytes came on the stream where a message was expected")]
    UnexpectedData,
    /// The peer's message is not of the expected type.
    #[error("the peer's message is not understood: {0}")]
    Unreadable(String),
    /// A request or message that cannot be written.
    #[error("the message cannot be written: {0}")]
    Unwritable(String),
    /// A request or message over the frame's bound.
    #[error("a message of {length} bytes is over the bound of {bound}")]
    TooLong {
        /// Its length.
        length: usize,
        /// What a frame holds.
        bound: usize,
    },
    /// As many streams are open as one side may have.
    #[error("{0} streams are open already, which is the most a side may have")]
    TooManyStreams(usize),
}
