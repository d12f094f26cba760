//! Finds binary private keys. The supported formats are OpenPGP packets (RFC 9580), and DER in the formats PKCS #1,
//! PKCS #8 and SEC 1.
//!
//! The parser reads enough of each candidate to distinguish a private key from a public key. The length fields in a
//! candidate must be consistent, so that other data does not match.

use std::ops::Range;

/// The maximum length of a binary private key that is found, in bytes.
const MAX_KEY: usize = 32 << 10;
/// The minimum length of a binary private key that is found, in bytes.
const MIN_KEY: usize = 32;

/// Calls `found` with the rule, description and range of each private key in `text`. If the end of the text
/// truncates a key, the reported range includes the missing bytes.
pub(crate) fn find(text: &[u8], mut found: impl FnMut(&'static str, &'static str, Range<usize>)) {
    // Binary keys always contain non-ASCII bytes, and most texts are ASCII.
    if text.is_ascii() {
        return;
    }
    let starts = key_starts(text);
    let packets = [[0x94, 0x95, 0xc5], [0x9c, 0x9d, 0xc7]].into_iter();
    for at in packets.flat_map(|tags| starts.iter().filter(move |at| tags.contains(&text[**at]))) {
        if let Some(length) = openpgp(&text[*at..]) {
            found("pgp-private-key", "a binary PGP private key", *at..at + length);
        }
    }
    // Each of the three DER formats begins with one of these versions.
    let versions = [b"\x02\x01\x00", b"\x02\x01\x01"].into_iter();
    for at in versions.flat_map(|version| starts.iter().filter(move |at| text[**at..].starts_with(version))) {
        // An outer header of two to four bytes precedes the version.
        let mut whole = (2..=4).filter_map(|head| {
            let start = at.checked_sub(head)?;
            let (length, body) = der(&text[start..], 0x30)?;
            (body == head && is_private(&text[*at..], length)).then_some(start..at + length)
        });
        if let Some(range) = whole.next() {
            found("private-key-der", "a binary private key", range);
        }
    }
}

/// The size in bytes of the blocks in which keys are searched.
const BLOCK: usize = 64;
/// The number of bytes after the start of a key that [`may_start`] reads.
const AHEAD: usize = 6;

/// Returns the positions in `text` at which an OpenPGP packet or the version of a DER structure may begin, in order. Few
/// blocks of other data contain such a position.
fn key_starts(text: &[u8]) -> Vec<usize> {
    let mut starts = Vec::new();
    for at in (0..text.len()).step_by(BLOCK) {
        let rest = &text[at..];
        let mut padded = [0; BLOCK + AHEAD];
        let near = rest.first_chunk().unwrap_or_else(|| {
            // The bytes after the end of the text are zero. A key that the text truncates there is too short.
            padded[..rest.len()].copy_from_slice(rest);
            &padded
        });
        if may_start_within(near) {
            let end = rest.len().min(BLOCK);
            starts.extend((0..end).filter(|start| may_start(near, *start)).map(|start| at + start));
        }
    }
    starts
}

/// Returns whether a key may begin in the first bytes of `near`. This function has no branches, so that the compiler can
/// vectorize it.
fn may_start_within(near: &[u8; BLOCK + AHEAD]) -> bool {
    (0..BLOCK).fold(false, |any, at| any | may_start(near, at))
}

/// Returns whether the tag of an OpenPGP packet and its version, or the version of a DER structure, may be at `at`.
#[inline(always)]
fn may_start(near: &[u8; BLOCK + AHEAD], at: usize) -> bool {
    let tag = near[at];
    // The tags are 0x94, 0x95, 0x9c and 0x9d in the old format, and 0xc5 and 0xc7 in the new format.
    let is_packet = (tag & 0xf6 == 0x94) | (tag & 0xfd == 0xc5);
    // The length before the version has one, two or five bytes.
    let is_version = |place: usize| near[at + place].wrapping_sub(4) < 3;
    let is_der = (tag == 2) & (near[at + 1] == 1) & (near[at + 2] < 2);
    is_packet & (is_version(2) | is_version(3) | is_version(6)) | is_der
}

