//! Redacts the findings in a body.

use std::ops::Range;
use std::sync::Arc;

use bottle_scan::{Finding, Range64, Scanner, Severity, Shape, rewrite};
use http::HeaderMap;
use http::header::CONTENT_TYPE;

use super::decode::Coding;
use super::decoded_memory::DecodedMemory;
use super::text::{self, BodyScan};
use super::unreadable::Unreadable;

/// The longest decoded body that is redacted, in bytes. If a longer body needs redaction, the request or response is
/// denied. Redaction needs twice as much memory as the body. No model accepts longer requests.
pub(crate) const MAX_REWRITTEN: usize = 32 << 20;

/// Maximum number of redaction rounds. If findings remain after the last round, the request or response is denied.
/// Redaction repeats because the text around a removed finding may form a new finding.
const MAX_ROUNDS: usize = 3;

/// Returns the decoded `body` without its blocking findings, or `None` if they cannot be redacted.
///
/// # Errors
/// [`Unreadable`] if the body cannot be decoded or scanned.
pub(crate) fn rewritten(
    scanner: &Arc<Scanner>,
    body: &[u8],
    codings: &[Coding],
    headers: &HeaderMap,
) -> Result<Option<Vec<u8>>, Unreadable> {
    let mut text = decoded(body, codings)?;
    let shape = shape_for(headers);
    for _ in 0..=MAX_ROUNDS {
        let mut scan = BodyScan::new(scanner, &[], headers, &DecodedMemory::default());
        scan.feed(&text)?;
        let seen = scan.finish()?;
        if !seen.blocks() {
            return Ok(Some(text));
        }
        if seen.packed.iter().any(|finding| finding.severity == Severity::Block) {
            return Ok(None);
        }
        text = redact(&text, &seen.plain, shape);
    }
    Ok(None)
}

/// Decodes `body`.
///
/// # Errors
/// [`Unreadable`] if the body cannot be decoded, or if the text is longer than [`MAX_REWRITTEN`].
pub(crate) fn decoded(body: &[u8], codings: &[Coding]) -> Result<Vec<u8>, Unreadable> {
    text::decoded(body, codings, MAX_REWRITTEN)
}

/// Returns the syntax of a body according to its headers.
pub(crate) fn shape_for(headers: &HeaderMap) -> Shape {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if kind.ends_with("json") {
        Shape::Json
    } else if kind == "application/x-www-form-urlencoded" {
        Shape::Url
    } else {
        Shape::Text
    }
}

/// Returns `text` without the blocking findings. If each line is JSON, as in event streams, each line stays valid JSON.
pub(crate) fn redact(text: &[u8], found: &[Finding], shape: Shape) -> Vec<u8> {
    let blocks: Vec<&Finding> = found.iter().filter(|finding| finding.severity == Severity::Block).collect();
    let whole = |shape| {
        let blocks: Vec<Finding> = blocks.iter().map(|finding| (*finding).clone()).collect();
        rewrite(text, &blocks, shape)
    };
    if shape != Shape::Json || serde_json::from_slice::<serde::de::IgnoredAny>(text).is_ok() {
        return whole(shape);
    }
    let mut redacted = Vec::with_capacity(text.len());
    let mut at = 0;
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        let prefix = if line.starts_with(b"data:") { 5 } else { 0 };
        let (prefix, rest) = line.split_at(prefix);
        let start = at + prefix.len();
        redacted.extend_from_slice(prefix);
        at += line.len();
        let inside: Vec<Finding> =
            blocks.iter().filter_map(|finding| relative_to(finding, start..at)).collect();
        if inside.is_empty() {
            redacted.extend_from_slice(rest);
        } else {
            redacted.extend_from_slice(&rewrite(rest, &inside, Shape::Json));
        }
    }
    redacted
}

/// Returns the finding with its span relative to a part of the text, or `None` if the finding does not overlap the
/// part.
pub(super) fn relative_to(finding: &Finding, part: Range<usize>) -> Option<Finding> {
    let span = finding.span.within(part.end);
    let (start, end) = (span.start.max(part.start), span.end.min(part.end));
    (start < end).then(|| Finding {
        span: Range64 { start: (start - part.start) as u64, end: (end - part.start) as u64 },
        ..finding.clone()
    })
}

#[cfg(test)]
mod tests {
    use bottle_policy::secret::Secret;
    use bottle_scan::KnownSecrets;
    use http::HeaderValue;

    use super::*;

    const SECRET: &str = "Zq7-Kd93vXwpT2mB8ySe4Lh5Rf0Nc";

    #[test]
    fn rewrites_only_the_secret() {
        let known = KnownSecrets::new([&Secret::new(SECRET.to_owned())]).expect("secrets");
        let scanner = Arc::new(Scanner::outbound(Arc::new(known)));
        let json = "application/json; charset=utf-8";
        for (kind, body, expected) in [
            (json, format!("{{\"a\":\"x {SECRET} y\",\"b\":[1]}}"), "{\"a\":\"x [redacted] y\",\"b\":[1]}"),
            (json, format!("{{\"a\":1}}\n{{\"a\":\"{SECRET}\"}}\n"), "{\"a\":1}\n{\"a\":\"[redacted]\"}\n"),
            ("application/x-www-form-urlencoded", format!("a={SECRET}&b=1"), "a=redacted&b=1"),
            ("text/plain", format!("<{SECRET}>"), "<[redacted]>"),
        ] {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))]);
            let redacted =
                rewritten(&scanner, body.as_bytes(), &[], &headers).expect("readable").expect("rewritten");
            assert_eq!(String::from_utf8_lossy(&redacted), expected, "{kind}");
        }
    }
}
