//! Parses the conversation history of a request in each of the three formats.

use serde_json::Value;

use super::script::Script;
use super::tool::ShellTool;

/// A wire format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Api {
    /// Anthropic's Messages.
    Messages,
    /// OpenAI's Chat Completions.
    Chat,
    /// OpenAI's Responses.
    Responses,
}

impl Api {
    /// Returns the format that is served at `path`. The path contains no query, and may start with a prefix
    /// that a gateway adds.
    #[must_use]
    pub fn of_path(path: &str) -> Option<Self> {
        [("/messages", Self::Messages), ("/chat/completions", Self::Chat), ("/responses", Self::Responses)]
            .into_iter()
            .find_map(|(suffix, api)| path.ends_with(suffix).then_some(api))
    }
}

/// The parts of a request that the script depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Conversation {
    /// The wire format.
    pub(super) api: Api,
    /// The name of the requested model, which the response repeats.
    pub(super) model: String,
    /// Whether the client requests a stream.
    pub(super) streamed: bool,
    /// Whether the request asks for an answer. Over a WebSocket, codex first sends a request that only prepares the
    /// next request.
    pub(super) generates: bool,
    /// Whether a Chat Completions stream must end with the usage.
    pub(super) stream_usage: bool,
    /// The number of tool results in the history, which is the step of the script.
    pub(super) results: usize,
    /// The shell tool that the request declares.
    pub(super) tool: Option<ShellTool>,
    /// All tools that the request declares.
    pub(super) tools: Vec<Value>,
    /// The id of the last denial by a bottle's proxy in the history.
    pub(super) refusal: Option<String>,
    /// Whether the prompt asks the agent to end with the command of mini-swe-agent (see
    /// `Script::ends_by_command`).
    pub(super) ends_by_command: bool,
    /// A made-up number, derived from the request's size so that it grows with the conversation, as real
    /// token counts do.
    pub(super) input_tokens: usize,
}

impl Conversation {
    /// Parses `body`. Returns `None` if it is not a request of this format.
    pub(super) fn read(api: Api, body: &str) -> Option<Self> {
        let request: Value = serde_json::from_str(body).ok()?;
        let tools = request["tools"].as_array().cloned().unwrap_or_default();
        let history = request[if api == Api::Responses { "input" } else { "messages" }].as_array();
        Some(Self {
            api,
            model: request["model"].as_str()?.to_owned(),
            streamed: request["stream"] == true,
            generates: request["generate"] != false,
            stream_usage: request["stream_options"]["include_usage"] == true,
            results: history.into_iter().flatten().map(|entry| results_in(api, entry)).sum(),
            tool: ShellTool::find(&tools),
            tools,
            refusal: last_refusal(body),
            ends_by_command: Script::ends_by_command(body),
            input_tokens: body.len() / 4,
        })
    }
}

/// Returns the id of the last denial in `body`. A denial is JSON that contains an id of twelve hexadecimal digits. The
/// denial is part of a text that is encoded as JSON twice.
fn last_refusal(body: &str) -> Option<String> {
    let ids = body.rmatch_indices("id").filter_map(|(at, _)| {
        let rest = body[at + 2..].trim_start_matches(['\\', '"', ':', ' ']);
        let id = rest.get(..12)?;
        let ends = rest[12..].starts_with(['\\', '"']);
        (ends && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then(|| id.to_owned())
    });
    ids.into_iter().next()
}

fn results_in(api: Api, entry: &Value) -> usize {
    match api {
        Api::Chat => usize::from(entry["role"] == "tool"),
        Api::Responses => usize::from(entry["type"].as_str().is_some_and(|kind| kind.ends_with("_output"))),
        Api::Messages => entry["content"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|block| block["type"] == "tool_result")
            .count(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn counts_tool_results_in_every_format() {
        let cases = [
            (
                Api::Messages,
                json!({"model": "m", "messages": [
                    {"role": "user", "content": "hi"},
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "1"}]},
                    {"role": "user", "content": [{"type": "tool_result"}, {"type": "text", "text": "x"}]}]}),
            ),
            (
                Api::Chat,
                json!({"model": "m", "messages": [
                    {"role": "user", "content": "hi"}, {"role": "assistant"}, {"role": "tool", "content": "x"}]}),
            ),
            (
                Api::Responses,
                json!({"model": "m", "input": [
                    {"role": "user", "content": "hi"}, {"type": "function_call"}, {"type": "function_call_output"}]}),
            ),
        ];
        for (api, body) in cases {
            let read = Conversation::read(api, &body.to_string()).expect("a conversation");
            assert_eq!(read.results, 1, "{api:?}");
            assert!(!read.streamed);
        }
    }

    #[test]
    fn refuses_malformed_requests() {
        for body in ["", "[]", "{\"messages\": []}"] {
            assert_eq!(Conversation::read(Api::Chat, body), None, "{body}");
        }
    }

    #[test]
    fn detects_the_format_from_the_path() {
        for (path, api) in [
            ("/v1/messages", Some(Api::Messages)),
            ("/api/v1/chat/completions", Some(Api::Chat)),
            ("/v1/responses", Some(Api::Responses)),
            ("/v1/messages/count_tokens", None),
            ("/v1/models", None),
        ] {
            assert_eq!(Api::of_path(path), api, "{path}");
        }
    }
}
