//! Decodes content codings as a stream, within bounds.
//!
//! Each decoder has a fixed maximum of memory, which does not depend on its input. All large decoders together have
//! another maximum ([`DecodedMemory`]). The length of the decoded text is limited: text that exceeds the permitted
//! ratio to the input is rejected as a decompression bomb.

use bottle_scan::archive_finder::{self, GZIP};
use brotli_decompressor::{BrotliDecompressStream, BrotliResult, BrotliState, StandardAlloc};
use flate2::{Crc, Decompress, FlushDecompress, Status};
use ruzstd::decoding::FrameDecoder;

use super::aws_chunked::AwsChunked;
use super::decoded_memory::{DecodedMemory, DecodedPart};
use super::unreadable::Unreadable;

/// Size of a decoder's output buffer, in bytes.
const OUTPUT_CHUNK: usize = 32 << 10;
/// Decoded text up to this size, in bytes, is accepted at any ratio to its input.
pub(super) const ALWAYS_ALLOWED: u64 = 16 << 20;
/// Decoded text longer than [`ALWAYS_ALLOWED`] may be at most this many times as long as the input. Otherwise the text
/// is rejected as a decompression bomb. Logs and generated code reach a ratio of 40. A bomb reaches 1,000.
pub(super) const MAX_RATIO: u64 = 100;
/// The longest accepted header of a gzip member, in bytes, including the file name and comment.
const MAX_GZIP_HEADER: usize = 64 << 10;
/// The largest accepted zstd window, in bytes. RFC 8878 requires every decoder to support windows of this size.
const ZSTD_WINDOW: u64 = 8 << 20;
/// The largest window of brotli, in bytes (RFC 7932, 9.1).
const BROTLI_WINDOW: u64 = 16 << 20;
/// The longest decoded text of one zstd block, in bytes (RFC 8878, 3.1.1.2.4).
const ZSTD_BLOCK: u64 = 128 << 10;

/// A content coding that the proxy decodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coding {
    Gzip,
    /// zlib, or the bare deflate stream that some servers send as `deflate`.
    Deflate,
    Brotli,
    Zstd,
    /// The framing of signed uploads to S3, which wraps all other codings. See [`AwsChunked`].
    AwsChunked,
}

impl Coding {
    /// Returns the coding with this name in `Content-Encoding`.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Some(match name.to_ascii_lowercase().as_str() {
            "gzip" | "x-gzip" => Self::Gzip,
            "deflate" => Self::Deflate,
            "br" => Self::Brotli,
            "zstd" => Self::Zstd,
            _ => return None,
        })
    }

    /// Whether the coding's decoder outputs text as soon as the input contains it.
    pub(crate) fn streams(self) -> bool {
        self != Self::Zstd
    }
}

/// A streaming decoder for one content coding.
pub(crate) struct Decoder {
    inner: Inner,
    input_bytes: u64,
    output_bytes: u64,
    out: Vec<u8>,
    /// The decoder's share of the memory for decoded text.
    memory: DecodedPart,
}

enum Inner {
    Gzip(Gzip),
    Deflate { first: Vec<u8>, stream: Option<Box<Decompress>>, ended: bool },
    Brotli { state: Box<Brotli>, ended: bool },
    Zstd(Box<Zstd>),
    AwsChunked(Box<AwsChunked>),
}

impl Inner {
    /// The maximum size of the text that the decoder keeps, in bytes; 0 for decoders that keep less than 64 KiB.
    fn window(&self) -> u64 {
        match self {
            Self::Gzip(_) | Self::Deflate { .. } | Self::AwsChunked(_) => 0,
            Self::Brotli { .. } => BROTLI_WINDOW,
            Self::Zstd(_) => ZSTD_WINDOW + ZSTD_BLOCK,
        }
    }
}

type Brotli = BrotliState<StandardAlloc, StandardAlloc, StandardAlloc>;

/// A callback that receives decoded text.
pub(crate) type Sink<'s> = &'s mut dyn FnMut(&[u8]) -> Result<(), Unreadable>;

impl Decoder {
    /// Creates a decoder whose window counts towards `memory`.
    pub(crate) fn new(coding: Coding, memory: &DecodedMemory) -> Self {
        let alloc = StandardAlloc::default;
        let inner = match coding {
            Coding::Gzip => Inner::Gzip(Gzip::default()),
            Coding::Deflate => Inner::Deflate { first: Vec::new(), stream: None, ended: false },
            Coding::Brotli => Inner::Brotli {
                state: Box::new(BrotliState::new_strict(alloc(), alloc(), alloc())),
                ended: false,
            },
            Coding::Zstd => Inner::Zstd(Box::default()),
            Coding::AwsChunked => Inner::AwsChunked(Box::default()),
        };
        Self::of(inner, memory)
    }

