//! Lists the spellings of a secret. A spelling is a form in which a text may contain the secret, such as
//! percent-encoding or base64.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use zeroize::Zeroizing;

/// One spelling of a secret. Its memory is wiped when it is dropped.
pub(crate) type Form = Zeroizing<Vec<u8>>;

/// The minimum length of a wrapped line that is a spelling. A shorter last line would match by chance.
const WRAPPED_LEAST: usize = 16;

/// The characters that a strict percent-encoding encodes: all except the unreserved characters of RFC 3986.
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// The characters that `encodeURIComponent` encodes.
const COMPONENT: &AsciiSet = &UNRESERVED.remove(b'!').remove(b'\'').remove(b'(').remove(b')').remove(b'*');
/// The characters that `encodeURI` encodes in a complete path or query.
const URI: &AsciiSet = &COMPONENT
    .remove(b';')
    .remove(b'/')
    .remove(b'?')
    .remove(b':')
    .remove(b'@')
    .remove(b'&')
    .remove(b'=')
    .remove(b'+')
    .remove(b'$')
    .remove(b',')
    .remove(b'#');

/// Returns the unencoded spelling.
pub(crate) fn plain(secret: &str) -> Form {
    Zeroizing::new(secret.as_bytes().to_vec())
}

/// Returns all spellings of a secret, without duplicates: unencoded, percent-encoded, escaped for JSON and debug
/// output, in hexadecimal, and in base64 as part of a longer encoded text.
pub(crate) fn all(secret: &str) -> Vec<Form> {
    let mut forms = vec![plain(secret)];
    percent(secret, &mut forms);
    escaped(secret, &mut forms);
    forms.push(Zeroizing::new(hex::encode(secret).into_bytes()));
    forms.push(Zeroizing::new(hex::encode_upper(secret).into_bytes()));
    for engine in [&STANDARD, &URL_SAFE] {
        forms.push(Zeroizing::new(engine.encode(secret).into_bytes()));
        forms.extend((0..3).map(|offset| within_base64(secret.as_bytes(), offset, engine)));
    }
    wrapped(secret, &mut forms);
    forms.sort_unstable_by(|one, other| one.as_slice().cmp(other.as_slice()));
    forms.dedup();
    forms
}

/// Adds the lines of a longer secret in base64 and hexadecimal, as common programs wrap them: `base64` after 76
/// characters, `openssl` after 64, `xxd -p` after 60.
fn wrapped(secret: &str, forms: &mut Vec<Form>) {
    let base64 = within_base64(secret.as_bytes(), 0, &STANDARD);
    let hex = Zeroizing::new(hex::encode(secret).into_bytes());
    for (text, width) in [(&base64, 76), (&base64, 64), (&hex, 60)] {
        let lines = text.chunks(width).filter(|line| text.len() > width && line.len() >= WRAPPED_LEAST);
        forms.extend(lines.map(|line| Zeroizing::new(line.to_vec())));
    }
}

/// Returns the spellings of a complete text that a `View` does not decode to this text: percent-encoded, and escaped
/// for JSON, debug output and HTML.
pub(crate) fn written(text: &str) -> Vec<Form> {
    let mut forms = Vec::new();
    percent(text, &mut forms);
    escaped(text, &mut forms);
    forms.push(html(text));
    forms.sort_unstable_by(|one, other| one.as_slice().cmp(other.as_slice()));
    forms.dedup();
    forms
}

/// Encodes `bytes` as one large number in base 58 with Bitcoin's alphabet. Returns `None` for more than 128 bytes,
/// because base 58 is not used for long data.
pub(crate) fn base58(bytes: &[u8]) -> Option<Form> {
    const ALPHABET: &[u8; 58] = b"123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
    const LONGEST: usize = 128;
    if bytes.len() > LONGEST {
        return None;
    }
    // The digits of the number, the lowest digit first.
    let mut digits: Zeroizing<Vec<u8>> = Zeroizing::new(Vec::with_capacity(bytes.len() * 2));
    for byte in bytes {
        let mut carry = u32::from(*byte);
        for digit in digits.iter_mut() {
            carry += u32::from(*digit) << 8;
            *digit = u8::try_from(carry % 58).unwrap_or_default();
            carry /= 58;
        }
        while carry > 0 {
            digits.push(u8::try_from(carry % 58).unwrap_or_default());
            carry /= 58;
        }
    }
    Some(Zeroizing::new(digits.iter().rev().map(|digit| ALPHABET[usize::from(*digit)]).collect()))
}

