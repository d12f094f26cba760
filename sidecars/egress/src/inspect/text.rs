//! Decodes and scans a body as a stream.

use std::sync::Arc;

use bottle_scan::{Finding, Scanner, Severity, Stream};
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};

use super::decode::{Coding, Decoder, Sink};
use super::decoded_memory::DecodedMemory;
use super::nested::NestedFiles;
use super::unreadable::Unreadable;

/// The most codings that may be applied to one body. A body with more codings is [`Unreadable`]. Servers apply a single
/// coding.
const MAX_CODINGS: usize = 3;

/// The name of [`Coding::AwsChunked`]. Some stores also declare this name for a download, although the download does
/// not have this framing.
const AWS_CHUNKED: &str = "aws-chunked";

/// Returns the codings of a request's body, outermost first. The result includes the codings of [`codings`] and the
/// framing of a signed upload.
///
/// # Errors
/// The errors of [`codings`].
pub(crate) fn request_codings(headers: &HeaderMap) -> Result<Vec<Coding>, Unreadable> {
    let mut codings = codings(headers)?;
    let names = headers.get_all(CONTENT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let is_listed =
        names.flat_map(|value| value.split(',')).any(|name| name.trim().eq_ignore_ascii_case(AWS_CHUNKED));
    // Some clients declare the framing only in the signed header `x-amz-content-sha256`.
    let payload = headers.get("x-amz-content-sha256").map(HeaderValue::as_bytes).unwrap_or_default();
    if is_listed || payload.starts_with(b"STREAMING-") {
        codings.insert(0, Coding::AwsChunked);
    }
    Ok(codings)
}

/// Returns the codings that `headers` list, outermost first, except the framing of a signed upload.
///
/// # Errors
/// [`Unreadable::Coding`] if a coding is not supported, or if there are too many codings.
pub(crate) fn codings(headers: &HeaderMap) -> Result<Vec<Coding>, Unreadable> {
    let mut codings = Vec::new();
    for value in headers.get_all(CONTENT_ENCODING) {
        let value = value.to_str().map_err(|_| Unreadable::Coding)?;
        let names = value.split(',').map(str::trim).filter(|name| !name.is_empty());
        for name in
            names.filter(|name| !["identity", AWS_CHUNKED].iter().any(|own| name.eq_ignore_ascii_case(own)))
        {
            codings.push(Coding::from_name(name).ok_or(Unreadable::Coding)?);
        }
    }
    // The header lists the codings in the order in which they were applied.
    codings.reverse();
    if codings.len() > MAX_CODINGS { Err(Unreadable::Coding) } else { Ok(codings) }
}

/// A streaming scan of a body.
pub(crate) struct BodyScan {
    decoding: Decoding,
    text: Stream<Arc<Scanner>>,
    /// Scans the text without its zero bytes, if the characters of the text seem to be two or four bytes wide.
    narrow: Option<Stream<Arc<Scanner>>>,
    begun: bool,
    nested: NestedFiles,
}

/// The findings in a body.
#[derive(Debug, Default)]
pub(crate) struct BodyFindings {
    /// Findings in the decoded text. The spans of these findings are positions in the text.
    pub(crate) plain: Vec<Finding>,
    /// Findings in compressed files and archives, or in wide text. The spans of these findings are not positions in the
    /// decoded text.
    pub(crate) packed: Vec<Finding>,
}

impl BodyFindings {
    /// All findings in the body.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Finding> {
        self.plain.iter().chain(&self.packed)
    }

    /// Whether any finding must be blocked.
    pub(crate) fn blocks(&self) -> bool {
        self.all().any(|finding| finding.severity == Severity::Block)
    }
}

impl BodyScan {
    /// Starts a scan. `codings` are outermost first; `headers` declare the charset. The decoders' windows count towards
    /// `memory`.
    pub(crate) fn new(
        scanner: &Arc<Scanner>,
        codings: &[Coding],
        headers: &HeaderMap,
        memory: &DecodedMemory,
    ) -> Self {
        let wide = headers.get(CONTENT_TYPE).is_some_and(|kind| {
            let kind = kind.as_bytes().to_ascii_lowercase();
            [&b"utf-16"[..], b"utf-32", b"utf16", b"utf32", b"ucs-"]
                .iter()
                .any(|name| memchr::memmem::find(&kind, name).is_some())
        });
        Self {
            decoding: Decoding::new(codings, memory),
            text: scanner.stream_owned(),
            narrow: wide.then(|| scanner.stream_owned()),
            begun: false,
            nested: NestedFiles::new(scanner, memory),
        }
    }