    fn of(inner: Inner, memory: &DecodedMemory) -> Self {
        let (out, memory) = (vec![0; OUTPUT_CHUNK], memory.part());
        Self { inner, input_bytes: 0, output_bytes: 0, out, memory }
    }

    /// Creates a decoder for a bare deflate stream. Archives contain such streams.
    pub(crate) fn bare_deflate() -> Self {
        let stream = Some(Box::new(Decompress::new(false)));
        let inner = Inner::Deflate { first: Vec::new(), stream, ended: false };
        Self::of(inner, &DecodedMemory::default())
    }

    /// Decodes the next chunk.
    ///
    /// # Errors
    /// [`Unreadable`] if the input is not in this coding, or the text exceeds the permitted ratio.
    pub(crate) fn feed(&mut self, input: &[u8], sink: Sink<'_>) -> Result<(), Unreadable> {
        self.input_bytes += input.len() as u64;
        let limit = ALWAYS_ALLOWED.max(self.input_bytes.saturating_mul(MAX_RATIO));
        let window = self.inner.window();
        let (output_bytes, memory) = (&mut self.output_bytes, &mut self.memory);
        let mut counted = |text: &[u8]| {
            *output_bytes += text.len() as u64;
            if *output_bytes > limit {
                return Err(Unreadable::Bomb);
            }
            memory.grow(window.min(*output_bytes))?;
            sink(text)
        };
        match &mut self.inner {
            Inner::Gzip(gzip) => gzip.feed(input, &mut self.out, &mut counted),
            Inner::Deflate { ended: true, .. } | Inner::Brotli { ended: true, .. } => {
                if input.is_empty() {
                    Ok(())
                } else {
                    Err(Unreadable::Broken)
                }
            }
            Inner::Deflate { first, stream, ended } => {
                let mut rest = input;
                let buffer;
                if stream.is_none() {
                    first.extend_from_slice(input);
                    let Some(head) = first.first_chunk::<2>() else { return Ok(()) };
                    let zlib = head[0] & 0x0f == 8 && u16::from_be_bytes(*head).is_multiple_of(31);
                    *stream = Some(Box::new(Decompress::new(zlib)));
                    buffer = std::mem::take(first);
                    rest = &buffer;
                }
                let Some(stream) = stream else { return Ok(()) };
                let (used, done) = inflate(stream, rest, &mut self.out, &mut counted)?;
                *ended = done;
                if done && used < rest.len() { Err(Unreadable::Broken) } else { Ok(()) }
            }
            Inner::Brotli { state, ended } => {
                *ended = brotli(state, input, &mut self.out, &mut counted)?;
                Ok(())
            }
            Inner::Zstd(zstd) => zstd.feed(input, &mut self.out, &mut counted),
            Inner::AwsChunked(chunked) => chunked.feed(input, &mut counted),
        }
    }

    /// Like [`feed`](Self::feed), but stops at the end of a bare deflate stream, because other data may follow the
    /// stream. Returns the number of bytes consumed, and whether the stream has ended. Decoders of other codings
    /// consume all bytes.
    ///
    /// # Errors
    /// The errors of [`feed`](Self::feed).
    pub(crate) fn feed_until_end(
        &mut self,
        input: &[u8],
        sink: Sink<'_>,
    ) -> Result<(usize, bool), Unreadable> {
        let Inner::Deflate { stream: Some(stream), ended: false, .. } = &mut self.inner else {
            return self.feed(input, sink).map(|()| (input.len(), false));
        };
        self.input_bytes += input.len() as u64;
        let limit = ALWAYS_ALLOWED.max(self.input_bytes.saturating_mul(MAX_RATIO));
        let output_bytes = &mut self.output_bytes;
        inflate(stream, input, &mut self.out, &mut |text| {
            *output_bytes += text.len() as u64;
            if *output_bytes > limit { Err(Unreadable::Bomb) } else { sink(text) }
        })
    }

    /// The maximum length of text, in bytes, that the decoder may have received but not yet output. For an incomplete
    /// zstd frame, this is a window and a block. For other codings, it is 0.
    pub(crate) fn withheld(&self) -> u64 {
        match &self.inner {
            Inner::Zstd(zstd) if !zstd.is_whole() => ZSTD_WINDOW + ZSTD_BLOCK,
            _ => 0,
        }
    }

