//! What a forge's answers say. They come from outside: whatever they are, reading them ends.

use bottle_contract::terminal::inert;
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use serde::Deserialize;

/// As much of a forge's own words as is shown.
const SAID_MAX: usize = 200;

/// One key of a list.
#[derive(Debug, Deserialize)]
pub(super) struct Listed {
    pub(super) id: u64,
    key: String,
}

impl Listed {
    /// Whether it is the key with this public half; what follows the two words is a comment.
    pub(super) fn is(&self, public: &str) -> bool {
        self.key.split_ascii_whitespace().take(2).eq(public.split_ascii_whitespace().take(2))
    }
}

/// What a key that was made is called.
pub(super) fn id(body: &[u8]) -> Option<u64> {
    #[derive(Deserialize)]
    struct Made {
        id: u64,
    }
    serde_json::from_slice::<Made>(body).ok().map(|made| made.id)
}

/// A page of keys.
pub(super) fn listed(body: &[u8]) -> Option<Vec<Listed>> {
    serde_json::from_slice(body).ok()
}

/// The forge's own words, to be put behind ours; nothing where it has none.
pub(super) fn said(body: &[u8]) -> String {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Said {
        message: String,
        errors: Vec<serde_json::Value>,
    }
    let said: Said = serde_json::from_slice(body).unwrap_or_default();
    let more = said.errors.iter().filter_map(|error| error.get("message")?.as_str());
    let words: Vec<&str> = std::iter::once(said.message.as_str()).chain(more).collect();
    let words: String = words.join("; ").chars().take(SAID_MAX).collect();
    match inert(words.trim()).replace('\n', " ") {
        words if words.is_empty() => words,
        words => format!(": {words}"),
    }
}

/// When to come again, where the answer says that it was asked too often.
pub(super) fn rate_limited(status: StatusCode, headers: &HeaderMap) -> Option<String> {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<i64>().ok();
    let spent = number("x-ratelimit-remaining") == Some(0);
    let wait = number("retry-after");
    let limited = match status {
        StatusCode::TOO_MANY_REQUESTS => true,
        StatusCode::FORBIDDEN => spent || wait.is_some(),
        _ => false,
    };
    let reset = || number("x-ratelimit-reset").and_then(|at| Timestamp::from_second(at).ok());
    limited.then(|| match (wait, reset()) {
        (Some(seconds), _) => format!("in {seconds} s"),
        (None, Some(at)) => format!("after {at}"),
        (None, None) => "later".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forges_words_are_short_and_inert() {
        for (body, expected) in [
            (r#"{"message":"Key title has been used"}"#, ": Key title has been used"),
            (
                r#"{"message":"Validation Failed","errors":[{"message":"key is already in use"},{"code":"x"}]}"#,
                ": Validation Failed; key is already in use",
            ),
            ("<html>", ""),
            ("", ""),
            (r#"{"message":7}"#, ""),
        ] {
            assert_eq!(said(body.as_bytes()), expected, "{body}");
        }
        let long = said(format!(r#"{{"message":"\u001b]52;c;aaaa\u0007{}"}}"#, "x".repeat(9999)).as_bytes());
        assert!(long.len() < 2 * SAID_MAX && !long.contains('\u{1b}'), "{long:?}");
    }

    #[test]
    fn too_often_is_told_from_not_allowed() {
        let headers = |pairs: &[(&'static str, &'static str)]| -> HeaderMap {
            let pairs = pairs.iter().map(|(name, value)| {
                (http::HeaderName::from_static(name), http::HeaderValue::from_static(value))
            });
            pairs.collect()
        };
        for (status, pairs, expected) in [
            (403, &[][..], None),
            (403, &[("x-ratelimit-remaining", "4999")], None),
            (
                403,
                &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "0")],
                Some("after 1970-01-01T00:00:00Z"),
            ),
            (403, &[("retry-after", "60")], Some("in 60 s")),
            (429, &[], Some("later")),
            (429, &[("retry-after", "soon")], Some("later")),
            (404, &[("retry-after", "60")], None),
        ] {
            let status = StatusCode::from_u16(status).expect("a status");
            assert_eq!(rate_limited(status, &headers(pairs)).as_deref(), expected, "{status} {pairs:?}");
        }
    }

    #[test]
    fn a_key_is_known_by_its_public_half_alone() {
        let page = br#"[{"id": 3, "key": "ssh-ed25519 AAAA comment", "title": "x", "verified": true}]"#;
        let page = listed(page).expect("a page");
        assert!(page[0].is("ssh-ed25519 AAAA") && !page[0].is("ssh-ed25519 AAAB"));
        assert!(listed(b"{}").is_none());
        assert_eq!((id(br#"{"id": 7}"#), id(br#"{"id": -7}"#), id(b"[]")), (Some(7), None, None));
    }
}
