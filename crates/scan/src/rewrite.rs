//! Removes findings from a text and keeps the text readable for its recipient.

use std::ops::Range;

use crate::finding::Finding;
use crate::redact::{MASK, merged};

/// The format of a text. The format determines how a finding may be replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// JSON. Only numbers and the contents of strings are replaced, so the structure stays the same.
    Json,
    /// A path, query or form. The replacement contains no character that needs percent-encoding.
    Url,
    /// A text in any other format.
    Text,
}

/// Returns `text` with the spans of `findings` replaced by a mask. A span shorter than the mask is replaced
/// by asterisks, so the result is never longer than `text`.
///
/// Invalid JSON is rewritten as [`Shape::Text`].
#[must_use]
pub fn rewrite(text: &[u8], findings: &[Finding], shape: Shape) -> Vec<u8> {
    let spans = whole_characters(text, findings);
    if shape == Shape::Json && serde_json::from_slice::<serde::de::IgnoredAny>(text).is_ok() {
        return json(text, &spans);
    }
    let word = if shape == Shape::Url { "redacted" } else { MASK };
    let mut made = Vec::with_capacity(text.len());
    let mut at = 0;
    for span in spans {
        made.extend_from_slice(&text[at..span.start]);
        mask(span.len(), word, &mut made);
        at = span.end;
    }
    made.extend_from_slice(&text[at..]);
    made
}

/// Rewrites JSON. The characters in `spans` are removed from strings. An escape sequence is removed completely or not
/// at all. A number that overlaps a span becomes 0.
fn json(text: &[u8], spans: &[Range<usize>]) -> Vec<u8> {
    let mut made = Vec::with_capacity(text.len());
    let (mut at, mut in_string, mut covered) = (0, false, 0);
    let mut spans = spans.iter().peekable();
    while at < text.len() {
        let length = unit(&text[at..], in_string);
        while spans.next_if(|span| span.end <= at).is_some() {}
        let touched = spans.peek().is_some_and(|span| span.start < at + length);
        let quote = text[at] == b'"';
        let number = !in_string && (text[at] == b'-' || text[at].is_ascii_digit());
        if in_string && !quote && touched {
            covered += length;
        } else {
            mask(std::mem::take(&mut covered), MASK, &mut made);
            if number && touched {
                made.push(b'0');
            } else {
                made.extend_from_slice(&text[at..at + length]);
            }
        }
        in_string ^= quote;
        at += length;
    }
    made
}

/// Returns the length of the unit at the start of `text`: an escape sequence, a number, or one byte. The rewrite never
/// splits a unit. In other text a unit is one byte, although a character may have several bytes: the removed ranges begin
/// and end between characters, so no character is split.
fn unit(text: &[u8], in_string: bool) -> usize {
    let length = match text {
        [b'\\', b'u', ..] if in_string => 6,
        [b'\\', ..] if in_string => 2,
        [b'-' | b'0'..=b'9', ..] if !in_string => {
            text.iter().take_while(|byte| byte.is_ascii_digit() || b"+-.eE".contains(byte)).count()
        }
        _ => 1,
    };
    length.min(text.len())
}

/// Returns the spans of `findings`, extended to character boundaries and merged.
fn whole_characters(text: &[u8], findings: &[Finding]) -> Vec<Range<usize>> {
    let inside = |place: usize| text.get(place).is_some_and(|byte| byte & 0xc0 == 0x80);
    let extended = findings.iter().map(|finding| finding.span.within(text.len())).map(|mut span| {
        // A UTF-8 character has at most four bytes. Longer sequences are invalid.
        for _ in 0..3 {
            span.start -= usize::from(span.start > 0 && inside(span.start));
            span.end += usize::from(inside(span.end));
        }
        span
    });
    merged(extended.filter(|span| !span.is_empty()))
}

fn mask(length: usize, word: &str, made: &mut Vec<u8>) {
    if length >= word.len() {
        made.extend_from_slice(word.as_bytes());
    } else {
        made.extend(std::iter::repeat_n(b'*', length));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::finding::{Detector, Pieces, Range64, Severity};

    fn at(start: usize, end: usize) -> Finding {
        Finding {
            span: Range64::at(0, &(start..end)),
            rule: "test".into(),
            detector: Detector::KnownSecrets,
            severity: Severity::Block,
            secret: None,
            pieces: Pieces::default(),
            preview: String::new(),
        }
    }

    fn without(text: &str, found: &str, shape: Shape) -> String {
        let start = text.find(found).expect("there");
        String::from_utf8(rewrite(text.as_bytes(), &[at(start, start + found.len())], shape)).expect("UTF-8")
    }

    #[test]
    fn removes_findings_only() {
        for (text, found, shape, left) in [
            ("key=abcdefghijkl;", "abcdefghijkl", Shape::Text, "key=[redacted];"),
            ("key=abcde;", "abcde", Shape::Text, "key=*****;"),
            ("q=abcdefghijkl&x=1", "abcdefghijkl", Shape::Url, "q=redacted&x=1"),
            (r#"{"a":"x abcdefghijkl"}"#, "abcdefghijkl", Shape::Json, r#"{"a":"x [redacted]"}"#),
            (
                r#"{"a":"abcdef","b":"ghijklmnop"}"#,
                r#"cdef","b":"ghij"#,
                Shape::Json,
                r#"{"a":"ab****","*":"****klmnop"}"#,
            ),
            (r#"{"a":12345678,"b":[1]}"#, "345", Shape::Json, r#"{"a":0,"b":[1]}"#),
            (r#"["\u0041bcdefghijk"]"#, "0041bcdefghijk", Shape::Json, r#"["[redacted]"]"#),
            ("{not json abcdefghijkl", "abcdefghijkl", Shape::Json, "{not json [redacted]"),
        ] {
            assert_eq!(without(text, found, shape), left, "{text}");
        }
    }

    proptest! {
        #[test]
        fn json_stays_json(
            map in prop::collection::btree_map(".{0,8}", ("\\PC{0,30}", any::<i64>()), 0..6),
            spans in prop::collection::vec((0_usize..200, 0_usize..40), 0..6),
        ) {
            let text = serde_json::to_string(&map).expect("JSON");
            let findings: Vec<Finding> = spans.iter().map(|(start, length)| at(*start, start + length)).collect();
            let made = rewrite(text.as_bytes(), &findings, Shape::Json);
            prop_assert!(made.len() <= text.len());
            prop_assert!(serde_json::from_slice::<serde_json::Value>(&made).is_ok(), "{}", String::from_utf8_lossy(&made));
        }

        #[test]
        fn no_bytes_panic(text in prop::collection::vec(any::<u8>(), 0..200), spans in prop::collection::vec((0_usize..300, 0_usize..300), 0..6)) {
            let findings: Vec<Finding> = spans.iter().map(|(one, other)| at(*one.min(other), *one.max(other))).collect();
            for shape in [Shape::Json, Shape::Url, Shape::Text] {
                prop_assert!(rewrite(&text, &findings, shape).len() <= text.len());
            }
        }
    }
}
