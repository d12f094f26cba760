//! Recognizes requests that use tokens which the proxy cannot count.

use bottle_contract::usage::{Api, provider_for};

use super::cost::values;

/// The ends of paths at which the providers' APIs use tokens in another way than with one response to one request.
const PATHS: [(&str, &str); 16] = [
    ("/messages/batches", "a batch"),
    ("/batches", "a batch"),
    ("/complete", "the legacy completions API"),
    ("/completions", "the legacy completions API"),
    ("/embeddings", "embeddings"),
    ("/images/generations", "an image"),
    ("/images/edits", "an image"),
    ("/images/variations", "an image"),
    ("/audio/speech", "audio"),
    ("/audio/transcriptions", "audio"),
    ("/audio/translations", "audio"),
    ("/realtime/calls", "a realtime call"),
    ("/realtime/client_secrets", "a realtime call"),
    ("/runs", "a run of an assistant"),
    ("/fine_tuning/jobs", "fine-tuning"),
    ("/videos", "a video"),
];

/// Names the kind of a request whose tokens cannot be counted. `None` if they can, or if the request uses none.
/// `path` is canonical, `upgrade` states whether it opens a WebSocket, `provider_route` whether the bottle's provider
/// route allows it, and `body` is the decoded body as far as it is known.
pub(crate) fn kind(
    method: &str,
    host: &str,
    path: &str,
    upgrade: bool,
    provider_route: bool,
    body: &[u8],
) -> Option<&'static str> {
    let serves_models = provider_route || provider_for(host) != host;
    if upgrade {
        let opens_model = serves_models || path.ends_with("/realtime");
        return (opens_model && Api::from_websocket(path).is_none()).then_some("a WebSocket");
    }
    if method != "POST" {
        return None;
    }
    if path.ends_with("/responses") && values(body, "\"background\"").any(|value| value.starts_with(b"true"))
    {
        return Some("a background response");
    }
    let is_chat = path.ends_with("/chat/completions");
    let listed = PATHS.iter().find(|(end, _)| serves_models && !is_chat && path.ends_with(end));
    listed.map(|(_, kind)| *kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_what_cannot_be_counted() {
        let openai = "api.openai.com";
        for (method, host, path, upgrade, provider, body, expected) in [
            ("POST", openai, "/v1/responses", false, true, "{}", None),
            (
                "POST",
                openai,
                "/v1/responses",
                false,
                true,
                r#"{"background" : true}"#,
                Some("a background response"),
            ),
            (
                "POST",
                "llm.example.com",
                "/x/responses",
                false,
                false,
                r#"{"background":true}"#,
                Some("a background response"),
            ),
            ("POST", openai, "/v1/responses", false, true, r#"{"background":false}"#, None),
            ("GET", "chatgpt.com", "/backend-api/codex/responses", true, true, "", None),
            ("GET", "llm.example.com", "/v1/responses", true, false, "", None),
            ("GET", "llm.example.com", "/v1/realtime", true, false, "", Some("a WebSocket")),
            ("GET", "api.openai.com", "/v1/other", true, false, "", Some("a WebSocket")),
            ("GET", "chat.example.com", "/socket", true, false, "", None),
            ("POST", openai, "/v1/chat/completions", false, false, "", None),
            ("POST", openai, "/v1/completions", false, false, "", Some("the legacy completions API")),
            ("POST", "api.anthropic.com", "/v1/messages/batches", false, true, "", Some("a batch")),
            ("POST", "api.anthropic.com", "/v1/messages/count_tokens", false, true, "", None),
            ("GET", "api.anthropic.com", "/v1/messages/batches", false, true, "", None),
            ("POST", "jobs.example.com", "/runs", false, false, "", None),
        ] {
            let found = kind(method, host, path, upgrade, provider, body.as_bytes());
            assert_eq!(found, expected, "{method} {host}{path} {body}");
        }
    }
}