    /// Scans the next chunk.
    ///
    /// # Errors
    /// [`Unreadable`] if the body cannot be scanned and must not be forwarded.
    pub(crate) fn feed(&mut self, chunk: &[u8]) -> Result<(), Unreadable> {
        let Self { decoding, text, narrow, begun, nested } = self;
        through(&mut decoding.0, chunk, &mut |chunk| {
            if !*begun && !chunk.is_empty() {
                *begun = true;
                if narrow.is_none() && is_wide(chunk) {
                    *narrow = Some(nested.scanner().stream_owned());
                }
            }
            text.feed(chunk);
            if let Some(narrow) = narrow {
                let nonzero: Vec<u8> = chunk.iter().copied().filter(|byte| *byte != 0).collect();
                narrow.feed(&nonzero);
            }
            nested.feed(chunk)
        })
    }

    /// Ends the scan and returns its findings.
    ///
    /// # Errors
    /// [`Unreadable::Broken`] if the body ends before its coding does. Also the errors of [`Self::feed`], for
    /// compressed files that extend to the end of the body.
    pub(crate) fn finish(self) -> Result<BodyFindings, Unreadable> {
        if !self.decoding.is_whole() {
            return Err(Unreadable::Broken);
        }
        let plain = self.text.finish().findings;
        let mut packed = self.nested.finish()?;
        packed.extend(self.narrow.into_iter().flat_map(|narrow| narrow.finish().findings));
        Ok(BodyFindings { plain, packed })
    }
}

/// Whether the characters of `text` seem to be two or four bytes wide. This is the case if one of the first four bytes
/// is zero, as in wide ASCII text, or if the text begins with a byte order mark.
fn is_wide(text: &[u8]) -> bool {
    let start = &text[..text.len().min(4)];
    start.contains(&0) || start.starts_with(b"\xff\xfe") || start.starts_with(b"\xfe\xff")
}

/// Decodes `chunk` with all `codings`, one after another.
fn through(codings: &mut [Decoder], chunk: &[u8], sink: Sink<'_>) -> Result<(), Unreadable> {
    match codings.split_first_mut() {
        None => sink(chunk),
        Some((first, rest)) => first.feed(chunk, &mut |chunk| through(rest, chunk, sink)),
    }
}

/// A streaming decoder of stacked codings.
pub(crate) struct Decoding(Vec<Decoder>);

impl Decoding {
    /// Creates a decoder for `codings`, outermost first. The decoders' windows count towards `memory`.
    pub(crate) fn new(codings: &[Coding], memory: &DecodedMemory) -> Self {
        Self(codings.iter().map(|coding| Decoder::new(*coding, memory)).collect())
    }

    /// Decodes the next chunk. If `sink` returns false, decoding stops.
    ///
    /// # Errors
    /// [`Unreadable`] if the input cannot be decoded, or `sink` returned false.
    pub(crate) fn feed(
        &mut self,
        chunk: &[u8],
        sink: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<(), Unreadable> {
        through(&mut self.0, chunk, &mut |text| if sink(text) { Ok(()) } else { Err(Unreadable::Broken) })
    }

    /// The most text, in bytes, that the decoders may have received but not yet output.
    pub(crate) fn withheld(&self) -> u64 {
        match &self.0[..] {
            [only] => only.withheld(),
            // Bytes that one decoder withholds may decode to much longer text in the next decoder.
            all if all.iter().any(|decoder| decoder.withheld() > 0) => u64::MAX,
            _ => 0,
        }
    }

    /// Whether the input received so far is a complete stream.
    pub(crate) fn is_whole(&self) -> bool {
        self.0.iter().all(Decoder::is_whole)
    }
}

/// Decodes `body` to at most `limit` bytes of text.
///
/// # Errors
/// [`Unreadable`] if the body cannot be decoded, or if the text is longer than `limit`.
pub(super) fn decoded(body: &[u8], codings: &[Coding], limit: usize) -> Result<Vec<u8>, Unreadable> {
    // The decoders need no shared limit of memory, because the thread decodes the whole body before it decodes another
    // one.
    let mut decoding = Decoding::new(codings, &DecodedMemory::default());
    let mut text = Vec::new();
    through(&mut decoding.0, body, &mut |chunk| {
        text.extend_from_slice(chunk);
        if text.len() > limit { Err(Unreadable::Bomb) } else { Ok(()) }
    })?;
    if decoding.is_whole() { Ok(text) } else { Err(Unreadable::Broken) }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use bottle_policy::secret::Secret;
    use bottle_scan::KnownSecrets;

    use super::*;

    const SECRET: &str = "Zq7-Kd93vXwpT2mB8ySe4Lh5Rf0Nc";

    type Headers = &'static [(&'static str, &'static str)];

    fn scanner() -> Arc<Scanner> {
        let known = KnownSecrets::new([&Secret::new(SECRET.to_owned())]).expect("secrets");
        Arc::new(Scanner::outbound(Arc::new(known)))
    }

    fn findings(
        body: &[u8],
        headers: &[(&'static str, &'static str)],
        size: usize,
    ) -> Result<BodyFindings, Unreadable> {
        let headers = headers.iter().map(|(name, value)| {
            (http::HeaderName::from_static(name), http::HeaderValue::from_static(value))
        });
        let headers = headers.collect();
        let mut scan = BodyScan::new(&scanner(), &codings(&headers)?, &headers, &DecodedMemory::default());
        for chunk in body.chunks(size) {
            scan.feed(chunk)?;
        }
        scan.finish()
    }

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        writer.write_all(text).expect("write");
        writer.finish().expect("finish")
    }

