//! Detects line breaks in a header or request line. A server would read the text after such a line break as
//! another header.

use std::ops::Range;

use crate::finding::{Detector, Finding, Range64, Severity};
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

/// Finds the first line break in `text`: a literal CR, LF or NUL, or a character that some servers truncate
/// to CR or LF. In the request line and the query, also finds a line break that is percent-encoded once or
/// twice. Request bodies must not be checked, because they may have many lines.
///
/// An encoded LF in a query is only a warning, because forms send multi-line text there. It is blocked if a
/// CR accompanies it, or if the following text looks like a header or a request.
#[must_use]
pub fn head_injection(part: HeadPart, text: &[u8]) -> Option<Finding> {
    if let Some(at) = text.iter().position(|byte| matches!(byte, b'\r' | b'\n' | 0)) {
        return Some(finding("line-break", Severity::Block, "a line break", at..at + 1));
    }
    // U+560D and U+560A, whose low bytes are CR and LF.
    let cut = text.windows(3).position(|window| matches!(window, [0xe5, 0x98, 0x8a | 0x8d]));
    let encoded = text.windows(9).position(|window| {
        window.eq_ignore_ascii_case(b"%e5%98%8a") || window.eq_ignore_ascii_case(b"%e5%98%8d")
    });
    if let Some((at, length)) = cut.map(|at| (at, 3)).or(encoded.map(|at| (at, 9))) {
        return Some(finding(
            "line-break-cut",
            Severity::Block,
            "a character that may be truncated to a line break",
            at..at + length,
        ));
    }
    if part == HeadPart::Header {
        return None;
    }
    let view = View::unescaped_all(text);
    let bytes = view.as_ref().map_or(text, |view| &view.bytes);
    // Only IIS decodes `%u000d` and `%u000a`.
    let wide = bytes
        .windows(6)
        .position(|window| window.eq_ignore_ascii_case(b"%u000d") || window.eq_ignore_ascii_case(b"%u000a"));
    if let Some(at) = wide {
        let range = view.as_ref().map_or(at..at + 6, |view| view.source_range(&(at..at + 6)));
        return Some(finding("line-break-encoded", Severity::Block, "an encoded line break", range));
    }
    let view = view?;
    let at = view.bytes.iter().position(|byte| matches!(byte, b'\r' | b'\n'))?;
    let severity = match part {
        // Multi-line text in queries uses LF without CR.
        HeadPart::Query if !view.bytes.contains(&b'\r') && !looks_like_header(&view.bytes[at..]) => {
            Severity::Warn
        }
        _ => Severity::Block,
    };
    Some(finding("line-break-encoded", severity, "an encoded line break", view.source_range(&(at..at + 1))))
}

fn finding(rule: &str, severity: Severity, words: &str, range: Range<usize>) -> Finding {
    let preview = words.to_owned();
    Finding {
        span: Range64::at(0, &range),
        rule: rule.into(),
        detector: Detector::Structure,
        severity,
        secret: None,
        preview,
    }
}

/// Whether a line after a line break is empty or looks like a header or a request line.
fn looks_like_header(text: &[u8]) -> bool {
    text.split(|byte| *byte == b'\n').skip(1).any(|line| {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let name = line.iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'-').count();
        let header =
            name > 0 && line.get(name) == Some(&b':') && line.get(name + 1).is_some_and(|byte| *byte == b' ');
        header || line.windows(6).any(|window| window == b"HTTP/1")
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
            (Header, "100%0a", None),
            (Line, "/%E5%98%8A%e5%98%8dX", Some(Block)),
            (Header, "x嘊y", Some(Block)),
            (Header, "a\0b", Some(Block)),
        ] {
            let found = head_injection(part, text.as_bytes());
            assert_eq!(found.map(|finding| finding.severity), severity, "{text:?}");
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
