//! Parses a forge's responses, which are untrusted.

use bottle_text::terminal::inert;
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use serde::Deserialize;

/// The maximum number of characters of a forge's message that are shown. The rest of the message is not shown.
const MESSAGE_MAX: usize = 200;

/// A deploy key in a list that the forge returned.
#[derive(Debug, Deserialize)]
pub(super) struct Listed {
    pub(super) id: u64,
    key: String,
}

impl Listed {
    /// Whether the key has this public half. Ignores the comment of the key.
    pub(super) fn has_public_half(&self, public: &str) -> bool {
        self.key.split_ascii_whitespace().take(2).eq(public.split_ascii_whitespace().take(2))
    }
}

/// Parses the forge's id of the key that the forge created.
pub(super) fn id(body: &[u8]) -> Option<u64> {
    #[derive(Deserialize)]
    struct Created {
        id: u64,
    }
    serde_json::from_slice::<Created>(body).ok().map(|created| created.id)
}

/// Parses one page of the forge's list of keys.
pub(super) fn listed(body: &[u8]) -> Option<Vec<Listed>> {
    serde_json::from_slice(body).ok()
}

/// Returns the forge's error message, as a suffix for the message of `bottle`. Empty if the response contains no
/// message.
pub(super) fn error_suffix(body: &[u8]) -> String {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct ErrorBody {
        message: String,
        errors: Vec<serde_json::Value>,
    }
    let error: ErrorBody = serde_json::from_slice(body).unwrap_or_default();
    let more = error.errors.iter().filter_map(|error| error.get("message")?.as_str());
    let words: Vec<&str> = std::iter::once(error.message.as_str()).chain(more).collect();
    let words: String = words.join("; ").chars().take(MESSAGE_MAX).collect();
    match inert(words.trim()).replace('\n', " ") {
        words if words.is_empty() => words,
        words => format!(": {words}"),
    }
}

/// Returns the time at which to retry, if the response reports a rate limit.
pub(super) fn rate_limited(status: StatusCode, headers: &HeaderMap) -> Option<String> {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<i64>().ok();
    let exhausted = number("x-ratelimit-remaining") == Some(0);
    let wait = number("retry-after");
    let limited = match status {
        StatusCode::TOO_MANY_REQUESTS => true,
        StatusCode::FORBIDDEN => exhausted || wait.is_some(),
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
    fn shortens_and_sanitizes_the_forges_message() {
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
            assert_eq!(error_suffix(body.as_bytes()), expected, "{body}");
        }
        let long =
            error_suffix(format!(r#"{{"message":"\u001b]52;c;aaaa\u0007{}"}}"#, "x".repeat(9999)).as_bytes());
        assert!(long.len() < 2 * MESSAGE_MAX && !long.contains('\u{1b}'), "{long:?}");
    }

    #[test]
    fn distinguishes_a_rate_limit_from_a_denial() {
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
    fn compares_keys_by_their_public_half_only() {
        let page = br#"[{"id": 3, "key": "ssh-ed25519 AAAA comment", "title": "x", "verified": true}]"#;
        let page = listed(page).expect("a page");
        assert!(page[0].has_public_half("ssh-ed25519 AAAA") && !page[0].has_public_half("ssh-ed25519 AAAB"));
        assert!(listed(b"{}").is_none());
        assert_eq!((id(br#"{"id": 7}"#), id(br#"{"id": -7}"#), id(b"[]")), (Some(7), None, None));
    }
}
