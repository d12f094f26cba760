//! Parses WebSocket frames (RFC 6455) and decompresses their messages (permessage-deflate, RFC 7692).
//!
//! The proxy forwards frames exactly as it received them, so both sides keep their own fragments, masks and
//! compression. The proxy forwards no part of a message before the message is complete. The proxy forwards control
//! frames as they arrive.

use std::collections::HashSet;

use bytes::{Buf, Bytes, BytesMut};
use flate2::{Decompress, FlushDecompress, Status};
use http::header::SEC_WEBSOCKET_EXTENSIONS;
use http::{HeaderMap, HeaderValue};

use crate::bounds;
use crate::inspect::decoded_memory::{DecodedMemory, DecodedPart, MemoryFull};

const FIN: u8 = 0x80;
const RSV1: u8 = 0x40;
const RSV2_AND_3: u8 = 0x30;
const MASKED: u8 = 0x80;
const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;
/// The longest payload of a control frame, in bytes (RFC 6455, 5.5).
const MAX_CONTROL: usize = 125;
/// The last bytes of each compressed message. The sender omits these bytes (RFC 7692, 7.2.2).
const DEFLATE_TAIL: [u8; 4] = [0, 0, 0xff, 0xff];
/// Size of the decompressor's output buffer, in bytes.
const INFLATED_CHUNK: usize = 16 << 10;

/// How one side of a WebSocket violates the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Violation {
    /// The frames are not valid.
    Frames,
    /// Text is not UTF-8, or a compressed message cannot be decompressed.
    Payload,
    /// A message exceeds [`bounds::MESSAGE_BYTES`].
    TooBig,
    /// All incomplete messages together use too much memory.
    MemoryFull,
}

impl From<MemoryFull> for Violation {
    fn from(MemoryFull: MemoryFull) -> Self {
        Self::MemoryFull
    }
}

impl Violation {
    /// The code of the close frame (RFC 6455, 7.4.1).
    pub(crate) fn code(self) -> u16 {
        match self {
            Self::Frames => 1002,
            Self::Payload => 1007,
            Self::TooBig => 1009,
            // Registered by IANA as "try again later".
            Self::MemoryFull => 1013,
        }
    }
}

/// A complete message or control frame, which can be forwarded.
#[derive(Debug)]
pub(crate) struct Part {
    /// The frames as received.
    pub(crate) frames: Bytes,
    /// Whether this is a message, and not a control frame.
    pub(crate) is_message: bool,
    /// The text or data, unmasked and decompressed. The code of a close frame is omitted.
    pub(crate) payload: Vec<u8>,
    /// Whether this is a close frame, after which its sender sends nothing more.
    pub(crate) is_close: bool,
    _memory: DecodedPart,
}

/// Parses the frames that one side sends.
pub(crate) struct FrameReader {
    /// Whether the side is the client, whose frames are masked.
    masked: bool,
    /// Decompresses messages, if both sides agreed on permessage-deflate.
    inflate: Option<Decompress>,
    /// The message in progress.
    message: Option<Message>,
    /// The data frame in progress.
    frame: Option<DataFrame>,
    memory: DecodedMemory,
}

/// A message in progress.
struct Message {
    frames: BytesMut,
    payload: Vec<u8>,
    is_text: bool,
    compressed: bool,
    /// The length of the prefix that is known to be UTF-8.
    valid: usize,
    memory: DecodedPart,
}

/// A data frame in progress.
struct DataFrame {
    remaining: u64,
    mask: Option<[u8; 4]>,
    /// The number of payload bytes that were read so far. It determines the position in the mask.
    at: usize,
    is_last: bool,
}

/// The head of a frame.
struct Head {
    first: u8,
    opcode: u8,
    mask: Option<[u8; 4]>,
    length: u64,
    /// The length of the head itself.
    size: usize,
}

impl FrameReader {
    /// Creates a parser for the frames of a client (`masked`) or a server. `deflate` says whether messages may be
    /// compressed. Messages count towards `memory`.
    pub(crate) fn new(masked: bool, deflate: bool, memory: &DecodedMemory) -> Self {
        let inflate = deflate.then(|| Decompress::new(false));
        Self { masked, inflate, message: None, frame: None, memory: memory.clone() }
    }

