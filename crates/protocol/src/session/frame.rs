//! Frames: a header of nine bytes, then the payload.
//!
//! ```text
//! 0        4        8     9
//! | length | stream | kind | payload …
//! ```
//! `length` and `stream` are big-endian. `length` counts only the payload and is at most [`MAX_PAYLOAD`].

use std::fmt;

/// Length of a header, in bytes.
pub const HEADER: usize = 9;

/// Sent instead of a header to announce that no more frames follow. A side sends this value only if the byte stream
/// cannot be closed (`rejoin` in the channel crate).
pub const CLOSING: [u8; HEADER] = [0; HEADER];

/// The largest payload of a request or message, in bytes. A prompt with its files fits into one payload. A longer
/// payload is rejected before memory is allocated for it.
pub const MAX_PAYLOAD: usize = 1 << 20;

/// The largest payload of a hello or a reset, in bytes. The sender truncates the message of a longer reset.
pub const MAX_SENTENCE: usize = 4096;

/// The largest payload of a data frame, in bytes. One of these bytes is the descriptor. The limit is small so
/// that streams can take turns.
pub const MAX_DATA: usize = 32 * 1024;

/// The flow-control window of one stream. The window limits the messages and data that a side may send before
/// it receives [`Kind::Credit`], measured as [`Header::cost`].
pub const WINDOW: u32 = 256 * 1024;

/// The cost of a frame in addition to its payload, so that empty frames cannot accumulate unread.
pub const FRAME_COST: u32 = 64;

/// The maximum cost of a frame, even of a message that is longer than the window. The receiver returns credit as soon
/// as it owes this amount, or earlier. A sender can therefore always send a frame of this cost after the receiver has
/// read all earlier frames.
pub const MAX_COST: u32 = WINDOW / 2;

/// The most streams that one side may have open at the same time. The other side refuses further streams.
pub const MAX_STREAMS: usize = 256;

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A [`super::Hello`]. Sent once, on stream 0.
    Hello = 1,
    /// Opens a stream. The payload is the request as JSON.
    Open = 2,
    /// A typed message as JSON.
    Message = 3,
    /// Bytes. The first byte of the payload is the descriptor ([`super::guest::STDIN`], …).
    Data = 4,
    /// The sender ends its direction of the stream.
    End = 5,
    /// The sender aborts the stream. The payload is a message (UTF-8).
    Reset = 6,
    /// Returns credit for the part of the window that the receiver has consumed (`u32`, measured as
    /// [`Header::cost`]).
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
    /// The stream; 0 is the connection itself. The dialling side opens streams with odd ids, the accepting
    /// side streams with even ids.
    pub stream: u32,
    /// The kind of the frame.
    pub kind: Kind,
}

/// An invalid header. Correct peers never send such a header. An invalid header closes the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    /// The kind byte is unknown.
    #[error("unknown frame kind {0}")]
    Kind(u8),
    /// The length is outside the bounds for the frame's kind.
    #[error("the length of the `{kind}` frame, {length} bytes, is not within its bounds")]
    Length {
        /// The frame's kind.
        kind: Kind,
        /// The length in the header.
        length: usize,
    },
    /// A connection-level frame on a stream, or a stream-level frame on stream 0.
    #[error("the `{kind}` frame does not belong on stream {stream}")]
    Stream {
        /// The frame's kind.
        kind: Kind,
        /// The stream in the header.
        stream: u32,
    },
}

impl Header {
    /// Encodes the header for the wire.
    ///
    /// # Panics
    /// Never: [`Header::new`] and [`Header::decode`] create all headers and bound the length.
    #[must_use]
    pub fn encode(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let length = u32::try_from(self.length).expect("bounded by MAX_PAYLOAD");
        bytes[..4].copy_from_slice(&length.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.stream.to_be_bytes());
        bytes[8] = self.kind as u8;
        bytes
    }

    /// Creates a header to send. The header must satisfy the same rules as a received header.
    ///
    /// # Errors
    /// [`BadFrame`] if the kind does not allow this length or stream.
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

    /// Returns the frame's cost in the stream's [`WINDOW`]. Messages and data cost their payload plus
    /// [`FRAME_COST`], at most [`MAX_COST`]. Other frames cost nothing.
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

    /// Decodes a header. The receiver allocates memory for the payload and reads the payload only after the header is
    /// decoded.
    ///
    /// # Errors
    /// [`BadFrame`] if the kind is unknown, or does not allow the length or the stream.
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