/// Returns the length of the secret key packet or secret subkey packet at the start of `text`.
fn openpgp(text: &[u8]) -> Option<usize> {
    let (length, head) = match text {
        [0x94 | 0x9c, length, ..] => (usize::from(*length), 2),
        [0x95 | 0x9d, high, low, ..] => (usize::from(u16::from_be_bytes([*high, *low])), 3),
        [0xc5 | 0xc7, length @ 0..192, ..] => (usize::from(*length), 2),
        [0xc5 | 0xc7, high @ 192..224, low, ..] => {
            ((usize::from(*high) - 192) * 256 + usize::from(*low) + 192, 3)
        }
        [0xc5 | 0xc7, 255, 0, 0, high, low, ..] => (usize::from(u16::from_be_bytes([*high, *low])), 6),
        _ => return None,
    };
    let mut body = Reader(&text[head..]);
    let version = body.byte()?;
    let made = body.byte()?;
    let (_, kind) = (body.take(3)?, body.byte()?);
    // The first byte of the creation time must be in the range of 1990 to 2080.
    let fits =
        matches!(version, 4..=6) && matches!(made, 0x26..=0xcf) && (MIN_KEY..=MAX_KEY).contains(&length);
    if !fits {
        return None;
    }
    if version > 4 {
        body.take(4)?;
    }
    let public = match kind {
        1..=3 => (0..2).try_for_each(|_| body.number()),
        16 => (0..3).try_for_each(|_| body.number()),
        17 => (0..4).try_for_each(|_| body.number()),
        18 | 19 | 22 => body.curve().and_then(|()| body.number()).and_then(|()| {
            if kind == 18 {
                body.byte().and_then(|length| body.take(usize::from(length)).map(drop))
            } else {
                Some(())
            }
        }),
        25..=28 => body.take(native_size(kind)).map(drop),
        _ => return None,
    };
    public?;
    // The next byte says whether the private part is unprotected or protected by a passphrase.
    let protection = body.byte()?;
    let secret = (head + length).checked_sub(text.len() - body.0.len())?;
    let kept = match kind {
        25..=28 => body.native_secret(version, protection, native_size(kind), secret)?,
        _ => matches!(protection, 0 | 253..=255),
    };
    // Only a user id, signature or subkey packet may follow.
    let next = text.get(head + length).is_none_or(|next| match next {
        0x80..=0xbf => matches!(next >> 2 & 15, 2 | 7 | 13),
        _ => matches!(next, 0xc2 | 0xc7 | 0xcd),
    });
    (kept && next).then_some(head + length)
}

/// Returns the size in bytes of a key for X25519, X448, Ed25519 or Ed448 (RFC 9580, section 5.5.5). The public part and
/// the secret part of such a key have the same size.
fn native_size(kind: u8) -> usize {
    match kind {
        25 | 27 => 32,
        26 => 56,
        _ => 57,
    }
}

/// Reads the fields of an OpenPGP packet.
struct Reader<'t>(&'t [u8]);

impl<'t> Reader<'t> {
    fn take(&mut self, length: usize) -> Option<&'t [u8]> {
        let (now, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(now)
    }

    fn byte(&mut self) -> Option<u8> {
        Some(*self.take(1)?.first()?)
    }

    /// Reads a multiprecision integer, and checks its bit length, which precedes the number.
    fn number(&mut self) -> Option<()> {
        let bits = usize::from(u16::from_be_bytes(*self.take(2)?.first_chunk()?));
        let first = *self.take(bits.div_ceil(8))?.first()?;
        let highest = 8 - first.leading_zeros() as usize;
        // The bit length of a point in a native encoding may be off by some bits.
        (bits <= 16_384 && first != 0 && (bits - 1) % 8 < highest + 1).then_some(())
    }

