//! Detects line breaks in a header or request line. A server would read the text after such a line break as
//! another header.

use std::ops::Range;

use crate::finding::{Detector, Finding, Pieces, Range64, Severity};
use crate::view::View;

/// A part of an HTTP request's head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadPart {
    /// The method, the host or the path.
    Line,
    /// The query, in which forms may send multi-line text.
    Query,
    /// The name or the value of a header.
    Header,
}

/// Finds a line break in `text`. A line break is a literal CR, LF or NUL, a character that some servers truncate to CR
/// or LF, or an escaped CR or LF. The escape may be percent-encoding, an overlong UTF-8 sequence, a backslash escape or
/// an HTML entity, and escapes may be nested. Request bodies must not be checked, because they may have many lines.
///
/// An escaped LF in a query or a header is only a warning, because forms and JSON contain multi-line text. The finding
/// blocks if `text` also contains a CR or an overlong sequence, or if a line after the first one looks like a header or
/// a request line.
#[must_use]
pub fn head_injection(part: HeadPart, text: &[u8]) -> Option<Finding> {
    if let Some(at) = text.iter().position(|byte| matches!(byte, b'\r' | b'\n' | 0)) {
        return Some(finding("line-break", Severity::Block, "a line break", at..at + 1));
    }
    let view = View::unescaped_head(text);
    let bytes = view.as_ref().map_or(text, |view| &view.bytes);
    let source = |range: Range<usize>| view.as_ref().map_or(range.clone(), |view| view.source_range(&range));
    if let Some(range) = sequence(bytes, TRUNCATED) {
        let words = "a character that may be truncated to a line break";
        return Some(finding("line-break-cut", Severity::Block, words, source(range)));
    }
    let range = sequence(bytes, OVERLONG).or_else(|| {
        let at = bytes.iter().position(|byte| matches!(byte, b'\r' | b'\n'))?;
        Some(at..at + 1)
    })?;
    let is_multi_line_text = part != HeadPart::Line
        && !bytes.contains(&b'\r')
        && sequence(bytes, OVERLONG).is_none()
        && !looks_like_header(bytes);
    let severity = if is_multi_line_text { Severity::Warn } else { Severity::Block };
    Some(finding("line-break-encoded", severity, "an encoded line break", source(range)))
}

/// U+560A and U+560D in UTF-8. The low bytes of these code points are LF and CR.
const TRUNCATED: &[&[u8]] = &[b"\xe5\x98\x8a", b"\xe5\x98\x8d"];

/// LF and CR in UTF-8 sequences that are longer than necessary. Such a sequence is invalid (RFC 3629, 3), but some
/// decoders accept it.
const OVERLONG: &[&[u8]] =
    &[b"\xc0\x8a", b"\xc0\x8d", b"\xe0\x80\x8a", b"\xe0\x80\x8d", b"\xf0\x80\x80\x8a", b"\xf0\x80\x80\x8d"];

/// Returns the range of the first occurrence of any of `sequences` in `text`.
fn sequence(text: &[u8], sequences: &[&[u8]]) -> Option<Range<usize>> {
    // All sequences begin with a non-ASCII byte, so the search skips the ASCII text at the start.
    let from = text.iter().position(|byte| !byte.is_ascii())?;
    (from..text.len()).find_map(|at| {
        let found = sequences.iter().find(|sequence| text[at..].starts_with(sequence))?;
        Some(at..at + found.len())
    })
}

fn finding(rule: &str, severity: Severity, words: &str, range: Range<usize>) -> Finding {
    let preview = words.to_owned();
    Finding {
        span: Range64::at(0, &range),
        rule: rule.into(),
        detector: Detector::Structure,
        severity,
        secret: None,
        pieces: Pieces::default(),
        preview,
    }
}

/// Names of headers that consist of one word and change the behavior of a server. Other headers are recognized by a `-`
/// in the name or by a space after the `:`. Text such as `name:value` has neither.
const SHORT_HEADERS: &[&str] = &[
    "authorization",
    "connection",
    "cookie",
    "forwarded",
    "host",
    "link",
    "location",
    "origin",
    "refresh",
    "upgrade",
];

