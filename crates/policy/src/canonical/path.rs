//! Canonical paths: no dot segments, one spelling of each character, ambiguous paths marked.

use std::borrow::Cow;

/// A path in canonical form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path<'a> {
    /// The text of the path. Begins with `/` (or is `*`, for `OPTIONS`), and contains only ASCII. Every `%` is followed
    /// by two upper-case hex digits and encodes a character that is not unreserved. No segment is `.` or `..`.
    pub text: Cow<'a, str>,
    /// The first reason why servers may interpret the path differently, if any.
    pub ambiguous: Option<Ambiguous>,
}

/// Why a canonical path has more than one interpretation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ambiguous {
    /// The path does not begin with a slash.
    NotAbsolute,
    /// `//`: some servers treat it as one slash.
    DoubledSlash,
    /// `%2F` or `%5C`: some servers treat it as a path separator.
    EncodedSlash,
    /// `;` or `%3B`: some servers ignore the rest of the segment.
    Parameter,
    /// A segment ends in a dot or a space: some servers ignore that character.
    TrailingDot,
    /// An encoded control character, such as NUL: some servers end the path there.
    Control,
    /// `%25` before two hex digits: some servers decode twice.
    DoubleEncoded,
    /// A `%` without two hex digits.
    InvalidEncoding,
    /// The decoded bytes are not UTF-8. Such bytes include overlong encodings of `.` and `/`.
    InvalidUtf8,
}

impl Ambiguous {
    /// Describes the ambiguity, as a sentence fragment after "the path".
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotAbsolute => "does not begin with `/`",
            Self::DoubledSlash => "has two slashes in a row",
            Self::EncodedSlash => "has an encoded slash or backslash",
            Self::Parameter => "has a `;` parameter",
            Self::TrailingDot => "has a segment that ends in a dot or space",
            Self::Control => "has an encoded control character",
            Self::DoubleEncoded => "is percent-encoded twice",
            Self::InvalidEncoding => "has a `%` without two hex digits",
            Self::InvalidUtf8 => "has bytes that are not UTF-8",
        }
    }
}

/// Converts a path without its query to canonical form. Idempotent. Borrows a path that is already canonical.
///
/// Like browsers, the function converts backslashes to slashes and resolves dot segments. It decodes encoded
/// unreserved characters and encodes characters that a path does not allow.
#[must_use]
pub fn path(raw: &str) -> Path<'_> {
    if is_plain(raw) {
        return Path { text: Cow::Borrowed(raw), ambiguous: None };
    }
    if raw == "*" {
        return Path { text: Cow::Borrowed(raw), ambiguous: Some(Ambiguous::NotAbsolute) };
    }
    let (spelled, valid) = respell(raw);
    let absolute = spelled.is_empty() || spelled.starts_with('/');
    let text = resolve_dots(&spelled);
    let ambiguous = if !absolute {
        Some(Ambiguous::NotAbsolute)
    } else if !valid {
        Some(Ambiguous::InvalidEncoding)
    } else {
        ambiguity(&text)
    };
    Path { text: Cow::Owned(text), ambiguous }
}

/// Normalizes the encoding of each character. Returns the new text, and false if a `%` is not followed by two hex
/// digits. The function encodes such a `%`, so that it cannot form a triplet with later characters.
fn respell(raw: &str) -> (String, bool) {
    let mut text = String::with_capacity(raw.len() + 16);
    let mut valid = true;
    let bytes = raw.as_bytes();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        match byte {
            b'%' => match triplet(bytes, at) {
                Some(decoded) => {
                    at += 2;
                    if is_unreserved(decoded) {
                        text.push(char::from(decoded))
                    } else {
                        encode(&mut text, decoded)
                    }
                }
                None => {
                    valid = false;
                    encode(&mut text, b'%');
                }
            },
            b'\\' => text.push('/'),
            plain if is_path_byte(plain) => text.push(char::from(plain)),
            other => encode(&mut text, other),
        }
    }
    (text, valid)
}

/// Decodes the two hex digits at `at`.
pub(super) fn triplet(bytes: &[u8], at: usize) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(*bytes.get(at)?)? << 4 | digit(*bytes.get(at + 1)?)?)
}

/// Appends `byte` in percent-encoding.
pub(super) fn encode(text: &mut String, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    text.push('%');
    text.push(char::from(DIGITS[usize::from(byte >> 4)]));
    text.push(char::from(DIGITS[usize::from(byte & 15)]));
}

/// RFC 3986 unreserved characters, which have the same meaning encoded and unencoded.
pub(super) fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

fn is_path_byte(byte: u8) -> bool {
    is_unreserved(byte)
        || matches!(
            byte,
            b'/' | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b';' | b'=' | b':' | b'@'
        )
}

/// Removes `.` and `..` segments. A `..` at the root is dropped.
fn resolve_dots(spelled: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = spelled.strip_prefix('/').unwrap_or(spelled).split('/').peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        match segment {
            "." | ".." => {
                if segment == ".." {
                    kept.pop();
                }
                if last {
                    kept.push("");
                }
            }
            other => kept.push(other),
        }
    }
    let mut text = String::with_capacity(spelled.len() + 1);
    for segment in kept {
        text.push('/');
        text.push_str(segment);
    }
    text
}

/// Finds an ambiguity in a path whose encoding is already normalized.
fn ambiguity(text: &str) -> Option<Ambiguous> {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        if byte != b'%' {
            if byte == b';' {
                return Some(Ambiguous::Parameter);
            }
            if byte == b'/' && bytes.get(at) == Some(&b'/') {
                return Some(Ambiguous::DoubledSlash);
            }
            decoded.push(byte);
            continue;
        }
        let value = triplet(bytes, at)?;
        at += 2;
        match value {
            b'/' | b'\\' => return Some(Ambiguous::EncodedSlash),
            b';' => return Some(Ambiguous::Parameter),
            b'%' if triplet(bytes, at).is_some() => return Some(Ambiguous::DoubleEncoded),
            0..0x20 | 0x7F => return Some(Ambiguous::Control),
            other => decoded.push(other),
        }
    }
    // No encoded separator remains here, so the decoded text has the same segments as the path.
    if decoded.split(|b| *b == b'/').any(|segment| matches!(segment.last(), Some(b'.' | b' '))) {
        return Some(Ambiguous::TrailingDot);
    }
    std::str::from_utf8(&decoded).is_err().then_some(Ambiguous::InvalidUtf8)
}

/// Whether `raw` is canonical and unambiguous. The check does not allocate, and accepts nearly every API path.
fn is_plain(raw: &str) -> bool {
    let bytes = raw.as_bytes();
    if bytes.first() != Some(&b'/') {
        return false;
    }
    let mut before = 0;
    for &byte in bytes {
        let plain = is_path_byte(byte) && byte != b';';
        let doubtful = match byte {
            b'/' => before == b'/' || before == b'.',
            b'.' => before == b'/',
            _ => false,
        };
        if !plain || doubtful {
            return false;
        }
        before = byte;
    }
    before != b'.'
}
