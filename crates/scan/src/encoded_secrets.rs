//! Finds known secrets in encoded text.
//!
//! Regions that may contain encoded data (see `dense_regions`) are decoded in every encoding that their characters
//! allow, at every alignment. The digits of an encoding are the characters that carry data. Other characters between
//! the digits are ignored. The search therefore finds a piece of an encoded secret even if its first characters are
//! missing, if it is split over several lines, or if it is concatenated from string literals. Decoded data is decoded a
//! second time, and is decompressed if it contains compressed streams. Only sequences with enough adjacent digits are
//! decoded, so the cost per byte is bounded.

use std::cell::OnceCell;
use std::io::Read;
use std::ops::Range;

use crate::dense_regions;
use crate::digits::{Bits, words};
use crate::known_secrets::{KnownSecrets, Match};
use crate::text_encodings::{Base85, Decoded, dump, numbers, unquoted, uuencoded};
use crate::view::View;

/// The maximum number of times that decoded data is decoded again.
const MAX_DEPTH: usize = 1;
/// The maximum number of compressed streams in one decoded text that are decompressed. Further streams are not
/// searched.
const MAX_STREAMS: usize = 64;
/// The maximum number of bytes that are decompressed from one stream. The rest of the stream is not searched.
const MAX_STREAM_BYTES: u64 = 64 << 10;
/// The number of decompressed bytes after which no further stream in the same window is decompressed.
const MAX_INFLATED: u64 = 1 << 20;

/// Calls `found` for every secret in encoded parts of `text`. The arguments are the match, which contains the index of
/// the secret, and the range of the secret's encoded form in `text`.
pub(crate) fn find(known: &KnownSecrets, text: &[u8], found: &mut dyn FnMut(Match, Range<usize>)) {
    let mut reader = Reader { known, inflated: 0, buffers: Vec::new() };
    reader.regions(text, MAX_DEPTH, found);
    // In a URL path or a form, the separators between the digits are percent-encoded.
    if has_percent(text)
        && let Some(view) = View::unescaped_all(text)
    {
        reader.text(&view.bytes, &mut |matched, range| found(matched, view.source_range(&range)));
    }
}

fn has_percent(text: &[u8]) -> bool {
    memchr::memchr_iter(b'%', text)
        .any(|at| text.get(at + 1..at + 3).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)))
}

/// Returns whether any aligned row of 16 bytes contains at least five zero bytes, as text in UTF-16 and UTF-32 does. If
/// a text contains twelve consecutive two-byte characters, at least six of them are in the same row. In image data, one
/// row in a hundred million has at least five zeros.
fn is_wide(bytes: &[u8]) -> bool {
    bytes.chunks(16).any(|row| row.iter().map(|byte| u8::from(*byte == 0)).sum::<u8>() >= 5)
}

struct Reader<'k> {
    known: &'k KnownSecrets,
    inflated: u64,
    /// Buffers for decoded bytes, kept for reuse.
    buffers: Vec<Vec<u8>>,
}

type Found<'f> = &'f mut dyn FnMut(Match, Range<usize>);

