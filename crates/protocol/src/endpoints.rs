//! The endpoints of model APIs: which of them the proxy meters, and which use no tokens.
//!
//! If a budget limits a host, the proxy denies every endpoint that is not in the table, because such an endpoint may
//! use tokens that the proxy cannot count. The table lists each known path in its canonical spelling. A trailing slash
//! or a capital letter makes a different path.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::usage::Api;
use bottle_policy::canonical;

/// Whether a request to a model API uses tokens, and whether the proxy can count them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// The proxy counts the tokens of the response.
    Metered(Api),
    /// The request uses no tokens.
    Free,
    /// The endpoint is unknown, or uses tokens that the proxy cannot count.
    Unknown,
}

/// A provider of models, with its endpoints.
struct Provider {
    name: &'static str,
    hosts: &'static [Host],
    /// Paths of `POST` requests whose tokens the proxy counts, each with its wire format.
    metered: &'static [(&'static str, Api)],
    /// Methods and paths of requests that use no tokens. `GET` also covers `HEAD`. `*` matches one path segment.
    free: &'static [(&'static str, &'static str)],
}

/// A pattern for the host names of a provider.
enum Host {
    Exact(&'static str),
    /// Host names with this prefix and this suffix.
    Between(&'static str, &'static str),
}

impl Host {
    fn matches(&self, host: &str) -> bool {
        match self {
            Self::Exact(exact) => host == *exact,
            Self::Between(begin, end) => host.starts_with(begin) && host.ends_with(end),
        }
    }
}

/// The providers whose endpoints are known. The URL above each provider is the source, read in November 2026.
const PROVIDERS: [Provider; 6] = [
    // https://platform.claude.com/docs/en/api/overview. Claude Code 2.1.328 requests the last three paths.
    Provider {
        name: "Anthropic",
        hosts: &[Host::Exact("api.anthropic.com")],
        metered: &[("/v1/messages", Api::Messages)],
        free: &[
            ("POST", "/v1/messages/count_tokens"),
            ("GET", "/v1/models"),
            ("GET", "/v1/models/*"),
            ("GET", "/api/hello"),
            ("GET", "/api/claude_code/settings"),
            ("GET", "/api/claude_code/policy_limits"),
        ],
    },
    // https://developers.openai.com/api/reference/overview. Regional hosts have a region name before `.api.openai.com`.
    Provider {
        name: "OpenAI",
        hosts: &[Host::Exact("api.openai.com"), Host::Between("", ".api.openai.com")],
        metered: &[
            ("/v1/responses", Api::Responses),
            ("/v1/responses/compact", Api::Responses),
            ("/v1/chat/completions", Api::ChatCompletions),
        ],
        free: &[("POST", "/v1/responses/input_tokens"), ("GET", "/v1/models"), ("GET", "/v1/models/*")],
    },
    // The endpoints that codex 0.169.0 requests with a ChatGPT login.
    Provider {
        name: "ChatGPT",
        hosts: &[Host::Exact("chatgpt.com")],
        metered: &[
            ("/backend-api/codex/responses", Api::Responses),
            ("/backend-api/codex/responses/compact", Api::Responses),
        ],
        free: &[
            ("GET", "/backend-api/codex/models"),
            ("GET", "/backend-api/wham/accounts/check"),
            ("GET", "/backend-api/wham/usage"),
        ],
    },
    // https://openrouter.ai/docs/api-reference/overview.
    Provider {
        name: "OpenRouter",
        hosts: &[Host::Exact("openrouter.ai")],
        metered: &[
            ("/api/v1/chat/completions", Api::ChatCompletions),
            ("/api/v1/messages", Api::Messages),
            ("/api/v1/responses", Api::Responses),
        ],
        free: &[
            ("GET", "/api/v1/models"),
            ("GET", "/api/v1/models/count"),
            ("GET", "/api/v1/models/user"),
            ("GET", "/api/v1/models/*/*/endpoints"),
            ("GET", "/api/v1/providers"),
            ("GET", "/api/v1/key"),
            ("GET", "/api/v1/credits"),
            ("GET", "/api/v1/generation"),
        ],
    },
    // https://ai.google.dev/api and https://cloud.google.com/vertex-ai/docs/reference/rest.
    Provider {
        name: "Gemini",
        hosts: &[
            Host::Exact("generativelanguage.googleapis.com"),
            Host::Exact("aiplatform.googleapis.com"),
            Host::Between("", "-aiplatform.googleapis.com"),
        ],
        metered: &[],
        free: &[("GET", "/v1beta/models"), ("GET", "/v1beta/models/*")],
    },
    // https://docs.aws.amazon.com/general/latest/gr/bedrock.html.
    Provider {
        name: "Bedrock",
        hosts: &[
            Host::Between("bedrock", ".amazonaws.com"),
            Host::Between("bedrock", ".amazonaws.com.cn"),
            Host::Between("bedrock", ".api.aws"),
        ],
        metered: &[],
        free: &[],
    },
];

/// The endpoints of a host that is not in [`PROVIDERS`], under any path prefix. Many servers and gateways offer these
/// three APIs.
const OTHER: Provider = Provider {
    name: "",
    hosts: &[],
    metered: &[
        ("/messages", Api::Messages),
        ("/chat/completions", Api::ChatCompletions),
        ("/responses", Api::Responses),
        ("/responses/compact", Api::Responses),
    ],
    free: &[
        ("POST", "/messages/count_tokens"),
        ("POST", "/responses/input_tokens"),
        ("GET", "/models"),
        ("GET", "/models/*"),
    ],
};

impl Provider {
    fn of(host: &str) -> Option<&'static Self> {
        PROVIDERS.iter().find(|provider| provider.hosts.iter().any(|known| known.matches(host)))
    }

