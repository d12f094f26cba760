//! Frames: nine bytes of header, then the payload.
//!
//! ```text
//! 0        4        8     9
//! | length | stream | kind | payload …
//! ```
//! Both numbers are big-endian. `length` counts the payload only and is at most [`MAX_PAYLOAD`].

use std::fmt;

/// Length of a header, in bytes.
pub const HEADER: usize = 9;

/// Replaces a header to announce that no more frames follow. Only a stream that cannot be closed needs it
/// (`rejoin` in the channel crate).
pub const CLOSING: [u8; HEADER] = [0; HEADER];

/// The largest payload of a request or message, in bytes. A prompt with its files fits; a longer length is
/// rejected before anything is allocated.
pub const MAX_PAYLOAD: usize = 1 << 20;

/// The largest payload of a hello or a reset, in bytes.
pub const MAX_SENTENCE: usize = 4096;

/// The largest data payload, in bytes (one of them names the descriptor). Small enough that streams take
/// turns.
pub const MAX_DATA: usize = 32 * 1024;

/// Flow-control window: the messages and data that a side may send on one stream before it receives
/// [`Kind::Credit`], counted as [`Header::cost`].
pub const WINDOW: u32 = 256 * 1024;

/// The cost of a frame beside its payload, so that empty frames cannot accumulate unread.
pub const FRAME_COST: u32 = 64;

/// The maximum cost of a frame. A message may be longer than the window; credit returns at this mark at the
/// latest, so a frame of this cost can always be sent once the receiver has caught up.
pub const MAX_COST: u32 = WINDOW / 2;

/// The most streams that one side may have open.
pub const MAX_STREAMS: usize = 256;

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// [`super::Hello`], once, on stream 0.
    Hello = 1,
    /// Opens a stream; the payload is the request as JSON.
    Open = 2,
    /// A typed message as JSON.
    Message = 3,
    /// Bytes; the payload's first byte names the descriptor ([`super::guest::STDIN`], …).
    Data = 4,
    /// The sender ends its side of the stream.
    End = 5,
    /// The sender aborts the stream; the payload is a message (UTF-8).
    Reset = 6,
    /// The receiver has consumed this much of the window (`u32`, in [`Header::cost`]).
    Credit = 7,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hello => "hello",
            Self::Open => "open",
            Self::Message => "message",
            Self::Data => "data",
            Self::End => "end",
            Self::Reset => "reset",
            Self::Credit => "credit",
        })
    }
}

/// A validated header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Length of the payload, in bytes.
    pub length: usize,
    /// The stream; 0 is the connection itself. The dialling side opens odd streams, the other side even ones.
    pub stream: u32,
    /// The kind.
    pub kind: Kind,
}

/// An invalid header, which no correct peer sends. The connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    /// The kind byte is unknown.
    #[error("unknown frame kind {0}")]
    Kind(u8),
    /// The length is outside the kind's bounds.
    #[error("the length of the `{kind}` frame, {length} bytes, is not within its bounds")]
    Length {
        /// The frame's kind.
        kind: Kind,
        /// The length it announced.
        length: usize,
    },
    /// A connection-level kind on a stream, or a stream-level kind on stream 0.
    #[error("the `{kind}` frame does not belong on stream {stream}")]
    Stream {
        /// The frame's kind.
        kind: Kind,
        /// The stream it named.
        stream: u32,
    },
}

impl Header {
    /// Encodes the header for the wire.
    ///
    /// # Panics
    /// Never: [`Header`]s come from [`Header::new`] or [`Header::decode`], which bound the length.
    #[must_use]
    pub fn encode(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let length = u32::try_from(self.length).expect("bounded by MAX_PAYLOAD");
        bytes[..4].copy_from_slice(&length.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.stream.to_be_bytes());
        bytes[8] = self.kind as u8;
        bytes
    }

    /// Makes a header for sending, under the same rules as a received one.
    ///
    /// # Errors
    /// [`BadFrame`] if the length or stream does not fit the kind.
    pub fn new(kind: Kind, stream: u32, length: usize) -> Result<Self, BadFrame> {
        let bound = match kind {
            Kind::Hello | Kind::Reset => MAX_SENTENCE,
            Kind::Open | Kind::Message => MAX_PAYLOAD,
            Kind::Data => MAX_DATA,
            Kind::End => 0,
            Kind::Credit => 4,
        };
        let least = match kind {
            Kind::Credit => 4,
            Kind::Data => 1,
            _ => 0,
        };
        if length > bound || length < least {
            return Err(BadFrame::Length { kind, length });
        }
        if (stream == 0) != (kind == Kind::Hello) {
            return Err(BadFrame::Stream { kind, stream });
        }
        Ok(Self { length, stream, kind })
    }

    /// The frame's cost in the stream's [`WINDOW`]. Messages and data cost their payload plus [`FRAME_COST`],
    /// at most [`MAX_COST`]; other frames are free.
    #[must_use]
    pub fn cost(self) -> u32 {
        match self.kind {
            Kind::Message | Kind::Data => {
                let length = u32::try_from(self.length).unwrap_or(MAX_COST);
                length.saturating_add(FRAME_COST).min(MAX_COST)
            }
            Kind::Hello | Kind::Open | Kind::End | Kind::Reset | Kind::Credit => 0,
        }
    }

    /// Decodes a header. Nothing of the payload is read or allocated before this succeeds.
    ///
    /// # Errors
    /// [`BadFrame`] for an unknown kind, a length over the kind's bound or a stream that does not fit it.
    pub fn decode(bytes: [u8; HEADER]) -> Result<Self, BadFrame> {
        let [l0, l1, l2, l3, s0, s1, s2, s3, kind] = bytes;
        let kind = match kind {
            1 => Kind::Hello,
            2 => Kind::Open,
            3 => Kind::Message,
            4 => Kind::Data,
            5 => Kind::End,
            6 => Kind::Reset,
            7 => Kind::Credit,
            other => return Err(BadFrame::Kind(other)),
        };
        let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
        Self::new(kind, u32::from_be_bytes([s0, s1, s2, s3]), length)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn decoding_and_encoding_round_trip(bytes in any::<[u8; HEADER]>()) {
            if let Ok(header) = Header::decode(bytes) {
                prop_assert_eq!(header.encode(), bytes);
                prop_assert!(header.length <= MAX_PAYLOAD);
            }
        }
    }

    #[test]
    fn rejects_a_false_length() {
        let mut bytes = Header::new(Kind::Data, 1, 10).expect("header").encode();
        bytes[..4].copy_from_slice(&u32::MAX.to_be_bytes());
        assert!(matches!(Header::decode(bytes), Err(BadFrame::Length { .. })));
    }
}