    /// Takes bytes from `input` and returns the next part. Returns `None` if the next part needs more bytes.
    ///
    /// # Errors
    /// [`Violation`] if the side violates the protocol, which ends the conversation.
    pub(crate) fn next(&mut self, input: &mut BytesMut) -> Result<Option<Part>, Violation> {
        loop {
            if self.frame.is_some() {
                match self.data(input)? {
                    Some(part) => return Ok(Some(part)),
                    None if self.frame.is_some() => return Ok(None),
                    None => continue,
                }
            }
            let Some(head) = self.head(input)? else { return Ok(None) };
            if head.opcode < CLOSE {
                self.begin(&head, input.split_to(head.size))?;
                continue;
            }
            let length = usize::try_from(head.length).map_err(|_| Violation::Frames)?;
            if input.len() < head.size + length {
                return Ok(None);
            }
            let frames = input.split_to(head.size + length).freeze();
            let mut payload = frames[head.size..].to_vec();
            unmask(&mut payload, head.mask, 0);
            let is_close = head.opcode == CLOSE;
            if is_close {
                payload.drain(..payload.len().min(2));
            }
            return Ok(Some(Part {
                frames,
                is_message: false,
                payload,
                is_close,
                _memory: self.memory.part(),
            }));
        }
    }

    /// Parses the next head and checks it.
    fn head(&self, input: &[u8]) -> Result<Option<Head>, Violation> {
        let Some([first, second]) = input.first_chunk::<2>().copied() else { return Ok(None) };
        let opcode = first & 0x0f;
        let is_control = opcode >= CLOSE;
        let short = second & !MASKED;
        let is_valid = match opcode {
            CONTINUATION => self.message.is_some(),
            TEXT | BINARY => self.message.is_none(),
            CLOSE | PING | PONG => first & FIN != 0 && usize::from(short) <= MAX_CONTROL,
            _ => false,
        };
        let may_compress = self.inflate.is_some() && matches!(opcode, TEXT | BINARY);
        let reserved = first & RSV2_AND_3 != 0 || (first & RSV1 != 0 && !may_compress);
        if !is_valid || reserved || (second & MASKED != 0) != self.masked {
            return Err(Violation::Frames);
        }
        let (extended, mask_size) = (
            match short {
                126 => 2,
                127 => 8,
                _ => 0,
            },
            if self.masked { 4 } else { 0 },
        );
        let size = 2 + extended + mask_size;
        let Some(rest) = input.get(2..size) else { return Ok(None) };
        let length = match extended {
            0 => u64::from(short),
            _ => rest[..extended].iter().fold(0, |length, byte| length << 8 | u64::from(*byte)),
        };
        if length >> 63 != 0 || (is_control && extended > 0) {
            return Err(Violation::Frames);
        }
        let mask = rest[extended..].first_chunk::<4>().copied();
        Ok(Some(Head { first, opcode, mask, length, size }))
    }

    /// Begins a data frame.
    fn begin(&mut self, head: &Head, bytes: BytesMut) -> Result<(), Violation> {
        let message = self.message.get_or_insert_with(|| Message {
            frames: BytesMut::new(),
            payload: Vec::new(),
            is_text: head.opcode == TEXT,
            compressed: head.first & RSV1 != 0,
            valid: 0,
            memory: self.memory.part(),
        });
        message.frames.unsplit(bytes);
        let length = usize::try_from(head.length).unwrap_or(usize::MAX);
        // Many small frames can make a message too long, even if its payload is within the limit.
        if message.payload.len().saturating_add(length) > bounds::MESSAGE_BYTES
            || message.frames.len().saturating_add(length) > 2 * bounds::MESSAGE_BYTES
        {
            return Err(Violation::TooBig);
        }
        let is_last = head.first & FIN != 0;
        self.frame = Some(DataFrame { remaining: head.length, mask: head.mask, at: 0, is_last });
        Ok(())
    }