fn html(secret: &str) -> Form {
    let escaped = Zeroizing::new(secret.replace('&', "&amp;"));
    let escaped = Zeroizing::new(escaped.replace('<', "&lt;"));
    let escaped = Zeroizing::new(escaped.replace('>', "&gt;"));
    let escaped = Zeroizing::new(escaped.replace('"', "&quot;"));
    Zeroizing::new(escaped.replace('\'', "&#39;").into_bytes())
}

fn percent(secret: &str, forms: &mut Vec<Form>) {
    for set in [NON_ALPHANUMERIC, UNRESERVED, COMPONENT, URI] {
        let upper = Zeroizing::new(percent_encode(secret.as_bytes(), set).to_string());
        let form = Zeroizing::new(upper.replace("%20", "+"));
        for text in [&upper, &form] {
            forms.push(Zeroizing::new(text.as_bytes().to_vec()));
            forms.push(lower_triplets(text));
        }
    }
}

/// Converts the percent-encoded bytes in `text`, such as `%2F`, to lower case. All other letters keep their case.
fn lower_triplets(text: &str) -> Form {
    let mut bytes = Zeroizing::new(text.as_bytes().to_vec());
    let mut at = 0;
    while at < bytes.len() {
        let triplet = bytes[at] == b'%';
        if triplet {
            let end = bytes.len().min(at + 3);
            bytes[at..end].make_ascii_lowercase();
        }
        at += if triplet { 3 } else { 1 };
    }
    bytes
}

fn escaped(secret: &str, forms: &mut Vec<Form>) {
    let json = Zeroizing::new(serde_json::to_string(secret).expect("a string serializes"));
    // The JSON string without the surrounding quotes.
    let inner = &json[1..json.len() - 1];
    forms.push(Zeroizing::new(inner.as_bytes().to_vec()));
    forms.push(Zeroizing::new(inner.replace('/', "\\/").into_bytes()));
    forms.push(Zeroizing::new(ascii_json(secret).into_bytes()));
    forms.push(Zeroizing::new(secret.escape_debug().to_string().into_bytes()));
}

/// Escapes a secret for JSON. All non-ASCII characters are escaped with `\u`.
fn ascii_json(secret: &str) -> String {
    let mut text = String::with_capacity(secret.len());
    for unit in secret.encode_utf16() {
        match u8::try_from(unit) {
            Ok(b'"') => text.push_str("\\\""),
            Ok(b'\\') => text.push_str("\\\\"),
            Ok(byte @ b' '..=b'~') => text.push(char::from(byte)),
            _ => text.push_str(&format!("\\u{unit:04x}")),
        }
    }
    text
}

/// Returns the base64 characters of the secret within a longer encoded text. In this text, `offset` bytes (modulo
/// three) precede the secret. Characters that also depend on the adjacent bytes are left out.
fn within_base64(secret: &[u8], offset: usize, engine: &impl Engine) -> Form {
    let mut padded = Zeroizing::new(vec![0; offset]);
    padded.extend_from_slice(secret);
    let encoded = Zeroizing::new(engine.encode(padded.as_slice()));
    let first = (8 * offset).div_ceil(6);
    let end = 8 * padded.len() / 6;
    Zeroizing::new(encoded.as_bytes()[first.min(end)..end].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_the_spellings_of_common_clients() {
        let forms = all("pa/ss w\"ö+1");
        for spelling in [
            "pa/ss w\"ö+1",
            "pa%2Fss%20w%22%C3%B6%2B1",
            "pa%2fss%20w%22%c3%b6%2b1",
            "pa%2Fss+w%22%C3%B6%2B1",
            "pa/ss%20w%22%C3%B6+1",
            "pa/ss w\\\"ö+1",
            "pa\\/ss w\\\"ö+1",
            "pa/ss w\\\"\\u00f6+1",
            "70612f73732077",
            "cGEvc3Mgdy",
        ] {
            assert!(forms.iter().any(|form| form.starts_with(spelling.as_bytes())), "{spelling}");
        }
    }

    #[test]
    fn base64_is_found_at_every_alignment() {
        let secret = "correct-horse-battery";
        let forms = all(secret);
        for before in ["", "a", "ab", "abc", "user:"] {
            for after in ["", "z", "zy", "zyx"] {
                for engine in [&STANDARD, &URL_SAFE] {
                    let text = engine.encode(format!("{before}{secret}{after}"));
                    let found = forms.iter().any(|form| {
                        form.len() > 20
                            && text.as_bytes().windows(form.len()).any(|window| window == form.as_slice())
                    });
                    assert!(found, "{before} {after} {text}");
                }
            }
        }
    }
}
