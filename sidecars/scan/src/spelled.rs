//! Known secrets in what a text encodes.
//!
//! Wherever a text may hold something encoded (`dense`), it is read in every encoding that its characters
//! allow, from every digit on, without whatever stands between the digits: so a piece is found that lost its
//! first characters, is broken over lines, or was put together from strings. What was read is read once more,
//! inflated if it is compressed. An encoding is read only where enough of its digits stand in a row, so the work
//! per byte of text is bounded.

use std::io::Read;
use std::ops::Range;

use crate::dense;
use crate::digits::{Bits, Made, base85, dump, numbers, unquoted, uuencoded};
use crate::known::KnownSecrets;
use crate::view::View;

/// So many encodings are undone within another.
const DEPTH: usize = 1;
/// Compressed texts that are looked for in one that was decoded.
const MOST_PACKED: usize = 64;
/// Bytes that one compressed text is inflated to.
const LONGEST_INFLATED: u64 = 64 << 10;
/// Bytes that all compressed texts of one window are inflated to.
const MOST_INFLATED: u64 = 1 << 20;

/// Calls `found` with every secret that `text` holds encoded, and the place of its digits.
pub(crate) fn find(known: &KnownSecrets, text: &[u8], found: &mut dyn FnMut(usize, Range<usize>)) {
    let mut reader = Reader { known, inflated: 0 };
    reader.regions(text, DEPTH, found);
    // Signs between the characters are percent-encoded in a path or a form.
    if has_percent(text)
        && let Some(view) = View::unescaped_all(text)
    {
        reader.text(&view.bytes, &mut |owner, range| found(owner, view.source_range(&range)));
    }
}

fn has_percent(text: &[u8]) -> bool {
    memchr::memchr_iter(b'%', text)
        .any(|at| text.get(at + 1..at + 3).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)))
}

/// Whether somewhere a third of sixteen bytes is zero. Of any twelve characters of two bytes, six stand in one such
/// row; a picture has one in a hundred million.
fn is_wide(bytes: &[u8]) -> bool {
    bytes.chunks(16).any(|row| row.iter().map(|byte| u8::from(*byte == 0)).sum::<u8>() >= 5)
}

struct Reader<'k> {
    known: &'k KnownSecrets,
    inflated: u64,
}

type Found<'f> = &'f mut dyn FnMut(usize, Range<usize>);

impl Reader<'_> {
    fn regions(&mut self, text: &[u8], depth: usize, found: Found<'_>) {
        for region in dense::regions(text) {
            let start = region.start;
            let piece = &text[region];
            let mut here = |owner, range: Range<usize>| found(owner, start + range.start..start + range.end);
            self.read(piece, depth, &mut here);
            if let Some(made) = unquoted(piece) {
                self.text(&made.bytes, &mut |owner, range| here(owner, made.source(&range)));
            }
            if let Some(view) = View::unescaped_all(piece) {
                let mut there = |owner, range: Range<usize>| here(owner, view.source_range(&range));
                self.text(&view.bytes, &mut there);
                self.read(&view.bytes, depth, &mut there);
            }
        }
    }

    /// Reads `text` in every encoding, and once more without what dumps print around bytes.
    fn read(&mut self, text: &[u8], depth: usize, found: Found<'_>) {
        self.encodings(text, depth, found);
        if let Some(dump) = dump(text) {
            let mut here = |owner, range: Range<usize>| found(owner, dump.source(&range));
            self.known.find_all(&dump.bytes, &mut here);
            self.encodings(&dump.bytes, depth, &mut here);
        }
    }

    fn encodings(&mut self, text: &[u8], depth: usize, found: Found<'_>) {
        for bits in Bits::all(text) {
            for skip in 0..bits.starts() {
                let bytes = bits.bytes(skip);
                self.decoded(&bytes, depth, &mut |owner, range| found(owner, bits.source(skip, &range)));
            }
        }
        for made in numbers(text).into_iter().chain(base85(text)).chain(uuencoded(text)) {
            self.made(&made, depth, found);
        }
    }

    fn made(&mut self, made: &Made, depth: usize, found: Found<'_>) {
        self.decoded(&made.bytes, depth, &mut |owner, range| found(owner, made.source(&range)));
    }

    /// Looks at what was decoded, and for what is encoded in it.
    fn decoded(&mut self, bytes: &[u8], depth: usize, found: Found<'_>) {
        self.text(bytes, found);
        if let Some(depth) = depth.checked_sub(1) {
            self.regions(bytes, depth, found);
            self.packed(bytes, depth, found);
        }
    }

    /// Looks at a text as it is, and without the zeros of UTF-16 and UTF-32.
    fn text(&self, bytes: &[u8], found: Found<'_>) {
        self.known.find_all(bytes, found);
        if is_wide(bytes) {
            let made = Made::without_zeros(bytes);
            self.known.find_all(&made.bytes, &mut |owner, range| found(owner, made.source(&range)));
        }
    }

    /// What is compressed by gzip (RFC 1952) or zlib (RFC 1950) from any place of `bytes` on.
    fn packed(&mut self, bytes: &[u8], depth: usize, found: Found<'_>) {
        let begins =
            |at: &usize| matches!(bytes[*at..], [0x1f, 0x8b, 8, ..] | [0x78, 0x01 | 0x5e | 0x9c | 0xda, ..]);
        for at in memchr::memchr2_iter(0x1f, 0x78, bytes).filter(begins).take(MOST_PACKED) {
            if self.inflated >= MOST_INFLATED {
                return;
            }
            let packed = &bytes[at..];
            let mut text = Vec::new();
            // What ends too early or is broken says something up to there.
            let _ = if packed[0] == 0x1f {
                flate2::bufread::GzDecoder::new(packed).take(LONGEST_INFLATED).read_to_end(&mut text)
            } else {
                flate2::bufread::ZlibDecoder::new(packed).take(LONGEST_INFLATED).read_to_end(&mut text)
            };
            self.inflated += text.len() as u64;
            if !text.is_empty() {
                let mut all = |owner, _: Range<usize>| found(owner, at..bytes.len());
                self.known.find_all(&text, &mut all);
                self.regions(&text, depth, &mut all);
            }
        }
    }
}