    /// Whether the input received so far is a complete stream.
    pub(crate) fn is_whole(&self) -> bool {
        match &self.inner {
            Inner::Gzip(gzip) => gzip.is_whole(),
            Inner::Deflate { first, stream, ended } => *ended || (stream.is_none() && first.is_empty()),
            Inner::Brotli { ended, .. } => *ended || self.input_bytes == 0,
            Inner::Zstd(zstd) => zstd.is_whole(),
            Inner::AwsChunked(chunked) => chunked.is_whole(),
        }
    }
}

/// Decompresses `input`. Returns the number of bytes consumed, and whether the stream has ended.
fn inflate(
    stream: &mut Decompress,
    input: &[u8],
    out: &mut [u8],
    sink: Sink<'_>,
) -> Result<(usize, bool), Unreadable> {
    let mut used = 0;
    loop {
        let (before_in, before_out) = (stream.total_in(), stream.total_out());
        let status =
            stream.decompress(&input[used..], out, FlushDecompress::None).map_err(|_| Unreadable::Broken)?;
        let read = usize::try_from(stream.total_in() - before_in).unwrap_or(0);
        let written = usize::try_from(stream.total_out() - before_out).unwrap_or(0);
        used += read;
        if written > 0 {
            sink(&out[..written])?;
        }
        if status == Status::StreamEnd {
            return Ok((used, true));
        }
        // When the library reaches the end of its own buffer, it returns early, although it has not yet output all text
        // of the input that it has read. So the input is used up only after a call that neither reads nor writes.
        if read == 0 && written == 0 {
            return Ok((used, false));
        }
    }
}

fn brotli(state: &mut Brotli, input: &[u8], out: &mut [u8], sink: Sink<'_>) -> Result<bool, Unreadable> {
    let (mut left, mut at, mut total) = (input.len(), 0, 0);
    loop {
        let (mut room, mut written) = (out.len(), 0);
        let result = BrotliDecompressStream(
            &mut left,
            &mut at,
            input,
            &mut room,
            &mut written,
            out,
            &mut total,
            state,
        );
        if written > 0 {
            sink(&out[..written])?;
        }
        match result {
            BrotliResult::ResultSuccess if left == 0 => return Ok(true),
            BrotliResult::ResultSuccess | BrotliResult::ResultFailure => return Err(Unreadable::Broken),
            // If the output buffer is full, there may be more text, although the library asks for input.
            BrotliResult::NeedsMoreInput if written < out.len() => return Ok(false),
            BrotliResult::NeedsMoreInput | BrotliResult::NeedsMoreOutput => {}
        }
    }
}

/// A decoder of a sequence of gzip members.
#[derive(Default)]
struct Gzip {
    /// The received part of a member's header or trailer.
    buffer: Vec<u8>,
    stream: Option<Box<Decompress>>,
    /// Checksum and length of the member's text. The trailer must contain the same values.
    sum: Crc,
    /// Whether the next eight bytes are the trailer.
    in_trailer: bool,
    members: usize,
}

impl Gzip {
    fn feed(&mut self, mut input: &[u8], out: &mut [u8], sink: Sink<'_>) -> Result<(), Unreadable> {
        while !input.is_empty() {
            if let Some(stream) = &mut self.stream {
                let sum = &mut self.sum;
                let (used, ended) = inflate(stream, input, out, &mut |text| {
                    sum.update(text);
                    sink(text)
                })?;
                input = &input[used..];
                if ended {
                    (self.stream, self.in_trailer) = (None, true);
                    continue;
                }
                return Ok(());
            }
            if self.in_trailer {
                let wanted = 8 - self.buffer.len();
                let (now, later) = input.split_at(input.len().min(wanted));
                self.buffer.extend_from_slice(now);
                input = later;
                if self.buffer.len() == 8 {
                    // The values are verified because corrupt data may decode to different text, depending on the chunk
                    // boundaries.
                    let expected = [self.sum.sum().to_le_bytes(), self.sum.amount().to_le_bytes()].concat();
                    if expected != self.buffer {
                        return Err(Unreadable::Broken);
                    }
                    self.sum.reset();
                    self.buffer.clear();
                    self.in_trailer = false;
                    self.members += 1;
                }
                continue;
            }
            if self.members > 0 && self.buffer.is_empty() && input.iter().all(|byte| *byte == 0) {
                // Zero bytes after the last member are padding, as on tapes.
                return Ok(());
            }
            if self.buffer.is_empty()
                && let Some(head) = gzip_header(input)?
            {
                input = &input[head..];
                self.stream = Some(Box::new(Decompress::new(false)));
                continue;
            }
            let before = self.buffer.len();
            self.buffer.extend_from_slice(&input[..input.len().min(MAX_GZIP_HEADER)]);
            let Some(head) = gzip_header(&self.buffer)? else {
                return if self.buffer.len() >= MAX_GZIP_HEADER { Err(Unreadable::Broken) } else { Ok(()) };
            };
            // The header begins with the `before` bytes that were already in the buffer, which are not part of `input`.
            input = &input[head.saturating_sub(before)..];
            self.buffer.clear();
            self.stream = Some(Box::new(Decompress::new(false)));
        }
        Ok(())
    }