impl Reader<'_> {
    fn regions(&mut self, text: &[u8], depth: usize, found: Found<'_>) {
        for region in dense_regions::regions(text) {
            let start = region.start;
            let piece = &text[region];
            let mut local =
                |matched, range: Range<usize>| found(matched, start + range.start..start + range.end);
            self.read(piece, depth, &mut local);
            if let Some(decoded) = unquoted(piece) {
                self.text(&decoded.bytes, &mut |matched, range| local(matched, decoded.source(&range)));
            }
            if let Some(view) = View::unescaped_all(piece) {
                let mut there = |matched, range: Range<usize>| local(matched, view.source_range(&range));
                self.text(&view.bytes, &mut there);
                self.read(&view.bytes, depth, &mut there);
            }
        }
    }

    /// Decodes `text` in every encoding. If `text` contains a hex dump, decodes it again without the offset and text
    /// columns.
    fn read(&mut self, text: &[u8], depth: usize, found: Found<'_>) {
        self.encodings(text, depth, found);
        if let Some(dump) = dump(text) {
            let mut local = |matched, range: Range<usize>| found(matched, dump.source(&range));
            self.known.find_all(&dump.bytes, &mut local);
            self.encodings(&dump.bytes, depth, &mut local);
        }
    }

    fn encodings(&mut self, text: &[u8], depth: usize, found: Found<'_>) {
        let words = words(text);
        let mut bytes = self.buffers.pop().unwrap_or_default();
        for bits in Bits::all(text, &words) {
            for skip in 0..bits.alignments() {
                bits.decode(skip, &mut bytes);
                self.search_bytes(&bytes, depth, &mut |matched, range| {
                    found(matched, bits.source(skip, &range))
                });
            }
        }
        for decoded in numbers(&words).into_iter().chain(uuencoded(text)) {
            self.search_bytes(&decoded.bytes, depth, &mut |matched, range| {
                found(matched, decoded.source(&range))
            });
        }
        for rows in Base85::all(text) {
            for skip in Base85::alignments() {
                let decoded = OnceCell::new();
                rows.decode(skip, &mut bytes);
                self.search_bytes(&bytes, depth, &mut |matched, range| {
                    found(matched, decoded.get_or_init(|| rows.decoded(skip)).source(&range))
                });
            }
        }
        self.buffers.push(bytes);
    }

    /// Searches decoded bytes, and the encoded regions within them. A secret whose letters are
    /// separated by other characters is searched only in parts that may be text, because most decoded data is binary.
    fn search_bytes(&mut self, bytes: &[u8], depth: usize, found: Found<'_>) {
        self.known.find(bytes, &mut *found);
        for text in dense_regions::texts(bytes) {
            let start = text.start;
            let mut local =
                |matched, range: Range<usize>| found(matched, start + range.start..start + range.end);
            self.known.find_split(&bytes[text], &mut local);
        }
        self.wide(bytes, found);
        if let Some(depth) = depth.checked_sub(1) {
            self.regions(bytes, depth, found);
            self.compressed(bytes, depth, found);
        }
    }

    /// Searches a text unchanged, and again without the zero bytes of UTF-16 and UTF-32.
    fn text(&self, bytes: &[u8], found: Found<'_>) {
        self.known.find_all(bytes, found);
        self.wide(bytes, found);
    }

    /// Searches text in UTF-16 and UTF-32, without its zero bytes.
    fn wide(&self, bytes: &[u8], found: Found<'_>) {
        if is_wide(bytes) {
            let decoded = Decoded::without_zeros(bytes);
            self.known.find_all(&decoded.bytes, &mut |matched, range| found(matched, decoded.source(&range)));
        }
    }

    /// Decompresses gzip (RFC 1952) and zlib (RFC 1950) streams at any position of `bytes`.
    fn compressed(&mut self, bytes: &[u8], depth: usize, found: Found<'_>) {
        let begins =
            |at: &usize| matches!(bytes[*at..], [0x1f, 0x8b, 8, ..] | [0x78, 0x01 | 0x5e | 0x9c | 0xda, ..]);
        for at in memchr::memchr2_iter(0x1f, 0x78, bytes).filter(begins).take(MAX_STREAMS) {
            if self.inflated >= MAX_INFLATED {
                return;
            }
            let compressed = &bytes[at..];
            let mut text = Vec::new();
            // The readable part of a truncated or damaged stream is still searched.
            let _ = if compressed[0] == 0x1f {
                flate2::bufread::GzDecoder::new(compressed).take(MAX_STREAM_BYTES).read_to_end(&mut text)
            } else {
                flate2::bufread::ZlibDecoder::new(compressed).take(MAX_STREAM_BYTES).read_to_end(&mut text)
            };
            self.inflated += text.len() as u64;
            if !text.is_empty() {
                let mut all = |matched, _: Range<usize>| found(matched, at..bytes.len());
                self.known.find_all(&text, &mut all);
                self.regions(&text, depth, &mut all);
            }
        }
    }
}