    /// Takes payload of the data frame in progress from `input`. Returns the message if the message is complete.
    fn data(&mut self, input: &mut BytesMut) -> Result<Option<Part>, Violation> {
        let (Some(frame), Some(message)) = (&mut self.frame, &mut self.message) else { return Ok(None) };
        let taken = usize::try_from(frame.remaining).unwrap_or(usize::MAX).min(input.len());
        let bytes = input.split_to(taken);
        let mut payload = bytes.to_vec();
        message.frames.unsplit(bytes);
        unmask(&mut payload, frame.mask, frame.at);
        frame.at += taken;
        frame.remaining -= taken as u64;
        let inflate = self.inflate.as_mut().filter(|_| message.compressed);
        match inflate {
            Some(inflate) => {
                message.inflate(inflate, &payload)?;
                if frame.remaining == 0 && frame.is_last {
                    message.inflate(inflate, &DEFLATE_TAIL)?;
                }
            }
            None if message.payload.is_empty() => message.payload = payload,
            None => message.payload.extend_from_slice(&payload),
        }
        message.memory.grow((message.frames.len() + message.payload.len()) as u64)?;
        let is_complete = frame.remaining == 0 && frame.is_last;
        message.check_text(is_complete)?;
        if frame.remaining == 0 {
            self.frame = None;
        }
        if !is_complete {
            return Ok(None);
        }
        Ok(self.message.take().map(|Message { frames, payload, memory, .. }| Part {
            frames: frames.freeze(),
            is_message: true,
            payload,
            is_close: false,
            _memory: memory,
        }))
    }
}

impl Message {
    fn inflate(&mut self, inflate: &mut Decompress, mut input: &[u8]) -> Result<(), Violation> {
        let mut out = [0; INFLATED_CHUNK];
        loop {
            let before = (inflate.total_in(), inflate.total_out());
            let status =
                inflate.decompress(input, &mut out, FlushDecompress::Sync).map_err(|_| Violation::Payload)?;
            let read = usize::try_from(inflate.total_in() - before.0).unwrap_or(0);
            let written = usize::try_from(inflate.total_out() - before.1).unwrap_or(0);
            input.advance(read);
            self.payload.extend_from_slice(&out[..written]);
            self.memory.grow((self.frames.len() + self.payload.len()) as u64)?;
            if self.payload.len() > bounds::MESSAGE_BYTES {
                return Err(Violation::TooBig);
            }
            match status {
                // A final block ends the stream. The next block begins without the preceding text (RFC 7692, 7.2.3.4).
                Status::StreamEnd => inflate.reset(false),
                _ if input.is_empty() && written < out.len() => return Ok(()),
                _ if read == 0 && written == 0 => return Err(Violation::Payload),
                _ => {}
            }
        }
    }

    /// Checks that the new text is UTF-8. Only incomplete text may end within a character.
    fn check_text(&mut self, is_complete: bool) -> Result<(), Violation> {
        if !self.is_text {
            return Ok(());
        }
        match std::str::from_utf8(&self.payload[self.valid..]) {
            Ok(_) => self.valid = self.payload.len(),
            Err(error) if error.error_len().is_some() || is_complete => return Err(Violation::Payload),
            Err(error) => self.valid += error.valid_up_to(),
        }
        Ok(())
    }
}

fn unmask(payload: &mut [u8], mask: Option<[u8; 4]>, at: usize) {
    let Some(mut mask) = mask else { return };
    mask.rotate_left(at % 4);
    // The chunks are long, so that the compiler generates vector instructions.
    let pattern: [u8; 32] = std::array::from_fn(|at| mask[at % 4]);
    for chunk in payload.chunks_mut(32) {
        for (byte, mask) in chunk.iter_mut().zip(pattern) {
            *byte ^= mask;
        }
    }
}

/// Returns a close frame. `masked` is true for a frame to a server.
pub(crate) fn close_frame(code: u16, reason: &str, masked: bool) -> Vec<u8> {
    let mut payload = code.to_be_bytes().to_vec();
    let end = (0..=reason.len().min(MAX_CONTROL - 2)).rev().find(|end| reason.is_char_boundary(*end));
    payload.extend_from_slice(&reason.as_bytes()[..end.unwrap_or(0)]);
    let length = u8::try_from(payload.len()).unwrap_or(0);
    if !masked {
        return [&[FIN | CLOSE, length][..], &payload].concat();
    }
    let mask: [u8; 4] = rand::random();
    unmask(&mut payload, Some(mask), 0);
    [&[FIN | CLOSE, MASKED | length][..], &mask, &payload].concat()
}