    fn endpoint(&self, method: &str, path: &str, matches: fn(&str, &str) -> bool) -> Endpoint {
        let metered = self.metered.iter().find(|(known, _)| method == "POST" && matches(known, path));
        if let Some((_, api)) = metered {
            return Endpoint::Metered(*api);
        }
        let method = if method == "HEAD" { "GET" } else { method };
        let free = self.free.iter().any(|(known, pattern)| method == *known && matches(pattern, path));
        if free { Endpoint::Free } else { Endpoint::Unknown }
    }
}

impl Endpoint {
    /// Returns the endpoint of a request from its method, host and canonical path.
    #[must_use]
    pub fn of(method: &str, host: &str, path: &str) -> Self {
        match Provider::of(host) {
            Some(provider) => provider.endpoint(method, path, is_path),
            None => OTHER.endpoint(method, path, ends_in),
        }
    }

    /// Returns the endpoint of a WebSocket from its host and canonical path. OpenAI's Responses API has a WebSocket
    /// mode, in which each message `response.create` is a request, and each event of the response is a message.
    #[must_use]
    pub fn of_websocket(host: &str, path: &str) -> Self {
        match Self::of("POST", host, path) {
            Self::Metered(Api::Responses) if path.ends_with("/responses") => Self::Metered(Api::Responses),
            _ => Self::Unknown,
        }
    }
}

/// Whether a lenient server could treat `path` as another spelling of a metered path: one with capitals, additional
/// slashes, spaces, parameters or a file extension.
#[must_use]
pub fn resembles_metered(path: &str) -> bool {
    let folded = path.to_ascii_lowercase().replace("%20", "").replace("%2f", "/").replace("%3b", ";");
    let words: Vec<&str> = folded
        .split('/')
        .map(|segment| segment.split([';', '%', '.']).next().unwrap_or_default())
        .filter(|segment| !segment.is_empty())
        .collect();
    OTHER.metered.iter().any(|(known, _)| {
        let known: Vec<&str> = known.split('/').filter(|segment| !segment.is_empty()).collect();
        words.ends_with(&known)
    })
}

/// Whether the host belongs to a provider of models in the table.
#[must_use]
pub fn serves_models(host: &str) -> bool {
    Provider::of(host).is_some()
}

/// Returns the name of the host's provider if the proxy cannot count the tokens of any request to this provider.
#[must_use]
pub fn unmetered_provider(host: &str) -> Option<&'static str> {
    Provider::of(host).filter(|provider| provider.metered.is_empty()).map(|provider| provider.name)
}

/// Requests with any method that the proxy allows without counting their tokens: `HOST/PATH`, or `HOST/PATH/*` for all
/// paths below `PATH`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnmeteredEndpoint(String);