    /// A zip archive with one deflated entry and no central directory.
    fn zip(text: &[u8]) -> Vec<u8> {
        let mut writer = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::default());
        writer.write_all(text).expect("write");
        let packed = writer.finish().expect("finish");
        let mut archive = b"PK\x03\x04\x14\0\0\0\x08\0".to_vec();
        archive.extend([0; 8]);
        for size in [packed.len(), text.len()] {
            archive.extend(u32::try_from(size).expect("small").to_le_bytes());
        }
        archive.extend([5, 0, 0, 0]);
        archive.extend_from_slice(b"a.txt");
        archive.extend_from_slice(&packed);
        archive
    }

    #[test]
    fn finds_a_secret_in_every_coding_and_file() {
        let text = format!("{{\"note\":\"here it is: {SECRET}, keep it\"}}");
        let text = text.as_bytes();
        let wide: Vec<u8> = text.iter().flat_map(|byte| [*byte, 0]).collect();
        let form =
            [b"--x\r\nContent-Type: application/gzip\r\n\r\n", &gzip(text)[..], b"\r\n--x--\r\n"].concat();
        let bodies: [(&str, Vec<u8>, Headers); 9] = [
            ("plain", text.to_vec(), &[]),
            ("gzip", gzip(text), &[("content-encoding", "gzip")]),
            ("twice", gzip(&gzip(text)), &[("content-encoding", "gzip, gzip")]),
            ("a file", gzip(text), &[("content-type", "application/octet-stream")]),
            ("a file in gzip", gzip(&gzip(text)), &[("content-encoding", "gzip")]),
            ("a file in a form", form, &[("content-type", "multipart/form-data; boundary=x")]),
            ("zip", zip(text), &[]),
            ("a second entry", [zip(b"nothing"), zip(text)].concat(), &[]),
            ("UTF-16", wide, &[("content-type", "application/json; charset=utf-16")]),
        ];
        for (name, body, headers) in bodies {
            for size in [body.len(), 1, 5] {
                let findings =
                    findings(&body, headers, size).unwrap_or_else(|error| panic!("{name}: {error}"));
                assert!(findings.blocks(), "{name} in pieces of {size}");
            }
        }
        for (name, body) in [("gzip", gzip(b"nothing here")), ("zip", zip(b"nothing here"))] {
            assert!(!findings(&body, &[], body.len()).expect("readable").blocks(), "{name}");
        }
    }

    #[test]
    fn rejects_unreadable_bodies() {
        for (body, coding) in [
            (&b"plain"[..], "gzip"),
            (&gzip(b"some text that is cut off")[..20], "gzip"),
            (b"x", "compress"),
            (b"x", "gzip, gzip, gzip, gzip"),
        ] {
            assert!(findings(body, &[("content-encoding", coding)], 3).is_err(), "{coding}");
        }
        let bomb = gzip(&vec![0; 64 << 20]);
        assert_eq!(findings(&bomb, &[], bomb.len()).expect_err("nested"), Unreadable::Bomb);
        assert!(findings(b"plain", &[("content-encoding", "identity")], 3).is_ok());
    }
}
