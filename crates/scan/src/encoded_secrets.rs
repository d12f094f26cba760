//! Finds known secrets in encoded text.
//!
//! Regions that may contain encoded data (see `dense_regions`) are decoded in every encoding that their characters
//! allow, at every alignment. The digits of an encoding are the characters that carry data. Other characters between
//! the digits are ignored. The search therefore finds a piece of an encoded secret even if its first characters are
//! missing, if it is split over several lines, or if it is concatenated from string literals. Decoded data is decoded a
//! second time, and is decompressed if it contains compressed streams. Only sequences with enough adjacent digits are
//! decoded, so the cost per byte is bounded.

use std::cell::OnceCell;
use std::ops::Range;

use flate2::{Decompress, FlushDecompress, Status};

use crate::archive_finder::{GZIP, gzip_header};
use crate::base85::{self, Base85};
use crate::dense_regions;
use crate::digits::{Bits, words};
use crate::known_secrets::{KnownSecrets, Match};
use crate::prefilter::{Prefilter, is_wide};
use crate::text_encodings::{Decoded, dump, numbers, unquoted, uuencoded};
use crate::view::View;

/// The maximum number of times that decoded data is decoded again.
const MAX_DEPTH: usize = 1;
/// The maximum number of compressed streams in one decoded text that are decompressed. Further streams are not
/// searched.
const MAX_STREAMS: usize = 64;
/// The maximum number of bytes that are decompressed from one stream. The rest of the stream is not searched.
const MAX_STREAM_BYTES: usize = 64 << 10;
/// The room in bytes for the first part of a decompressed stream. Most streams are damaged and have only a few bytes.
const FIRST_BYTES: usize = 256;
/// The number of decompressed bytes after which no further stream in the same window is decompressed.
const MAX_INFLATED: u64 = 1 << 20;

/// Calls `found` for every secret in encoded parts of `text`. The arguments are the match, which contains the index of
/// the secret, and the range of the secret's encoded form in `text`.
pub(crate) fn find(known: &KnownSecrets, text: &[u8], found: &mut dyn FnMut(Match, Range<usize>)) {
    find_selected(known, text, select, found);
}

/// Reads decoded data with the prefilter. Returns false if the data contains no secret unless it is compressed.
type Select = fn(&KnownSecrets, &[u8], &mut Prefilter) -> bool;

fn select(known: &KnownSecrets, bytes: &[u8], prefilter: &mut Prefilter) -> bool {
    let is_long = bytes.len() >= known.shortest();
    if is_long {
        prefilter.read(bytes, known.least());
    }
    is_long
}

fn find_selected(known: &KnownSecrets, text: &[u8], select: Select, found: Found<'_>) {
    let mut reader =
        Reader { known, select, inflater: None, inflated: 0, buffers: Vec::new(), prefilters: Vec::new() };
    let regions = dense_regions::regions(text, None);
    // The unescaped view of a region that is the whole text is searched with the region.
    let is_whole = matches!(&regions[..], [region] if *region == (0..text.len()));
    reader.regions(text, regions, MAX_DEPTH, found);
    // In a URL path or a form, the separators between the digits are percent-encoded.
    if !is_whole
        && has_percent(text)
        && let Some(view) = View::unescaped_all(text)
    {
        reader.text(&view.bytes, &mut |matched, range| found(matched, view.source_range(&range)));
    }
}

fn has_percent(text: &[u8]) -> bool {
    memchr::memchr_iter(b'%', text)
        .any(|at| text.get(at + 1..at + 3).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)))
}

struct Reader<'k> {
    known: &'k KnownSecrets,
    select: Select,
    /// The state of the decompression, which is large. Most texts contain no compressed stream.
    inflater: Option<Decompress>,
    inflated: u64,
    /// Buffers for decoded bytes, kept for reuse.
    buffers: Vec<Vec<u8>>,
    prefilters: Vec<Prefilter>,
}

type Found<'f> = &'f mut dyn FnMut(Match, Range<usize>);