/// Returns the frame of a text message from a server.
pub(crate) fn text_message(text: &str) -> Vec<u8> {
    let length = text.len();
    let head = match (u8::try_from(length), u16::try_from(length)) {
        (Ok(short @ 0..126), _) => vec![FIN | TEXT, short],
        (_, Ok(length)) => [&[FIN | TEXT, 126][..], &length.to_be_bytes()].concat(),
        _ => [&[FIN | TEXT, 127][..], &(length as u64).to_be_bytes()].concat(),
    };
    [&head, text.as_bytes()].concat()
}

/// Removes from a client's offer all extensions that the proxy cannot read. Returns whether permessage-deflate remains.
pub(crate) fn limit_extensions(headers: &mut HeaderMap) -> bool {
    let offers = extensions(headers);
    let deflate: Vec<&str> = offers.iter().filter(|offer| is_deflate(offer)).map(String::as_str).collect();
    let offered = HeaderValue::try_from(deflate.join(", ")).ok().filter(|_| !deflate.is_empty());
    headers.remove(SEC_WEBSOCKET_EXTENSIONS);
    match offered {
        Some(offered) => headers.insert(SEC_WEBSOCKET_EXTENSIONS, offered).is_none(),
        None => false,
    }
}

/// Reads the server's choice. Returns whether messages may be compressed, or `None` if the server chose an extension
/// that was not offered.
pub(crate) fn chosen_extensions(headers: &HeaderMap, offered: bool) -> Option<bool> {
    match extensions(headers).as_slice() {
        [] => Some(false),
        [one] if offered && is_deflate(one) => Some(true),
        _ => None,
    }
}

fn extensions(headers: &HeaderMap) -> Vec<String> {
    let values = headers.get_all(SEC_WEBSOCKET_EXTENSIONS).iter();
    // An unreadable value counts as an unknown extension.
    let values = values.map(|value| value.to_str().unwrap_or("?"));
    let items = values.flat_map(|value| value.split(',')).map(str::trim);
    items.filter(|item| !item.is_empty()).map(str::to_owned).collect()
}

/// Whether an item of the header is permessage-deflate with known parameters, each at most once.
fn is_deflate(item: &str) -> bool {
    let mut parts = item.split(';').map(str::trim);
    if !parts.next().is_some_and(|name| name.eq_ignore_ascii_case("permessage-deflate")) {
        return false;
    }
    let mut seen = HashSet::new();
    parts.all(|parameter| {
        let (name, value) =
            parameter.split_once('=').map_or((parameter, None), |(name, value)| (name, Some(value)));
        let bits = value.map(|value| value.trim().trim_matches('"').parse::<u8>());
        let is_known = match name.trim() {
            "server_no_context_takeover" | "client_no_context_takeover" => bits.is_none(),
            "server_max_window_bits" => matches!(bits, Some(Ok(8..=15))),
            "client_max_window_bits" => matches!(bits, None | Some(Ok(8..=15))),
            _ => false,
        };
        is_known && seen.insert(name.trim())
    })
}

#[cfg(test)]
mod tests {
    use flate2::{Compress, Compression, FlushCompress};
    use proptest::prelude::*;

    use super::*;
    use crate::inspect::decoded_memory::MAX_DECODED;