    /// Returns whether a secret part of `length` bytes fits a key of `size` bytes. The public part of such a key has no
    /// numbers with a bit length to check. Without this check, one position in 500 MB of random bytes would match.
    fn native_secret(&mut self, version: u8, protection: u8, size: usize, length: usize) -> Option<bool> {
        if protection == 0 {
            // A version 4 packet ends with a checksum of two bytes.
            return Some(length == size + if version == 4 { 2 } else { 0 });
        }
        // A version 6 packet has a length byte before all parameters, and another one before the parameters of the key
        // derivation.
        let lengths = usize::from(version == 6);
        self.take(lengths)?;
        let cipher = self.byte()?;
        let mode = if protection == 253 { self.byte()? } else { 1 };
        self.take(lengths)?;
        let (derivation, hash) = (self.byte()?, self.byte()?);
        // Argon2 (number 4) has no hash algorithm.
        let derived = derivation == 4 || matches!(derivation, 0 | 1 | 3) && matches!(hash, 1..=14);
        // The sizes of the parameters, the nonce and the authentication tag add up to this range.
        let added = length.checked_sub(size).is_some_and(|added| (12..=64).contains(&added));
        let known = matches!(protection, 253..=255) && matches!(cipher, 1..=13) && matches!(mode, 1..=3);
        Some(known && derived && added)
    }

    /// Reads the object identifier (OID) of an elliptic curve.
    fn curve(&mut self) -> Option<()> {
        let length = usize::from(self.byte()?);
        let name = self.take(length)?;
        ((4..=12).contains(&length) && matches!(name[0], 0x2a | 0x2b)).then_some(())
    }
}

/// Returns the lengths of the content and of the header of the DER element at the start of `text`. Returns `None` if
/// the tag of the element is not `kind`.
fn der(text: &[u8], kind: u8) -> Option<(usize, usize)> {
    match text {
        [first, length @ 0..=0x7f, ..] if *first == kind => Some((usize::from(*length), 2)),
        [first, 0x81, length @ 0x80..=0xff, ..] if *first == kind => Some((usize::from(*length), 3)),
        [first, 0x82, high @ 1..=0xff, low, ..] if *first == kind => {
            Some((usize::from(u16::from_be_bytes([*high, *low])), 4))
        }
        _ => None,
    }
}

