//! Token usage of one model response.
//!
//! The proxy reads the counts from the response. The keeper process appends one line per response to
//! `usage/<slug>.jsonl`. The counts are those that the provider reports; the proxy estimates a count that the response
//! does not report. In the Messages API `input` excludes cache reads and writes; in the Chat Completions and Responses
//! APIs `input` includes cache reads and writes.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The file in the proxy's log directory that holds the usage records which the keeper has not yet collected. Each line
/// is a [`WaitingLine`].
pub const WAITING_FILE: &str = "usage.jsonl";

/// The longest line of a usage record that is read, in bytes. A longer line is skipped. The proxy writes much
/// shorter lines.
pub const MAX_LINE: usize = 4 << 10;

/// The usage record of one model response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// The record's id. With it, the keeper recognizes a record that is delivered twice.
    pub id: String,
    /// When the response ended.
    pub time: Timestamp,
    /// The provider's name for a known host, otherwise the host.
    pub provider: String,
    /// The host that sent the response.
    pub host: String,
    /// The wire format, which defines what the counts mean.
    pub api: Api,
    /// The model name, if the response contains one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The token counts.
    #[serde(flatten)]
    pub tokens: Tokens,
    /// Whether the response was interrupted. The counts of an interrupted response cover only the part that
    /// was received.
    pub interrupted: bool,
    /// Whether a count is estimated from the length of the request and of the received text, because the response was
    /// interrupted or its counts are missing or implausible.
    #[serde(default)]
    pub estimated: bool,
    /// Whether the bottle's provider route allowed the request.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub provider_route: bool,
    /// The part of the agent that sent the request, if the client names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
}

/// A line of [`WAITING_FILE`]. A later line with the same id replaces an earlier one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum WaitingLine {
    /// The record of a response. While a budget has tokens reserved for a request, the request's record counts all
    /// these tokens. The tokens therefore count as used if the proxy is killed before the response.
    Usage(Usage),
    /// The request has no usage record, because the provider did not accept the request.
    Cancelled {
        /// The id of the record that the file contained before.
        cancelled: String,
    },
}

impl From<Usage> for WaitingLine {
    fn from(usage: Usage) -> Self {
        Self::Usage(usage)
    }
}

impl WaitingLine {
    /// The id of the usage record.
    #[must_use]
    pub fn id(&self) -> &str {
        match self {
            Self::Usage(usage) => &usage.id,
            Self::Cancelled { cancelled } => cancelled,
        }
    }
}

/// The part of an agent that sent a request. The agent can forge this value, so only reports depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The main conversation.
    Main,
    /// A subagent.
    Subagent,
}

/// Headers that Claude Code and Codex send with requests of subagents only.
const SUBAGENT_HEADERS: [&str; 3] =
    ["x-claude-code-agent-id", "x-codex-parent-thread-id", "x-openai-subagent"];
/// Headers that Claude Code and Codex send with every request.
const CLIENT_HEADERS: [&str; 2] = ["x-claude-code-session-id", "x-codex-window-id"];

impl Source {
    /// Returns the source that the headers of a request indicate. `header` returns whether a header is present.
    pub fn from_headers(header: impl Fn(&str) -> bool) -> Option<Self> {
        if SUBAGENT_HEADERS.iter().any(|name| header(name)) {
            Some(Self::Subagent)
        } else if CLIENT_HEADERS.iter().any(|name| header(name)) {
            Some(Self::Main)
        } else {
            None
        }
    }
}

/// Token counts. A count is absent if the response does not report it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens {
    /// Tokens of the prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<u64>,
    /// Tokens of the completion, including reasoning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<u64>,
    /// Tokens read from the provider's cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached: Option<u64>,
    /// Tokens written to the provider's cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_written: Option<u64>,
}

/// The largest number of tokens of one kind that a response can have: a thousand times the longest context of a model.
const MAX_TOKENS: u64 = 1_000_000_000;

/// Token counts that are comparable across APIs: `input` excludes the cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tokens of the prompt that were not read from or written to the cache.
    pub input: u64,
    /// Tokens of the completion.
    pub output: u64,
    /// Tokens read from the cache.
    pub cache_read: u64,
    /// Tokens written to the cache.
    pub cache_write: u64,
    /// Whether the reported counts contradict each other or are implausible.
    pub doubtful: bool,
}

impl Counts {
    /// Returns the sum of all counts. Budgets limit this sum.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.prompt().saturating_add(self.output)
    }

    /// Returns the number of tokens of the prompt, including tokens read from and written to the cache.
    #[must_use]
    pub fn prompt(&self) -> u64 {
        self.input.saturating_add(self.cache_read).saturating_add(self.cache_write)
    }
}