    /// Returns a frame from a server.
    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![first];
        match payload.len() {
            length @ 0..=125 => frame.push(u8::try_from(length).expect("short")),
            length @ 126..=0xffff => {
                frame.push(126);
                frame.extend(u16::try_from(length).expect("short").to_be_bytes());
            }
            length => {
                frame.push(127);
                frame.extend((length as u64).to_be_bytes());
            }
        }
        frame.extend_from_slice(payload);
        frame
    }

    fn read(deflate: bool, bytes: &[u8], chunk: usize) -> (Vec<Vec<u8>>, Option<Violation>) {
        let mut reader = FrameReader::new(false, deflate, &DecodedMemory::default());
        let (mut input, mut parts) = (BytesMut::new(), Vec::new());
        for chunk in bytes.chunks(chunk) {
            input.extend_from_slice(chunk);
            loop {
                match reader.next(&mut input) {
                    Ok(Some(part)) => parts.push(part.payload),
                    Ok(None) => break,
                    Err(violation) => return (parts, Some(violation)),
                }
            }
        }
        (parts, None)
    }

    fn compressed(compress: &mut Compress, text: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(text.len() + 1024);
        compress.compress_vec(text, &mut out, FlushCompress::Sync).expect("compress");
        assert!(out.ends_with(&DEFLATE_TAIL));
        out.truncate(out.len() - 4);
        out
    }

    #[test]
    fn finds_violations() {
        use Violation::{Frames, Payload, TooBig};
        let long = frame(FIN | PING, &[0; 126]);
        let huge = [&[FIN | BINARY, 127][..], &(bounds::MESSAGE_BYTES as u64 + 1).to_be_bytes()].concat();
        for (bytes, violation) in [
            (frame(FIN | TEXT | RSV1, b"a"), Frames),
            (frame(FIN | TEXT | 0x20, b"a"), Frames),
            (frame(FIN | 3, b""), Frames),
            (frame(FIN | 11, b""), Frames),
            (frame(PING, b""), Frames),
            (long, Frames),
            (frame(FIN, b"a"), Frames),
            ([frame(TEXT, b"a"), frame(FIN | TEXT, b"b")].concat(), Frames),
            ([&[FIN | TEXT, MASKED | 1][..], &[0; 5]].concat(), Frames),
            ([&[FIN | TEXT, 127, 0x80][..], &[0; 7]].concat(), Frames),
            (huge, TooBig),
            (frame(FIN | TEXT, b"\xce\xba\xed\xa0\x80"), Payload),
            (frame(FIN | TEXT, b"a\xf4\x8f"), Payload),
            (frame(TEXT, b"\xf4\x90"), Payload),
        ] {
            for chunk in [1, 3, 1000] {
                assert_eq!(read(false, &bytes, chunk).1, Some(violation), "{bytes:?}");
            }
        }
        assert_eq!(read(true, &frame(FIN | TEXT | RSV1, b"\xff\xff"), 9).1, Some(Payload));
        assert_eq!(read(false, &frame(FIN | BINARY, b"\xff"), 9), (vec![vec![0xff]], None));
    }

    #[test]
    fn incomplete_messages_share_one_limit() {
        let memory = DecodedMemory::default();
        let mut compress = Compress::new(Compression::fast(), false);
        let beginning = frame(BINARY | RSV1, &compressed(&mut compress, &vec![0; bounds::MESSAGE_BYTES]));
        let incomplete = || {
            let mut reader = FrameReader::new(false, true, &memory);
            let read = reader.next(&mut BytesMut::from(&beginning[..])).map(|part| part.is_none());
            (reader, read)
        };
        let fitting =
            usize::try_from(MAX_DECODED).expect("small") / (bounds::MESSAGE_BYTES + beginning.len());
        let open: Vec<_> = (0..fitting).map(|_| incomplete()).collect();
        assert!(open.iter().all(|(_, read)| *read == Ok(true)));
        assert_eq!(incomplete().1, Err(Violation::MemoryFull));
        drop(open);
        assert_eq!(incomplete().1, Ok(true), "the memory is free");
    }

    #[test]
    fn bounds_decompressed_and_fragmented_messages() {
        let mut compress = Compress::new(Compression::fast(), false);
        let bomb = compressed(&mut compress, &vec![0; bounds::MESSAGE_BYTES + 1]);
        assert!(bomb.len() < bounds::MESSAGE_BYTES / 100);
        assert_eq!(read(true, &frame(FIN | BINARY | RSV1, &bomb), 1 << 16).1, Some(Violation::TooBig));
        let empty = frame(BINARY, b"");
        let fragments = [empty, frame(0, b"").repeat(bounds::MESSAGE_BYTES + 1)].concat();
        assert_eq!(read(false, &fragments, 1 << 16).1, Some(Violation::TooBig));
    }

    #[test]
    fn decompresses_with_and_without_context() {
        let mut compress = Compress::new(Compression::default(), false);
        let texts = ["hello hello hello", "hello hello hello", ""];
        let frames: Vec<Vec<u8>> = texts
            .iter()
            .map(|text| frame(FIN | TEXT | RSV1, &compressed(&mut compress, text.as_bytes())))
            .collect();
        let plain = frame(FIN | TEXT, b"plain");
        let bytes = [&frames[0][..], &plain, &frames[1], &frames[2]].concat();
        let expected: Vec<Vec<u8>> = ["hello hello hello", "plain", "hello hello hello", ""]
            .map(|text| text.as_bytes().to_vec())
            .to_vec();
        for chunk in [1, 2, 1000] {
            assert_eq!(read(true, &bytes, chunk), (expected.clone(), None));
        }
        // RFC 7692, 7.2.3.4: a compressed message may end with a final block.
        let last = frame(FIN | TEXT | RSV1, &[0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0x00]);
        assert_eq!(read(true, &last.repeat(2), 3), (vec![b"Hello".to_vec(); 2], None));
    }

    #[test]
    fn accepts_only_known_extensions() {
        let headers =
            |value: &str| HeaderMap::from_iter([(SEC_WEBSOCKET_EXTENSIONS, value.parse().expect("value"))]);
        for (offer, left) in [
            (
                "permessage-deflate; client_max_window_bits",
                Some("permessage-deflate; client_max_window_bits"),
            ),
            ("x-webkit-deflate-frame, permessage-deflate", Some("permessage-deflate")),
            ("permessage-deflate; server_max_window_bits=7", None),
            (
                "permessage-deflate; x=1, permessage-deflate; server_max_window_bits=\"10\"",
                Some("permessage-deflate; server_max_window_bits=\"10\""),
            ),
            ("permessage-deflate; server_no_context_takeover; server_no_context_takeover", None),
            ("permessage-bzip2", None),
        ] {
            let mut map = headers(offer);
            assert_eq!(limit_extensions(&mut map), left.is_some(), "{offer}");
            let value = map.get(SEC_WEBSOCKET_EXTENSIONS).map(|value| value.to_str().expect("text"));
            assert_eq!(value, left, "{offer}");
        }
        assert_eq!(chosen_extensions(&HeaderMap::new(), true), Some(false));
        for (choice, offered, deflate) in [
            ("permessage-deflate", true, Some(true)),
            ("permessage-deflate; server_max_window_bits=9", true, Some(true)),
            ("permessage-deflate", false, None),
            ("permessage-deflate, permessage-deflate", true, None),
            ("x", true, None),
        ] {
            assert_eq!(chosen_extensions(&headers(choice), offered), deflate, "{choice}");
        }
    }

    #[test]
    fn close_frames_keep_their_code_and_fit() {
        let close = close_frame(1008, &"ä".repeat(100), false);
        assert_eq!((close.len(), &close[..4]), (2 + 2 + 122, &[FIN | CLOSE, 124, 0x03, 0xf0][..]));
        let mut input = BytesMut::from(&close_frame(1008, "secret-found", true)[..]);
        let part = FrameReader::new(true, false, &DecodedMemory::default())
            .next(&mut input)
            .expect("valid")
            .expect("whole");
        assert_eq!((part.payload.as_slice(), part.is_close), (&b"secret-found"[..], true));
    }

    proptest! {
            #[test]
            fn parts_do_not_depend_on_chunks(
                bytes in proptest::collection::vec(prop_oneof![Just(0x81_u8), Just(0x01), Just(0x80), Just(0xc1), Just(0x89), 0_u8..5, any::<u8>()], 0..60),
                deflate: bool,
                chunk in 1_usize..7,
            ) {
    let (cut, whole) = (read(deflate, &bytes, chunk), read(deflate, &bytes, bytes.len().max(1)));
                // flate2 detects some errors only in large chunks.
                if !deflate || (cut.1.is_none() && whole.1.is_none()) {
                    prop_assert_eq!(cut, whole);
                }
            }

            #[test]
            fn forwarded_frames_are_the_received_bytes(
                payloads in proptest::collection::vec((any::<bool>(), proptest::collection::vec(any::<u8>(), 0..300)), 1..6),
            ) {
                let mut bytes = Vec::new();
                let mut is_first = true;
                for (is_last, payload) in &payloads {
                    bytes.extend(frame(if *is_last { FIN } else { 0 } | if is_first { BINARY } else { 0 }, payload));
                    is_first = *is_last;
                }
                let mut reader = FrameReader::new(false, false, &DecodedMemory::default());
                let (mut input, mut forwarded) = (BytesMut::from(&bytes[..]), Vec::new());
                while let Some(part) = reader.next(&mut input).expect("valid frames") {
                    forwarded.extend_from_slice(&part.frames);
                }
                prop_assert!(bytes.starts_with(&forwarded));
                if payloads.last().is_some_and(|(is_last, _)| *is_last) {
                    prop_assert_eq!(forwarded.len(), bytes.len());
                }
            }
        }
}
