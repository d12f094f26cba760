//! Canonical queries: one spelling of each character. Nothing is removed or reordered.

use std::borrow::Cow;

use super::path::{encode, is_unreserved, triplet};

/// Converts a query without its `?` to canonical form. Idempotent. Borrows a query that is already canonical.
#[must_use]
pub fn query(raw: &str) -> Cow<'_, str> {
    if raw.bytes().all(|byte| byte != b'%' && is_query_byte(byte)) {
        return Cow::Borrowed(raw);
    }
    let bytes = raw.as_bytes();
    let mut text = String::with_capacity(raw.len() + 16);
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        match (byte, triplet(bytes, at)) {
            (b'%', Some(decoded)) => {
                at += 2;
                if is_unreserved(decoded) {
                    text.push(char::from(decoded))
                } else {
                    encode(&mut text, decoded)
                }
            }
            (plain, _) if plain != b'%' && is_query_byte(plain) => text.push(char::from(plain)),
            (other, _) => encode(&mut text, other),
        }
    }
    Cow::Owned(text)
}

/// Bytes that clients send unencoded in a query by the WHATWG rules.
fn is_query_byte(byte: u8) -> bool {
    byte.is_ascii_graphic() && !matches!(byte, b'"' | b'#' | b'<' | b'>')
}

/// Returns the form-decoded key-value pairs of a query. Both `&` and `;` separate pairs, because some servers split at
/// `;`.
pub fn decoded_pairs(query: &str) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
    query.split(['&', ';']).filter(|pair| !pair.is_empty()).map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decoded(key), decoded(value))
    })
}

fn decoded(part: &str) -> Cow<'_, str> {
    if part.bytes().all(|byte| byte != b'%' && byte != b'+') {
        return Cow::Borrowed(part);
    }
    let spaced = part.replace('+', " ");
    Cow::Owned(percent_encoding::percent_decode_str(&spaced).decode_utf8_lossy().into_owned())
}