impl Tokens {
    /// Makes the counts comparable across APIs, and limits each count to a plausible maximum.
    #[must_use]
    pub fn counts(&self, api: Api) -> Counts {
        let Self { input, output, cached, cache_written } = *self;
        let all = [input, output, cached, cache_written].map(Option::unwrap_or_default);
        let [input, output, cache_read, cache_write] = all.map(|count| count.min(MAX_TOKENS));
        let cache = cache_read + cache_write;
        let (input, contradicts) = match api {
            Api::Messages => (input, false),
            Api::ChatCompletions | Api::Responses => (input.saturating_sub(cache), cache > input),
        };
        let implausible = all.iter().any(|count| *count > MAX_TOKENS);
        Counts { input, output, cache_read, cache_write, doubtful: contradicts || implausible }
    }
}

/// A wire format whose responses report token usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Api {
    /// Anthropic's Messages API.
    Messages,
    /// OpenAI's Chat Completions API.
    ChatCompletions,
    /// OpenAI's Responses API.
    Responses,
}

impl Api {
    /// Returns the wire format of a request from its method and canonical path. The path prefix is ignored, because
    /// many hosts serve the three formats under a prefix.
    #[must_use]
    pub fn from_request(method: &str, path: &str) -> Option<Self> {
        let ends = |end: &str| path.ends_with(end);
        match method {
            "POST" if ends("/messages") => Some(Self::Messages),
            "POST" if ends("/chat/completions") => Some(Self::ChatCompletions),
            "POST" if ends("/responses") || ends("/responses/compact") => Some(Self::Responses),
            _ => None,
        }
    }
}

/// Returns the provider's name for a known host, otherwise the host itself ([`Usage::provider`]).
#[must_use]
pub fn provider_for(host: &str) -> &str {
    match host {
        "api.anthropic.com" => "anthropic",
        "api.openai.com" | "chatgpt.com" => "openai",
        "openrouter.ai" => "openrouter",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_the_format_by_method_and_path() {
        for (method, path, api) in [
            ("POST", "/v1/messages", Some(Api::Messages)),
            ("POST", "/api/v1/chat/completions", Some(Api::ChatCompletions)),
            ("POST", "/openai/deployments/x/chat/completions", Some(Api::ChatCompletions)),
            ("POST", "/backend-api/codex/responses", Some(Api::Responses)),
            ("POST", "/v1/responses/compact", Some(Api::Responses)),
            ("GET", "/v1/responses", None),
            ("POST", "/v1/messages/count_tokens", None),
            ("POST", "/v1/messages/batches", None),
            ("POST", "/messages.json", None),
        ] {
            assert_eq!(Api::from_request(method, path), api, "{method} {path}");
        }
    }

    #[test]
    fn a_record_round_trips_as_one_flat_line() {
        let usage = Usage {
            id: "0a".to_owned(),
            time: "2026-01-31T12:00:00Z".parse().expect("time"),
            provider: provider_for("api.anthropic.com").to_owned(),
            host: "api.anthropic.com".to_owned(),
            api: Api::Messages,
            model: None,
            tokens: Tokens { input: Some(3), output: Some(4), cached: Some(0), cache_written: None },
            interrupted: true,
            estimated: true,
            provider_route: false,
            source: Some(Source::Subagent),
        };
        let line = serde_json::to_string(&usage).expect("text");
        insta::assert_snapshot!(line, @r#"{"id":"0a","time":"2026-01-31T12:00:00Z","provider":"anthropic","host":"api.anthropic.com","api":"messages","input":3,"output":4,"cached":0,"interrupted":true,"estimated":true,"source":"subagent"}"#);
        assert_eq!(serde_json::from_str::<Usage>(&line).expect("read"), usage);
    }

    #[test]
    fn reads_the_records_of_earlier_versions() {
        let line = r#"{"id":"0a","time":"2026-01-31T12:00:00Z","provider":"anthropic","host":"api.anthropic.com","api":"messages","interrupted":false}"#;
        let usage: Usage = serde_json::from_str(line).expect("read");
        assert_eq!((usage.estimated, usage.provider_route, usage.source), (false, false, None));
    }

    #[test]
    fn names_the_source_only_if_the_client_does() {
        let source = |sent: &[&str]| Source::from_headers(|name| sent.contains(&name));
        assert_eq!(source(&["user-agent"]), None);
        assert_eq!(source(&["x-claude-code-session-id"]), Some(Source::Main));
        assert_eq!(source(&["x-claude-code-session-id", "x-claude-code-agent-id"]), Some(Source::Subagent));
        assert_eq!(source(&["x-openai-subagent"]), Some(Source::Subagent));
    }
}
