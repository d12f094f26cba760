//! What one answer of a model cost, in tokens.
//!
//! The proxy reads it from the answer, the keeper writes it down: one line of `usage/<slug>.jsonl` for each
//! answer, whoever asked. The numbers are the provider's own, so what they mean is its API's affair: in
//! Messages `input` is without what the cache gave or took, in the other two it is with it.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The name, in the folder of the proxy's logs, of the records that no keeper has taken yet: a line each.
pub const WAITING_FILE: &str = "usage.jsonl";

/// The longest line of a record, in bytes; what the proxy writes stays far below.
pub const MAX_LINE: usize = 4 << 10;

/// The record of one answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Its name: a record that comes twice is known by it.
    pub id: String,
    /// When the answer was over.
    pub time: Timestamp,
    /// Whose model it is: the provider's name where the host is a known one, else the host.
    pub provider: String,
    /// The host that answered.
    pub host: String,
    /// The wire format, which says what the numbers mean.
    pub api: Api,
    /// The model, as the answer names it; absent when it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The numbers.
    #[serde(flatten)]
    pub tokens: Tokens,
    /// Whether the answer broke off: then the numbers are what was seen until there.
    pub interrupted: bool,
}

/// Numbers of tokens, each absent when the answer does not say it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens {
    /// What was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<u64>,
    /// What was written, thoughts included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<u64>,
    /// What the provider's cache gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached: Option<u64>,
    /// What was put into that cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_written: Option<u64>,
}

/// A wire format whose answers say what they cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Api {
    /// Anthropic's Messages.
    Messages,
    /// OpenAI's Chat Completions.
    ChatCompletions,
    /// OpenAI's Responses.
    Responses,
}

impl Api {
    /// The format that a request asks for, told by its method and its canonical path: many hosts speak these
    /// three, below paths of their own.
    #[must_use]
    pub fn of(method: &str, path: &str) -> Option<Self> {
        let ends = |end: &str| path.ends_with(end);
        match method {
            "POST" if ends("/messages") => Some(Self::Messages),
            "POST" if ends("/chat/completions") => Some(Self::ChatCompletions),
            "POST" if ends("/responses") || ends("/responses/compact") => Some(Self::Responses),
            _ => None,
        }
    }
}

/// See [`Usage::provider`].
#[must_use]
pub fn provider_of(host: &str) -> &str {
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
    fn the_format_is_told_by_method_and_path() {
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
            assert_eq!(Api::of(method, path), api, "{method} {path}");
        }
    }

    #[test]
    fn a_record_is_one_flat_line_and_read_back() {
        let usage = Usage {
            id: "0a".to_owned(),
            time: "2026-01-31T12:00:00Z".parse().expect("time"),
            provider: provider_of("api.anthropic.com").to_owned(),
            host: "api.anthropic.com".to_owned(),
            api: Api::Messages,
            model: None,
            tokens: Tokens { input: Some(3), output: Some(4), cached: Some(0), cache_written: None },
            interrupted: true,
        };
        let line = serde_json::to_string(&usage).expect("text");
        insta::assert_snapshot!(line, @r#"{"id":"0a","time":"2026-01-31T12:00:00Z","provider":"anthropic","host":"api.anthropic.com","api":"messages","input":3,"output":4,"cached":0,"interrupted":true}"#);
        assert_eq!(serde_json::from_str::<Usage>(&line).expect("read"), usage);
    }
}
