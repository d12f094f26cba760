//! Parses the objects that a fetch of protocol version 2 wants (gitprotocol-v2(5), "fetch").
//!
//! git serves any object that the mirror has. An object that no ref of the upstream reaches may be missing in the
//! mirror, but the upstream may still serve the object.

use std::collections::HashSet;

use crate::push_head::{DIGITS, length};

/// Returns whether a request that begins with `first` is for `fetch`.
pub(crate) fn is_fetch(first: &[u8]) -> bool {
    first.get(DIGITS..).is_some_and(|words| words.starts_with(b"command=fetch"))
}

/// Parses the ids of the wanted objects in the packet lines of a request. Ignores all lines after a malformed line.
pub(crate) fn wanted_ids(mut bytes: &[u8]) -> HashSet<&str> {
    let mut wanted = HashSet::new();
    while let Some(length) = bytes.get(..DIGITS).and_then(length) {
        let end = length.max(DIGITS);
        let Some(line) = bytes.get(DIGITS..end) else { break };
        bytes = &bytes[end..];
        let id = line.strip_suffix(b"\n").unwrap_or(line).strip_prefix(b"want ");
        wanted.extend(id.and_then(|id| std::str::from_utf8(id).ok()).filter(|id| is_id(id)));
    }
    wanted
}

/// Returns whether a text is a complete SHA-1 or SHA-256 object id.
fn is_id(text: &str) -> bool {
    [40, 64].contains(&text.len()) && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_the_wanted_ids() {
        let (one, two) = ("1".repeat(40), "2".repeat(64));
        let request = format!(
            "0011command=fetch0001000dthin-pack0032want {one}\n0049want {two}0032have {}\n0010want --all\n0000",
            "3".repeat(40)
        );
        assert!(is_fetch(request.as_bytes()));
        assert!(!is_fetch(b"0014command=ls-refs\n"));
        assert_eq!(wanted_ids(request.as_bytes()), HashSet::from([one.as_str(), two.as_str()]));
        // One request is truncated, and the others are malformed.
        assert_eq!(wanted_ids(&request.as_bytes()[..90]), HashSet::from([one.as_str()]));
        for bytes in [&b""[..], b"00", b"zzzzwant", b"ffff", b"000awant \xff"] {
            assert!(wanted_ids(bytes).is_empty(), "{bytes:?}");
        }
    }
}