    fn is_whole(&self) -> bool {
        self.stream.is_none() && !self.in_trailer && self.buffer.is_empty()
    }
}

/// Returns the length of a member's header, or `None` if the header is incomplete.
fn gzip_header(text: &[u8]) -> Result<Option<usize>, Unreadable> {
    if !GZIP.starts_with(&text[..text.len().min(GZIP.len())]) {
        return Err(Unreadable::Broken);
    }
    Ok(archive_finder::gzip_header(text))
}

/// Decodes zstd frames. The library decodes all blocks of its input at once, so the decoder passes only one block at a
/// time to the library.
#[derive(Default)]
struct Zstd {
    buffer: Vec<u8>,
    frame: Option<Frame>,
    /// Remaining bytes of a skippable frame.
    skip: u64,
}

struct Frame {
    decoder: FrameDecoder,
    checksum: bool,
}

impl Zstd {
    fn feed(&mut self, input: &[u8], out: &mut [u8], sink: Sink<'_>) -> Result<(), Unreadable> {
        self.buffer.extend_from_slice(input);
        let mut at = 0;
        while let Some(used) = self.step(at, out, sink)? {
            at += used;
        }
        self.buffer.drain(..at);
        Ok(())
    }

    /// Decodes the frame header, block or skippable bytes at `at`. Returns the number of bytes consumed, or `None` if
    /// more input is needed.
    fn step(&mut self, at: usize, out: &mut [u8], sink: Sink<'_>) -> Result<Option<usize>, Unreadable> {
        let text = &self.buffer[at..];
        if text.is_empty() {
            return Ok(None);
        }
        if self.skip > 0 {
            let skipped = text.len().min(usize::try_from(self.skip).unwrap_or(usize::MAX));
            self.skip -= skipped as u64;
            return Ok(Some(skipped));
        }
        let Some(frame) = &mut self.frame else { return self.open(at) };
        let Some([one, two, three]) = text.first_chunk::<3>() else { return Ok(None) };
        let head = u32::from_le_bytes([*one, *two, *three, 0]);
        let (last, kind, size) = (head & 1 == 1, head >> 1 & 3, (head >> 3) as usize);
        let content = if kind == 1 { 1 } else { size };
        let length = 3 + content + if last && frame.checksum { 4 } else { 0 };
        if size as u64 > ZSTD_BLOCK {
            return Err(Unreadable::Broken);
        }
        let Some(block) = text.get(..length) else { return Ok(None) };
        let (_, mut written) = frame.decoder.decode_from_to(block, out).map_err(|_| Unreadable::Broken)?;
        while written > 0 {
            sink(&out[..written])?;
            written = std::io::Read::read(&mut frame.decoder, out).map_err(|_| Unreadable::Broken)?;
        }
        if last {
            self.frame = None;
        }
        Ok(Some(length))
    }

    /// Parses the header of a frame.
    fn open(&mut self, at: usize) -> Result<Option<usize>, Unreadable> {
        let text = &self.buffer[at..];
        let Some(magic) = text.first_chunk::<4>() else { return Ok(None) };
        let magic = u32::from_le_bytes(*magic);
        if magic & 0xffff_fff0 == 0x184d_2a50 {
            let Some(size) = text.get(4..8).and_then(<[u8]>::first_chunk::<4>) else { return Ok(None) };
            self.skip = u64::from(u32::from_le_bytes(*size));
            return Ok(Some(8));
        }
        let Some(flags) = text.get(4) else { return Ok(None) };
        let single = usize::from(flags >> 5 & 1);
        let size = match (flags >> 6, single) {
            (0, single) => single,
            (kind, _) => 1 << kind,
        };
        let length = 5 + (1 - single) + [0, 1, 2, 4][usize::from(flags & 3)] + size;
        let Some(mut head) = text.get(..length) else { return Ok(None) };
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(ZSTD_WINDOW);
        decoder.init(&mut head).map_err(|_| Unreadable::Broken)?;
        self.frame = Some(Frame { decoder, checksum: flags & 4 != 0 });
        Ok(Some(length))
    }