impl Reader<'_> {
    /// Decodes `regions` of `text`, and searches the result.
    fn regions(&mut self, text: &[u8], regions: Vec<Range<usize>>, depth: usize, found: Found<'_>) {
        for region in regions {
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
        let parts = base85::parts(text);
        for rows in Base85::all(text, &parts) {
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
        let mut prefilter = self.prefilters.pop().unwrap_or_default();
        if (self.select)(self.known, bytes, &mut prefilter) {
            self.search_selected(bytes, &prefilter, depth, found);
        }
        self.prefilters.push(prefilter);
        // Even a short stream may contain a long text.
        if let Some(depth) = depth.checked_sub(1) {
            self.compressed(bytes, depth, found);
        }
    }

    /// Searches the parts of decoded bytes that `prefilter` selects.
    fn search_selected(&mut self, bytes: &[u8], prefilter: &Prefilter, depth: usize, found: Found<'_>) {
        self.known.find_in_data(bytes, prefilter, &mut *found);
        for text in dense_regions::texts(bytes, prefilter) {
            let start = text.start;
            let mut local =
                |matched, range: Range<usize>| found(matched, start + range.start..start + range.end);
            self.known.find_split(&bytes[text], &mut local);
        }
        if prefilter.is_wide {
            self.wide(bytes, found);
        }
        if let Some(depth) = depth.checked_sub(1) {
            self.regions(bytes, dense_regions::regions(bytes, Some(prefilter)), depth, found);
        }
    }

    /// Searches a text unchanged, and again without the zero bytes of UTF-16 and UTF-32.
    fn text(&self, bytes: &[u8], found: Found<'_>) {
        self.known.find_all(bytes, found);
        if is_wide(bytes) {
            self.wide(bytes, found);
        }
    }

    /// Searches text in UTF-16 and UTF-32, without its zero bytes.
    fn wide(&self, bytes: &[u8], found: Found<'_>) {
        let decoded = Decoded::without_zeros(bytes);
        self.known.find_all(&decoded.bytes, &mut |matched, range| found(matched, decoded.source(&range)));
    }

    /// Decompresses gzip (RFC 1952) and zlib (RFC 1950) streams at any position of `bytes`.
    fn compressed(&mut self, bytes: &[u8], depth: usize, found: Found<'_>) {
        let begins =
            |at: &usize| matches!(bytes[*at..], [0x1f, 0x8b, 8, ..] | [0x78, 0x01 | 0x5e | 0x9c | 0xda, ..]);
        for at in memchr::memchr2_iter(0x1f, 0x78, bytes).filter(begins).take(MAX_STREAMS) {
            if self.inflated >= MAX_INFLATED {
                return;
            }
            let text = self.inflate(&bytes[at..]);
            self.inflated += text.len() as u64;
            if !text.is_empty() {
                let mut all = |matched, _: Range<usize>| found(matched, at..bytes.len());
                self.known.find_all(&text, &mut all);
                self.regions(&text, dense_regions::regions(&text, None), depth, &mut all);
            }
        }
    }

    /// Decompresses the stream at the start of `bytes`. The readable part of a truncated or damaged stream is returned.
    ///
    /// Few decoded texts contain a stream, so this function is not inlined.
    #[inline(never)]
    fn inflate(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut text = Vec::new();
        let is_gzip = bytes.starts_with(GZIP);
        let Some(mut rest) =
            (if is_gzip { gzip_header(bytes) } else { Some(0) }).and_then(|at| bytes.get(at..))
        else {
            return text;
        };
        let inflater = self.inflater.get_or_insert_with(|| Decompress::new(true));
        inflater.reset(!is_gzip);
        while text.len() < MAX_STREAM_BYTES {
            text.reserve(text.len().max(FIRST_BYTES));
            let (read, made) = (inflater.total_in(), text.len());
            let status = inflater.decompress_vec(rest, &mut text, FlushDecompress::None);
            let read = usize::try_from(inflater.total_in() - read).unwrap_or(rest.len());
            rest = rest.get(read..).unwrap_or_default();
            if !matches!(status, Ok(Status::Ok)) || (read == 0 && text.len() == made) {
                break;
            }
        }
        text.truncate(MAX_STREAM_BYTES);
        text
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use base64::Engine;
    use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
    use bottle_policy::secret::Secret;
    use proptest::prelude::*;

    use super::*;

    const SECRET: &str = "q7Kd93vXwpT2mB8ySe4Lh5Rf0NcZu6Jt1Gy";
    /// A secret without ASCII letters, which the search for letters does not find.
    const OTHER: &str = "пароль、для、сервера、номер、семь";
    const SHORT: &str = "kW3-pQ8z";

    fn known(others: &[&str]) -> KnownSecrets {
        let secrets: Vec<Secret> =
            [SECRET].iter().chain(others).map(|text| Secret::new((*text).to_owned())).collect();
        KnownSecrets::new(&secrets).expect("secrets")
    }

    fn select_all(_: &KnownSecrets, bytes: &[u8], prefilter: &mut Prefilter) -> bool {
        prefilter.select_all(bytes);
        true
    }

    /// Returns the secrets in `text` with their ranges, in order.
    fn found(known: &KnownSecrets, text: &[u8], select: Select) -> Vec<(usize, Range<usize>)> {
        let mut all = Vec::new();
        find_selected(known, text, select, &mut |matched, range| all.push((matched.secret, range)));
        all.sort_by_key(|(secret, range)| (*secret, range.start, range.end));
        all.dedup();
        all
    }

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        writer.write_all(text).expect("written");
        writer.finish().expect("gzip")
    }

    fn zlib(text: &[u8]) -> Vec<u8> {
        let mut writer = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
        writer.write_all(text).expect("written");
        writer.finish().expect("zlib")
    }

    /// Converts `secret` to one of the forms in which data contains it.
    fn form(secret: &str, number: usize) -> Vec<u8> {
        let each = |between: &str| {
            let letters: Vec<String> = secret.chars().map(String::from).collect();
            letters.join(between).into_bytes()
        };
        match number {
            0 => secret.as_bytes().to_vec(),
            1 => secret.to_uppercase().into_bytes(),
            2 => format!("пароль: {secret}, und sonst nichts — é").into_bytes(),
            3 => secret.encode_utf16().flat_map(u16::to_le_bytes).collect(),
            4 => secret.encode_utf16().flat_map(u16::to_be_bytes).collect(),
            5 => gzip(format!("the key is {secret}").as_bytes()),
            6 => zlib(secret.as_bytes()),
            7 => STANDARD.encode(secret).into_bytes(),
            8 => hex::encode(secret).into_bytes(),
            9 => each("\\"),
            10 => each(" "),
            11 => [&each("\u{e9} ")[..], b" some text after it, which is long enough to be text"].concat(),
            12 => secret
                .chars()
                .flat_map(|letter| [letter, '，'])
                .collect::<String>()
                .encode_utf16()
                .flat_map(u16::to_le_bytes)
                .collect(),
            13 => secret.chars().rev().collect::<String>().into_bytes(),
            _ => secret.as_bytes()[..12].to_vec(),
        }
    }
    const FORMS: usize = 15;

    fn base85(data: &[u8]) -> String {
        const DIGITS: &[u8; 85] =
            b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";
        let mut written = Vec::new();
        for chunk in data.chunks(4) {
            let mut padded = [0; 4];
            padded[..chunk.len()].copy_from_slice(chunk);
            let value = u32::from_be_bytes(padded);
            let powers = [85_u32.pow(4), 85_u32.pow(3), 85 * 85, 85, 1];
            written.extend(
                powers.iter().take(chunk.len() + 1).map(|power| DIGITS[(value / power % 85) as usize]),
            );
        }
        String::from_utf8(written).expect("ASCII")
    }

    /// Encodes `data` after `skip` digits of the same encoding.
    fn encoded(data: &[u8], encoding: usize, skip: usize) -> String {
        let (before, text) = match encoding {
            0 => ("Zz9+/Qx", STANDARD_NO_PAD.encode(data)),
            1 => ("f0e1d2c", hex::encode(data)),
            2 => ("Zz9+!Qx", base85(data)),
            3 => ("QZ7XK2M", data_encoding::BASE32_NOPAD.encode(data)),
            _ => ("1011001", data.iter().map(|byte| format!("{byte:08b}")).collect()),
        };
        format!("{}{text}", &before[..skip])
    }

    #[test]
    fn separators_in_percent_encoding_are_read_in_a_part_and_in_a_whole_text() {
        let known = known(&[]);
        let letters: Vec<String> = SECRET.chars().map(String::from).collect();
        let prose = "some words of prose beside it, ".repeat(20);
        let alone = ["%2C", "%2C%20%2F"].map(|separator| letters.join(separator));
        let beside = alone.clone().map(|text| format!("{prose}{text} {prose}"));
        for (text, is_whole) in
            alone.iter().map(|text| (text, true)).chain(beside.iter().map(|text| (text, false)))
        {
            let regions = dense_regions::regions(text.as_bytes(), None);
            let whole = 0..text.len();
            assert_eq!(regions.contains(&whole), is_whole, "{text}");
            assert!(!found(&known, text.as_bytes(), select).is_empty(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn the_prefilter_hides_no_secret(
            (form_number, encoding, skip) in (0..FORMS, 0_usize..5, 0_usize..8),
            (which, text) in (0_usize..3, "[ -~]{0,20}"),
            (before, after) in (prop::collection::vec(any::<u8>(), 0..200), prop::collection::vec(any::<u8>(), 0..200)),
        ) {
            let secret = [SECRET, OTHER, SHORT][which];
            let known = match which {
                0 => known(&[]),
                1 => known(&[OTHER]),
                _ => known(&[SHORT]),
            };
            let form_number = if which == 0 { form_number } else { form_number.min(13) };
            let data = [&before[..], &form(secret, form_number), &after].concat();
            let text = format!("{text}\n{}", encoded(&data, encoding, skip.min(7)));
            let all = found(&known, text.as_bytes(), select_all);
            prop_assert_eq!(found(&known, text.as_bytes(), select), all.clone(), "{}", text);
            let is_usual = match which {
                0 => matches!(form_number, 0 | 2 | 3 | 4 | 6 | 7 | 8),
                1 => form_number == 0,
                _ => false,
            };
            let is_long = encoding < 2 && is_usual;
            prop_assert!(!is_long || !all.is_empty(), "{} {}", form_number, text);
        }

        #[test]
        fn a_stream_is_decompressed_as_far_as_another_reader_does(
            (text, cut) in ("[a-f]{0,300}", 0_usize..400),
            noise in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let known = known(&[]);
            for (stream, is_gzip) in [(gzip(text.as_bytes()), true), (zlib(text.as_bytes()), false)] {
                let stream = [&stream[..cut.min(stream.len())], &noise].concat();
                let mut expected = Vec::new();
                let _ = match is_gzip {
                    true => flate2::bufread::GzDecoder::new(&stream[..]).read_to_end(&mut expected),
                    false => flate2::bufread::ZlibDecoder::new(&stream[..]).read_to_end(&mut expected),
                };
                let begins = is_gzip && stream.starts_with(GZIP) || !is_gzip && stream.starts_with(&[0x78]);
                let mut reader = Reader {
                    known: &known,
                    select,
                    inflater: None,
                    inflated: 0,
                    buffers: Vec::new(),
                    prefilters: Vec::new(),
                };
                // The state of another stream does not matter.
                reader.inflate(b"\x78\xda\x07");
                prop_assert!(!begins || reader.inflate(&stream).starts_with(&expected));
            }
        }
    }
}