/// Returns whether any line of `text` except the first looks like a header or a request line.
fn looks_like_header(text: &[u8]) -> bool {
    text.split(|byte| *byte == b'\n').skip(1).any(|line| {
        let length = line.iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'-').count();
        let (name, rest) = line.split_at(length);
        let is_named = name.contains(&b'-')
            || SHORT_HEADERS.iter().any(|short| name.eq_ignore_ascii_case(short.as_bytes()));
        let is_header = match rest {
            [b':', b' ' | b'\t', ..] => length > 0,
            [b':', ..] => is_named,
            _ => false,
        };
        is_header || line.windows(6).any(|window| window == b"HTTP/1")
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn detects_line_breaks_in_heads() {
        use HeadPart::{Header, Line, Query};
        use Severity::{Block, Warn};
        for (part, text, severity) in [
            (Line, "/a/b?c=d", None),
            (Line, "/a%0d%0aX-Evil: 1", Some(Block)),
            (Line, "/a%250aX", Some(Block)),
            (Line, "/a\r\n", Some(Block)),
            (Query, "text=one%0Atwo", Some(Warn)),
            (Query, "text=one%0D%0Atwo", Some(Block)),
            (Query, "text=one%0dtwo", Some(Block)),
            (Query, "text=one%250d%250atwo", Some(Block)),
            (Query, "text=one%25250d%25250atwo", Some(Block)),
            (Query, "text=one%u000d%u000atwo", Some(Block)),
            (Query, "text=one\\r\\ntwo", Some(Block)),
            (Query, "text=one\\u000d\\u000atwo", Some(Block)),
            (Query, "text=one&#13;&#10;two", Some(Block)),
            (Query, "text=one%26%2313%3B%26%2310%3Btwo", Some(Block)),
            (Query, "x=1%0d%0aSet-Cookie:%20a=b", Some(Block)),
            (Query, "x=1%0d%0aGET%20/%20HTTP/1.1", Some(Block)),
            (Header, "text/html; charset=utf-8", None),
            (Header, "a\nb", Some(Block)),
            (Header, "100%0a", Some(Warn)),
            (Header, r#"{"text":"one\ntwo"}"#, Some(Warn)),
            (Header, "a%0aSet-Cookie:b=c", Some(Block)),
            (Header, "a%0aHost:b", Some(Block)),
            (Header, "a%0akey:b", Some(Warn)),
            (Header, "100% of %c4%8d, 50%c0", None),
            (Header, "https://example.com/a%20b?c=%2F", None),
            (Query, "text=one%0Anot https://x", Some(Warn)),
            (Line, "/%E5%98%8A%e5%98%8dX", Some(Block)),
            (Header, "x嘊y", Some(Block)),
            (Header, "a\0b", Some(Block)),
        ] {
            let found = head_injection(part, text.as_bytes());
            assert_eq!(found.map(|finding| finding.severity), severity, "{text:?}");
        }
    }

    #[test]
    fn a_line_break_is_found_in_every_spelling() {
        // Escapes of CR and LF. In each, `{}` is replaced by `d` for CR or by `a` for LF.
        let spellings = [
            "%0{}",
            "%250{}",
            "%25250{}",
            "%2525252525250{}",
            "%u000{}",
            "%U000{}",
            "%25u000{}",
            "%c0%8{}",
            "%C0%8{}",
            "%e0%80%8{}",
            "%f0%80%80%8{}",
            "%25c0%258{}",
            "%E5%98%8{}",
            "%u560{}",
            "\\u560{}",
            "\\x0{}",
            "\\u000{}",
            "\\u{0{}}",
            "\\u{000000{}}",
            "\\U0000000{}",
            "\\\\u000{}",
            "%5Cu000{}",
            "%5cx0{}",
            "&#x{};",
            "&#X0{};",
            "&#x00000{}",
            "&#x{}",
            "%26%23x{}%3B",
            "&amp;#x{};",
        ];
        let others = [
            ("\\r", "\\n"),
            ("\\\\r", "\\\\n"),
            ("%5cr", "%5cn"),
            ("\\015", "\\012"),
            ("&#13;", "&#10;"),
            ("&#0013", "&#0010"),
            ("%26%2313%3B", "%26%2310%3B"),
            ("嘍", "嘊"),
        ];
        let digits = spellings.iter().filter(|spelling| spelling.contains("{}"));
        let pairs = digits.map(|spelling| (spelling.replace("{}", "d"), spelling.replace("{}", "a")));
        let others = others.iter().map(|(cr, lf)| ((*cr).to_owned(), (*lf).to_owned()));
        for (cr, lf) in pairs.chain(others) {
            for part in [HeadPart::Line, HeadPart::Query, HeadPart::Header] {
                for text in [
                    format!("a{cr}{lf}x-evil: 1"),
                    format!(
                        "a{}{}x",
                        cr.to_uppercase().replace("\\U", "\\u").replace("\\u0000000", "\\U0000000"),
                        lf
                    ),
                    format!("a{cr}z"),
                    format!("a{lf}x-evil: 1"),
                ] {
                    // These escapes have another meaning in upper case.
                    if ["\\R", "\\X", "%5CR", "%5CX", "%5CU", "&AMP"].iter().any(|other| text.contains(other))
                    {
                        continue;
                    }
                    let found = head_injection(part, text.as_bytes());
                    let Some(found) = found else { panic!("{part:?} {text}") };
                    assert_eq!(found.severity, Severity::Block, "{part:?} {text}");
                    let [start, end] = [found.span.start, found.span.end]
                        .map(|place| usize::try_from(place).expect("within the text"));
                    let rest = [&text[..start], &text[end..]].concat();
                    assert!(rest.len() < text.len(), "{text}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(text in prop::collection::vec(any::<u8>(), 0..200)) {
            for part in [HeadPart::Line, HeadPart::Query, HeadPart::Header] {
                if let Some(finding) = head_injection(part, &text) {
                    prop_assert!(finding.span.start < finding.span.end && finding.span.end <= text.len() as u64);
                }
            }
        }
    }
}
