//! The frame: nine bytes of header, then the payload.
//!
//! ```text
//! 0        4        8     9
//! | length | stream | kind | payload …
//! ```
//! Both numbers are big-endian. `length` counts the payload only and is at most [`MAX_PAYLOAD`].

use std::fmt;

/// Bytes of a header.
pub const HEADER: usize = 9;

/// In a header's place: no frame comes any more. Only a stream that cannot be closed needs it
/// (`rejoin` in the channel's crate).
pub const CLOSING: [u8; HEADER] = [0; HEADER];

/// The largest payload of a hello, request or message, in bytes: a prompt with its files fits, a guest
/// that announces more is cut off before anything is allocated.
pub const MAX_PAYLOAD: usize = 1 << 20;

/// The largest payload of a hello or a reset's sentence, in bytes.
pub const MAX_SENTENCE: usize = 4096;

/// The largest data payload, in bytes (one byte of which names the descriptor): small enough that
/// streams take turns.
pub const MAX_DATA: usize = 32 * 1024;

/// How much of messages and data a side may have under way on one stream before it needs
/// [`Kind::Credit`], counted as [`Header::cost`].
pub const WINDOW: u32 = 256 * 1024;

/// What a frame costs of the window beside its payload, so that empty frames cannot pile up unread.
pub const FRAME_COST: u32 = 64;

/// The most a single frame costs. A message may be longer than the window; because credit comes back at
/// this mark at the latest, a frame of this cost can always be sent once the receiver has caught up.
pub const MAX_COST: u32 = WINDOW / 2;

/// How many streams one side may have open.
pub const MAX_STREAMS: usize = 256;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// [`super::Hello`], once, on stream 0.
    Hello = 1,
    /// Opens a stream; the payload is the request as JSON.
    Open = 2,
    /// A typed message as JSON.
    Message = 3,
    /// Bytes; the payload's first byte says of which descriptor ([`super::guest::STDIN`] and its kin).
    Data = 4,
    /// The sender is done with this stream.
    End = 5,
    /// The sender gives the stream up; the payload is a sentence (UTF-8).
    Reset = 6,
    /// The receiver took this much more of the window (`u32`, in [`Header::cost`]).
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

/// A header, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Payload bytes that follow.
    pub length: usize,
    /// Which stream; 0 belongs to the connection. The dialling side opens odd ones, the other even ones.
    pub stream: u32,
    /// What it is.
    pub kind: Kind,
}

/// A header that no honest peer sends; the connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    /// The kind byte is none of [`Kind`].
    #[error("unknown frame kind {0}")]
    Kind(u8),
    /// The length is over the kind's bound.
    #[error("the length of the `{kind}` frame, {length} bytes, is not within its bounds")]
    Length {
        /// The frame's kind.
        kind: Kind,
        /// The length it announced.
        length: usize,
    },
    /// A connection-level kind on a stream, or the other way round.
    #[error("the `{kind}` frame does not belong on stream {stream}")]
    Stream {
        /// The frame's kind.
        kind: Kind,
        /// The stream it named.
        stream: u32,
    },
}

impl Header {
    /// Writes the header in wire form.
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

    /// A header for sending, held to the same rules as a received one.
    ///
    /// # Errors
    /// [`BadFrame`] when the length or the stream does not fit the kind.
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

    /// What the frame takes of the stream's [`WINDOW`]: messages and data cost their payload and
    /// [`FRAME_COST`], at most [`MAX_COST`]; everything else is free.
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

    /// Reads a header; nothing of the payload is looked at or allocated before this agrees.
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
        fn whatever_decodes_encodes_to_the_same_bytes(bytes in any::<[u8; HEADER]>()) {
            if let Ok(header) = Header::decode(bytes) {
                prop_assert_eq!(header.encode(), bytes);
                prop_assert!(header.length <= MAX_PAYLOAD);
            }
        }
    }

    #[test]
    fn a_lying_length_is_refused_before_anything_is_allocated() {
        let mut bytes = Header::new(Kind::Data, 1, 10).expect("header").encode();
        bytes[..4].copy_from_slice(&u32::MAX.to_be_bytes());
        assert!(matches!(Header::decode(bytes), Err(BadFrame::Length { .. })));
    }
}
