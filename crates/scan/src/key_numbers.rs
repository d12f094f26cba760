//! Locates the private numbers in the bytes of a PEM key.
//!
//! About half of a PEM private key is the corresponding public key: the modulus in RSA, or the point on an elliptic
//! curve. An agent that knows the public key must not be able to extend it to the private key by guessing one character
//! after another.

use std::ops::Range;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

/// The maximum nesting of structures that are searched for numbers. A key in PKCS #8 needs three levels.
const MAX_DEPTH: usize = 8;
/// The minimum length of a private number in bytes. Shorter numbers are versions and exponents.
const SHORTEST: usize = 16;
/// The number of fields in an RSAPrivateKey (RFC 8017, A.1.2): version, modulus, public exponent, and six
/// private fields.
const RSA_FIELDS: usize = 9;

/// Returns the ranges of the private bytes in a key. `body` is the base64 text of the key, and the ranges refer to the
/// decoded bytes. The result is empty if the key's format is unknown.
pub(crate) fn private(body: &str) -> Vec<Range<usize>> {
    let Ok(bytes) = STANDARD.decode(body).map(Zeroizing::new) else { return Vec::new() };
    if bytes.starts_with(b"openssh-key-v1\0") {
        return openssh(&bytes).unwrap_or_default();
    }
    let mut found = Found::default();
    der(&bytes, 0..bytes.len(), 0, &mut found);
    match found.rsa {
        Some(private) => private,
        // In other formats, the last number is the private scalar or seed of an elliptic-curve key, or a complete
        // encrypted key.
        None => found.last.into_iter().collect(),
    }
}

#[derive(Default)]
struct Found {
    rsa: Option<Vec<Range<usize>>>,
    last: Option<Range<usize>>,
}

/// Walks over DER elements (X.690) and collects the numbers. Returns whether `range` consists of valid
/// elements.
fn der(bytes: &[u8], range: Range<usize>, depth: usize, found: &mut Found) -> bool {
    let Some(elements) = elements(bytes, range) else { return false };
    let numbers: Vec<&(u8, Range<usize>)> = elements.iter().filter(|(tag, _)| *tag == 2).collect();
    if numbers.len() == RSA_FIELDS {
        let private = numbers[3..].iter().map(|(_, place)| place.clone());
        found.rsa = Some(private.filter(|place| place.len() >= SHORTEST).collect());
        return true;
    }
    for (tag, place) in &elements {
        let inner = place.clone();
        match tag {
            // A SEQUENCE. If it contains explicit curve parameters, which are not private, the private number follows
            // and replaces them in `found.last`.
            0x30 if depth < MAX_DEPTH => {
                der(bytes, inner, depth + 1, found);
            }
            // An OCTET STRING contains another structure or a number. Fields with context-specific tags, such as the
            // public key, are skipped.
            0x04 if depth < MAX_DEPTH
                && place.len() >= SHORTEST
                && der(bytes, inner.clone(), depth + 1, found) => {}
            0x02 | 0x04 if place.len() >= SHORTEST => found.last = Some(inner),
            _ => {}
        }
    }
    true
}

/// Returns the tag and the content range of each DER element. Returns `None` if the elements do not fill `range`
/// exactly.
fn elements(bytes: &[u8], range: Range<usize>) -> Option<Vec<(u8, Range<usize>)>> {
    let mut all = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let (tag, first) = (*bytes.get(at)?, usize::from(*bytes.get(at + 1)?));
        at += 2;
        let mut length = first;
        if first >= 0x80 {
            let digits =
                bytes.get(at..at + (first & 0x7f)).filter(|digits| (1..=3).contains(&digits.len()))?;
            length = digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit));
            at += digits.len();
        }
        let end = at.checked_add(length).filter(|end| *end <= range.end)?;
        all.push((tag, at..end));
        at = end;
    }
    (!all.is_empty()).then_some(all)
}

/// Reads OpenSSH's key format (PROTOCOL.key). A key in this format consists of names, the public key, and a section
/// with a copy of the public key and the private key.
fn openssh(bytes: &[u8]) -> Option<Vec<Range<usize>>> {
    let mut at = b"openssh-key-v1\0".len();
    let cipher = string(bytes, &mut at)?;
    let (_derivation, _options) = (string(bytes, &mut at)?, string(bytes, &mut at)?);
    at += 4;
    let _public = string(bytes, &mut at)?;
    let section = string(bytes, &mut at)?;
    if &bytes[cipher] != b"none" {
        return Some(vec![section]);
    }
    let mut at = section.start + 8;
    let kind = string(bytes, &mut at)?;
    let mut next = |count: usize| (0..count).map(|_| string(bytes, &mut at)).collect::<Option<Vec<_>>>();
    match &bytes[kind] {
        b"ssh-rsa" => next(6).map(|fields| fields[2..].to_vec()),
        // The last field of an Ed25519 key consists of the private seed and the public key.
        b"ssh-ed25519" => next(2).map(|fields| {
            fields[1..].iter().map(|field| field.start..field.end.min(field.start + 32)).collect()
        }),
        kind if kind.starts_with(b"ecdsa-") => next(3).map(|fields| fields[2..].to_vec()),
        b"ssh-dss" => next(5).map(|fields| fields[4..].to_vec()),
        _ => None,
    }
}

/// Reads a string that is preceded by its length in four bytes.
fn string(bytes: &[u8], at: &mut usize) -> Option<Range<usize>> {
    let length = bytes.get(*at..*at + 4)?.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
    let start = *at + 4;
    let end = start.checked_add(length).filter(|end| *end <= bytes.len())?;
    *at = end;
    Some(start..end)
}