/// The error for a text that is not a host and a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be a host and a path, as in `api.openai.com/v1/embeddings`, or with `/*` at the end")]
pub struct BadEndpoint;

impl FromStr for UnmeteredEndpoint {
    type Err = BadEndpoint;

    fn from_str(text: &str) -> Result<Self, BadEndpoint> {
        let (name, rest) = text.split_once('/').ok_or(BadEndpoint)?;
        let path = format!("/{}", rest.strip_suffix("/*").unwrap_or(rest));
        let canonical = canonical::path(&path);
        let is_host = canonical::host(name).is_ok_and(|host| host == name);
        let is_path =
            canonical.ambiguous.is_none() && canonical.text == path && !rest.is_empty() && rest != "*";
        if is_host && is_path { Ok(Self(text.to_owned())) } else { Err(BadEndpoint) }
    }
}

impl fmt::Display for UnmeteredEndpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl UnmeteredEndpoint {
    /// Whether the proxy allows a request to this host and canonical path without counting its tokens.
    #[must_use]
    pub fn allows(&self, host: &str, path: &str) -> bool {
        let Some(allowed) = self.0.strip_prefix(host) else { return false };
        match allowed.strip_suffix("/*") {
            Some(above) => {
                path.strip_prefix(above).is_some_and(|rest| rest.len() > 1 && rest.starts_with('/'))
            }
            None => path == allowed,
        }
    }
}

/// Whether the segments of a path match those of a pattern.
fn is_path(pattern: &str, path: &str) -> bool {
    let (mut patterns, mut segments) = (pattern.split('/'), path.split('/'));
    loop {
        match (patterns.next(), segments.next()) {
            (None, None) => return true,
            (Some("*"), Some(segment)) if !segment.is_empty() => {}
            (Some(pattern), Some(segment)) if pattern == segment => {}
            _ => return false,
        }
    }
}