/// Returns whether `text` looks like a private key. `text` begins with the content of a DER element, which has `length`
/// bytes.
fn is_private(text: &[u8], length: usize) -> bool {
    if !(MIN_KEY..=MAX_KEY).contains(&length) {
        return false;
    }
    let Some(rest) = text.get(3..) else { return false };
    // In PKCS #8, an algorithm identifier and the key follow the version.
    if let Some((inner, head)) = der(rest, 0x30) {
        let named = rest.get(head) == Some(&0x06);
        let key = rest.get(head + inner..).and_then(|key| der(key, 0x04));
        return named && key.is_some_and(|(key, _)| key >= MIN_KEY && key < length);
    }
    // In SEC 1, the key follows the version, and then the curve or the public key.
    if text[2] == 1 {
        return der(rest, 0x04).is_some_and(|(key, head)| {
            (28..=66).contains(&key) && matches!(rest.get(head + key), Some(0xa0 | 0xa1))
        });
    }
    // In PKCS #1, the modulus, the small public exponent and the large private exponent follow the version.
    let Some((modulus, head)) = der(rest, 0x02) else { return false };
    let Some((small, next)) = rest.get(head + modulus..).and_then(|rest| der(rest, 0x02)) else {
        return false;
    };
    let large = rest.get(head + modulus + next + small..).and_then(|rest| der(rest, 0x02));
    modulus >= 64
        && (1..=8).contains(&small)
        && large.is_some_and(|(large, _)| large + 8 >= modulus && large <= modulus)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ids(text: &[u8]) -> Vec<(&'static str, Range<usize>)> {
        let mut ids = Vec::new();
        find(text, |id, _, range| ids.push((id, range)));
        ids
    }

    /// The public part of an OpenPGP Ed25519 key, without the packet length and without the point.
    const PUBLIC: &[u8] = b"\x04\x6b\x04\x1d\xb9\x16\x09\x2b\x06\x01\x04\x01\xda\x47\x0f\x01\x01\x07\x40";

    #[test]
    fn finds_secret_packets_and_no_public_ones() {
        let secret = [PUBLIC, &[0x57; 32], b"\x00\x00\xff", &[0x91; 34]].concat();
        for (mark, expected) in
            [(&[0x94, 0x58][..], 1), (&[0xc5, 0x58], 1), (&[0x9c, 0x58], 1), (&[0x98, 0x58], 0)]
        {
            let text = [b"some text \xc3\xa9", mark, &secret, b"\xb4\x03abc"].concat();
            assert_eq!(ids(&text).len(), expected, "{mark:02x?}");
        }
    }

    /// Builds a secret key packet for Ed25519 (RFC 9580) with the secret part `secret`.
    fn ed25519(version: u8, secret: &[u8]) -> Vec<u8> {
        let count: &[u8] = if version == 6 { &[0, 0, 0, 32] } else { &[] };
        let body = [&[version, 0x6b, 4, 0x1d, 0xb9, 27], count, &[0x57; 32], secret].concat();
        [b"some text \xc3\xa9\xc5", &[u8::try_from(body.len()).expect("short")][..], &body, b"\xcd\x03abc"]
            .concat()
    }

    #[test]
    fn finds_keys_without_numbers_only_if_their_lengths_fit() {
        let key = [0x91; 32];
        let iterated: &[u8] = &[9, 3, 8, 1, 2, 3, 4, 5, 6, 7, 8, 96];
        for (version, secret, expected) in [
            (4, [&[0][..], &key, &[1, 2]].concat(), 1),
            (4, [&[0][..], &key].concat(), 0),
            (6, [&[0][..], &key].concat(), 1),
            (6, [&[0][..], &key, &[1, 2]].concat(), 0),
            (4, [&[254][..], iterated, &[7; 16], &key, &[8; 20]].concat(), 1),
            (4, [&[254][..], iterated, &[7; 16], &key, &[8; 60]].concat(), 0),
            (4, [&[254, 99][..], &iterated[1..], &[7; 16], &key, &[8; 20]].concat(), 0),
            (4, [&[254, 9, 99][..], &iterated[2..], &[7; 16], &key, &[8; 20]].concat(), 0),
            // Argon2 as key derivation and OCB as cipher mode.
            (6, [&[253, 38, 9, 2, 20, 4][..], &[5; 16], &[1, 4, 21], &[7; 15], &key, &[8; 16]].concat(), 1),
        ] {
            assert_eq!(ids(&ed25519(version, &secret)).len(), expected, "{version} {secret:02x?}");
        }
    }

    #[test]
    fn finds_der_of_private_keys_only() {
        let pkcs8 = [b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20", &[0x91_u8; 32][..]]
            .concat();
        assert_eq!(ids(&[b"abc", &pkcs8[..], b"xyz"].concat()), [("private-key-der", 3..51)]);
        let public = [b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00", &[0x91_u8; 32][..]].concat();
        assert_eq!(ids(&public), []);
        let request =
            [b"\x30\x81\x90\x02\x01\x00\x30\x10\x31\x0e\x30\x0c\x06\x03\x55", &[0x91_u8; 200][..]].concat();
        assert_eq!(ids(&request), []);
    }

    proptest! {
        #[test]
        fn each_packet_and_version_is_a_start(
            text in prop::collection::vec(prop::sample::select(vec![0x94_u8, 0x95, 0x9c, 0x9d, 0xc5, 0xc7, 255, 0, 1, 2, 4, 6, 0x58, 0x80]), 0..300),
        ) {
            let starts = key_starts(&text);
            for at in 0..text.len() {
                let rest = &text[at..];
                let is_version = |place: usize| matches!(rest.get(place), Some(4..=6));
                let is_key = match rest {
                    [0x94 | 0x9c, ..] => is_version(2),
                    [0x95 | 0x9d, ..] => is_version(3),
                    [0xc5 | 0xc7, 255, ..] => is_version(6),
                    [0xc5 | 0xc7, 192..=254, ..] => is_version(3),
                    [0xc5 | 0xc7, ..] => is_version(2),
                    _ => matches!(rest, [2, 1, 0 | 1, ..]),
                };
                prop_assert!(!is_key || starts.contains(&at), "{} {:?}", at, starts);
            }
        }

        #[test]
        fn random_bytes_are_not_keys(text in prop::collection::vec(any::<u8>(), 0..4000)) {
            prop_assert_eq!(ids(&text), []);
        }

        #[test]
        fn no_bytes_panic(text in prop::collection::vec(prop::sample::select(vec![0x94_u8, 0x95, 0xc5, 4, 0x6b, 1, 22, 0x30, 0x82, 2, 0, 6, 0x2b]), 0..600)) {
            let _ = ids(&text);
        }
    }
}