    fn is_whole(&self) -> bool {
        self.frame.is_none() && self.buffer.is_empty() && self.skip == 0
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;
    use crate::inspect::decoded_memory::MAX_DECODED;

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        writer.write_all(text).expect("write");
        writer.finish().expect("finish")
    }

    fn zlib(text: &[u8]) -> Vec<u8> {
        let mut writer = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        writer.write_all(text).expect("write");
        writer.finish().expect("finish")
    }

    fn bare(text: &[u8]) -> Vec<u8> {
        let mut writer = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::default());
        writer.write_all(text).expect("write");
        writer.finish().expect("finish")
    }

    fn zstd(text: &[u8]) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(text, ruzstd::encoding::CompressionLevel::Fastest)
    }

    /// Encodes `text` as brotli without compression, in stored blocks (RFC 7932).
    fn brotli(text: &[u8]) -> Vec<u8> {
        assert!((1..=65536).contains(&text.len()));
        let size = text.len() - 1;
        // The bits of the header: WBITS 16 (one bit 0), ISLAST 0, MNIBBLES 0 (four), MLEN - 1, ISUNCOMPRESSED 1.
        let bits = u32::try_from(size).expect("small") << 4 | 1 << 20;
        let mut written = bits.to_le_bytes()[..3].to_vec();
        written.extend_from_slice(text);
        // The last meta-block: ISLAST 1, ISEMPTY 1.
        written.push(3);
        written
    }

    fn decoded(coding: Coding, chunks: impl Iterator<Item = Vec<u8>>) -> Result<(Vec<u8>, bool), Unreadable> {
        let mut decoder = Decoder::new(coding, &DecodedMemory::default());
        let mut text = Vec::new();
        for chunk in chunks {
            decoder.feed(&chunk, &mut |part| {
                text.extend_from_slice(part);
                Ok(())
            })?;
        }
        Ok((text, decoder.is_whole()))
    }

    #[test]
    fn rejects_gzip_with_a_wrong_checksum_in_any_chunks() {
        let mut coded = [gzip(b"one"), gzip(b"another")].concat();
        let read = |coded: &[u8], size: usize| {
            let mut decoder = Decoder::new(Coding::Gzip, &DecodedMemory::default());
            coded.chunks(size).try_for_each(|chunk| decoder.feed(chunk, &mut |_| Ok(())))
        };
        assert!(read(&coded, 1).is_ok() && read(&coded, 100).is_ok());
        for from_end in [1, 5] {
            let at = coded.len() - from_end;
            coded[at] ^= 1;
            assert!(read(&coded, 1).is_err() && read(&coded, 100).is_err(), "{from_end}");
            coded[at] ^= 1;
        }
    }

    #[test]
    fn decodes_every_coding_in_any_chunks() {
        let text: Vec<u8> = (0..60_000_u32).flat_map(|n| format!("{n} ").into_bytes()).take(60_000).collect();
        for (coding, encoded) in [
            (Coding::Gzip, gzip(&text)),
            (Coding::Gzip, [gzip(&text[..100]), gzip(&text[100..])].concat()),
            (Coding::Gzip, [gzip(&text), vec![0; 512]].concat()),
            (Coding::Deflate, zlib(&text)),
            (Coding::Deflate, bare(&text)),
            (Coding::Zstd, zstd(&text)),
            (Coding::Zstd, [zstd(&text[..7]), zstd(&text[7..])].concat()),
            (Coding::Brotli, brotli(&text)),
        ] {
            for size in [encoded.len(), 1, 7, 1000] {
                let chunks = encoded.chunks(size).map(<[u8]>::to_vec);
                let (written, whole) =
                    decoded(coding, chunks).unwrap_or_else(|_| panic!("{coding:?} {size}"));
                assert!(
                    written == text && whole,
                    "{coding:?} in {size}: {} bytes, whole {whole}",
                    written.len()
                );
            }
            let cut = decoded(coding, std::iter::once(encoded[..encoded.len() / 2].to_vec()));
            assert!(!cut.is_ok_and(|(_, whole)| whole), "{coding:?} is cut");
        }
    }

    #[test]
    fn detects_a_decompression_bomb_early() {
        let zeros = vec![0; 64 << 20];
        for (coding, bomb) in [(Coding::Gzip, gzip(&zeros)), (Coding::Zstd, zstd(&zeros))] {
            let mut decoder = Decoder::new(coding, &DecodedMemory::default());
            let mut written = 0;
            let outcome = decoder.feed(&bomb, &mut |text| {
                assert!(text.len() <= OUTPUT_CHUNK);
                written += text.len();
                Ok(())
            });
            assert_eq!(outcome, Err(Unreadable::Bomb), "{coding:?}");
            assert!(written <= 17 << 20, "{coding:?} {written}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), at in 0_usize..400, with in any::<u8>()) {
            for (coding, mut good) in [
                (Coding::Gzip, gzip(&bytes)),
                (Coding::Deflate, zlib(&bytes)),
                (Coding::Zstd, zstd(&bytes)),
                (Coding::Brotli, brotli(&[&bytes[..], b"x"].concat())),
            ] {
                let _ = decoded(coding, bytes.chunks(9).map(<[u8]>::to_vec));
                let index = at % good.len();
                good[index] = with;
                let _ = decoded(coding, good.chunks(9).map(<[u8]>::to_vec));
            }
        }
    }

    /// A brotli stream of 15 MiB of the letter `a`. The decoder keeps a window of 16 MiB.
    const LONG: [u8; 15] =
        [0xcf, 0xff, 0xff, 0x77, 0, 0x24, 0xc2, 0xe2, 0xb1, 0x40, 0x72, 0xef, 0xdf, 0x0d, 3];

    /// The proxy forwards encoded bytes as soon as it has scanned the decoder's output, so the decoder must not
    /// withhold text.
    #[test]
    fn brotli_outputs_the_text_of_all_input_at_once() {
        let stored = brotli(&vec![b'a'; 60_000]);
        for (coded, length) in [(&LONG[..], 15 << 20), (&stored, 60_000)] {
            let beginning = &coded[..coded.len() - 1];
            for size in [1, 1000, beginning.len()] {
                let mut decoder = Decoder::new(Coding::Brotli, &DecodedMemory::default());
                let mut output_bytes = 0;
                for chunk in beginning.chunks(size) {
                    let fed = decoder.feed(chunk, &mut |text| {
                        output_bytes += text.len();
                        Ok(())
                    });
                    fed.expect("brotli");
                }
                assert_eq!(output_bytes, length, "{size}");
                decoder.feed(&coded[coded.len() - 1..], &mut |_| Err(Unreadable::Broken)).expect("no text");
                assert!(decoder.is_whole());
            }
        }
    }

    #[test]
    fn windows_of_all_decoders_share_one_limit() {
        let memory = DecodedMemory::default();
        let open = || {
            let mut decoder = Decoder::new(Coding::Brotli, &memory);
            decoder.feed(&LONG, &mut |_| Ok(())).map(|()| decoder)
        };
        let fitting = MAX_DECODED / (15 << 20);
        let decoders: Result<Vec<_>, _> = (0..fitting).map(|_| open()).collect();
        assert!(decoders.is_ok());
        assert_eq!(open().err(), Some(Unreadable::MemoryFull));
        drop(decoders);
        assert!(open().is_ok(), "the memory is free");
    }

    #[test]
    fn a_beginning_has_the_same_text_in_any_chunks() {
        let text: Vec<u8> = (0..60_000_u32).flat_map(|n| format!("{n} ").into_bytes()).take(60_000).collect();
        let repeated = vec![b'a'; 300_000];
        for (coding, encoded) in [
            (Coding::Gzip, gzip(&text)),
            (Coding::Gzip, gzip(&repeated)),
            (Coding::Deflate, zlib(&text)),
            (Coding::Deflate, bare(&repeated)),
            (Coding::Brotli, brotli(&text)),
            (Coding::Brotli, LONG.to_vec()),
        ] {
            for length in (1..=8).map(|part| encoded.len() * part / 8) {
                let text_in = |size: usize| {
                    decoded(coding, encoded[..length].chunks(size).map(<[u8]>::to_vec)).map(|(text, _)| text)
                };
                let whole = text_in(length).expect("a beginning");
                for size in [1, 7, 1000] {
                    let part = text_in(size).expect("a beginning");
                    assert!(
                        part == whole,
                        "{coding:?} {length} in {size}: {} of {}",
                        part.len(),
                        whole.len()
                    );
                }
            }
        }
    }
}