/// Whether the last segments of a path match those of a pattern, which begins with a slash.
fn ends_in(pattern: &str, path: &str) -> bool {
    let segments = pattern.bytes().filter(|byte| *byte == b'/').count();
    let start = path.rmatch_indices('/').nth(segments.saturating_sub(1)).map(|(at, _)| at);
    start.is_some_and(|start| is_path(pattern, &path[start..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPENAI: &str = "api.openai.com";
    const ANTHROPIC: &str = "api.anthropic.com";

    #[test]
    fn meters_what_it_can_count() {
        for (host, path, api) in [
            (ANTHROPIC, "/v1/messages", Api::Messages),
            (OPENAI, "/v1/responses", Api::Responses),
            ("eu.api.openai.com", "/v1/responses/compact", Api::Responses),
            ("chatgpt.com", "/backend-api/codex/responses", Api::Responses),
            ("openrouter.ai", "/api/v1/chat/completions", Api::ChatCompletions),
            ("llm.example", "/messages", Api::Messages),
            ("llm.example", "/openai/deployments/x/chat/completions", Api::ChatCompletions),
        ] {
            assert_eq!(Endpoint::of("POST", host, path), Endpoint::Metered(api), "{host}{path}");
        }
    }

    #[test]
    fn knows_what_uses_no_tokens() {
        for (method, host, path) in [
            ("POST", ANTHROPIC, "/v1/messages/count_tokens"),
            ("HEAD", ANTHROPIC, "/api/hello"),
            ("GET", OPENAI, "/v1/models/gpt-5.1"),
            ("GET", "openrouter.ai", "/api/v1/models/openai/gpt-5.1/endpoints"),
            ("GET", "generativelanguage.googleapis.com", "/v1beta/models"),
            ("GET", "llm.example", "/v1/models"),
        ] {
            assert_eq!(Endpoint::of(method, host, path), Endpoint::Free, "{method} {host}{path}");
        }
    }

    #[test]
    fn nothing_else_is_known() {
        for path in [
            "/v1/responses/",
            "/v1/Responses",
            "/v1/responses%20",
            "/v1/responses;x",
            "/v1//responses",
            "/responses",
            "/x/v1/responses",
            "/v1/responses/r/cancel",
            "/v1/batches",
            "/v1/files",
            "/v1/assistants",
            "/v1/threads/t/runs",
            "/v1/threads/t/messages",
            "/v1/realtime/calls",
            "/v1/realtime/client_secrets",
            "/v1/fine_tuning/jobs",
            "/v1/completions",
            "/v1/embeddings",
            "/v1/images/generations",
            "/v1/audio/speech",
            "/v1/videos",
            "/v1/models",
            "*",
            "",
        ] {
            assert_eq!(Endpoint::of("POST", OPENAI, path), Endpoint::Unknown, "{path}");
        }
        for method in ["GET", "PUT", "PATCH", "DELETE", "OPTIONS", "post", "QUERY"] {
            assert_eq!(Endpoint::of(method, OPENAI, "/v1/responses"), Endpoint::Unknown, "{method}");
        }
        for (host, path) in [
            (ANTHROPIC, "/v1/messages/batches"),
            (ANTHROPIC, "/v1/complete"),
            ("chatgpt.com", "/backend-api/conversation"),
            ("generativelanguage.googleapis.com", "/v1beta/models/g:streamGenerateContent"),
            ("generativelanguage.googleapis.com", "/v1beta/openai/chat/completions"),
            ("us-central1-aiplatform.googleapis.com", "/v1/messages"),
            ("bedrock-runtime.us-east-1.amazonaws.com", "/model/m/invoke"),
            ("bedrock-mantle.us-east-1.api.aws", "/v1/chat/completions"),
            ("llm.example", "/v1/messages/"),
            ("llm.example", "/v1/completions"),
            ("llm.example", "/v1/xmessages"),
            ("llm.example", "/v1/models/"),
        ] {
            assert_eq!(Endpoint::of("POST", host, path), Endpoint::Unknown, "{host}{path}");
        }
    }

    #[test]
    fn recognizes_other_spellings() {
        for path in [
            "/v1/responses/",
            "/v1/Responses",
            "/v1/responses%20",
            "/v1/responses;x",
            "/v1/responses.json",
            "/v1/chat//completions",
            "/v1/chat%2Fcompletions",
            "/V1/MESSAGES/",
        ] {
            assert!(resembles_metered(path), "{path}");
        }
        for path in ["/v1/messages/m1", "/simple/requests/", "/v1/responsess", "/"] {
            assert!(!resembles_metered(path), "{path}");
        }
    }

    #[test]
    fn meters_only_one_kind_of_websocket() {
        assert_eq!(Endpoint::of_websocket(OPENAI, "/v1/responses"), Endpoint::Metered(Api::Responses));
        assert_eq!(Endpoint::of_websocket("llm.example", "/x/responses"), Endpoint::Metered(Api::Responses));
        for path in ["/v1/realtime", "/v1/responses/compact", "/v1/chat/completions", "/v1/responses/"] {
            assert_eq!(Endpoint::of_websocket(OPENAI, path), Endpoint::Unknown, "{path}");
        }
    }

    #[test]
    fn names_providers_that_no_budget_can_limit() {
        assert_eq!(unmetered_provider("generativelanguage.googleapis.com"), Some("Gemini"));
        assert_eq!(unmetered_provider("bedrock-runtime.eu-west-1.amazonaws.com"), Some("Bedrock"));
        assert_eq!(unmetered_provider(OPENAI), None);
        assert_eq!(unmetered_provider("llm.example"), None);
        assert!(serves_models("chatgpt.com") && !serves_models("pypi.org"));
    }

    #[test]
    fn an_exception_is_one_spelling_of_one_endpoint() {
        let allows = |text: &str, path| text.parse::<UnmeteredEndpoint>().expect(text).allows(OPENAI, path);
        assert!(allows("api.openai.com/v1/embeddings", "/v1/embeddings"));
        assert!(!allows("api.openai.com/v1/embeddings", "/v1/embeddings/"));
        assert!(allows("api.openai.com/v1/files/*", "/v1/files/f"));
        assert!(!allows("api.openai.com/v1/files/*", "/v1/files/"));
        assert!(!allows("api.openai.com/v1/files/*", "/v1/files"));
        assert!(!allows("openai.com/v1/files", "/v1/files"));
        for bad in [
            "",
            "api.openai.com",
            "api.openai.com/",
            "api.openai.com/*",
            "/v1/x",
            "API.openai.com/v1",
            "a.example/x//y",
            "a.example/../y",
            "a.example/x;y",
        ] {
            assert!(bad.parse::<UnmeteredEndpoint>().is_err(), "{bad}");
        }
    }
}
