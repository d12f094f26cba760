//! The fields of requests to models: which fields a model reads, and which fields refer to content outside of the
//! request.
//!
//! Sources, read in November 2026: <https://platform.claude.com/docs/en/api/messages>,
//! <https://developers.openai.com/api/reference/resources/responses/methods/create>,
//! <https://developers.openai.com/api/reference/resources/chat/subresources/completions/methods/create> and
//! <https://openrouter.ai/docs/api-reference/chat-completion>.

use bottle_protocol::usage::Api;

/// The meaning of a top-level field of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    Model,
    /// Other models that the gateway may use instead of `model`.
    Models,
    /// A limit for the tokens of the response.
    Output,
    /// The number of responses that the request asks for.
    Completions,
    Background,
    Streams,
    /// Text and blocks that the model reads.
    Content,
    /// Items of a conversation. An item may be a reference to an item that the provider stores.
    Items,
    /// Any JSON that the model reads.
    Data,
    Tools,
    /// A reference to content outside of the request that the model also reads. The value names this content.
    Refers(&'static str),
    /// How the server manages the context of a long conversation.
    ContextManagement,
    /// The model does not read the field.
    Other,
    /// The field is not in the tables.
    Unknown,
}

use Field::{
    Background, Completions, Content, ContextManagement, Data, Items, Model, Models, Other, Output, Refers,
    Streams, Tools,
};

/// A table of fields by name.
type Table = &'static [(&'static str, Field)];

/// The fields of all three APIs. A gateway may serve one API through another, so a field that is a reference in one API
/// is treated as a reference in all APIs.
const COMMON: Table = &[
    ("model", Model),
    ("models", Models),
    ("stream", Streams),
    ("background", Background),
    ("tools", Tools),
    ("tool_choice", Data),
    ("mcp_servers", Refers("MCP servers of the provider")),
    ("container", Refers("a container")),
    ("plugins", Refers("plugins of the gateway")),
    ("preset", Refers("a stored prompt")),
    ("web_search_options", Refers("a search of the provider")),
    ("previous_response_id", Refers("an earlier response")),
    ("conversation", Refers("a stored conversation")),
    ("metadata", Other),
    ("service_tier", Other),
    ("temperature", Other),
    ("top_p", Other),
];

const MESSAGES: Table = &[
    ("messages", Content),
    ("system", Content),
    ("max_tokens", Output),
    ("output_config", Data),
    ("output_format", Data),
    ("context_management", ContextManagement),
    ("cache_control", Other),
    ("inference_geo", Other),
    ("speed", Other),
    ("stop_sequences", Other),
    ("thinking", Other),
    ("top_k", Other),
];

const CHAT: Table = &[
    ("messages", Content),
    ("functions", Data),
    ("function_call", Data),
    ("response_format", Data),
    ("prediction", Content),
    ("prompt", Content),
    ("max_tokens", Output),
    ("max_completion_tokens", Output),
    ("n", Completions),
    ("audio", Other),
    ("debug", Other),
    ("frequency_penalty", Other),
    ("include_reasoning", Other),
    ("logit_bias", Other),
    ("logprobs", Other),
    ("min_p", Other),
    ("modalities", Other),
    ("parallel_tool_calls", Other),
    ("presence_penalty", Other),
    ("prompt_cache_key", Other),
    ("prompt_cache_retention", Other),
    ("provider", Other),
    ("reasoning", Other),
    ("reasoning_effort", Other),
    ("repetition_penalty", Other),
    ("route", Other),
    ("safety_identifier", Other),
    ("seed", Other),
    ("session_id", Other),
    ("stop", Other),
    ("store", Other),
    ("stream_options", Other),
    ("top_a", Other),
    ("top_k", Other),
    ("top_logprobs", Other),
    ("trace", Other),
    ("transforms", Other),
    ("usage", Other),
    ("user", Other),
    ("verbosity", Other),
];

const RESPONSES: Table = &[
    ("input", Items),
    ("instructions", Items),
    ("text", Data),
    ("max_output_tokens", Output),
    ("prompt", Refers("a stored prompt")),
    // A WebSocket message may nest the request in this field.
    ("response", Refers("a nested request")),
    ("context_management", ContextManagement),
    // The type of a WebSocket message.
    ("type", Other),
    ("generate", Other),
    ("client_metadata", Other),
    ("include", Other),
    ("max_tool_calls", Other),
    ("parallel_tool_calls", Other),
    ("prompt_cache_key", Other),
    ("prompt_cache_retention", Other),
    ("provider", Other),
    ("reasoning", Other),
    ("safety_identifier", Other),
    ("session_id", Other),
    ("store", Other),
    ("stream_options", Other),
    ("top_logprobs", Other),
    ("truncation", Other),
    ("user", Other),
];

/// Returns the meaning of a field.
///
/// # Errors
/// The field is not in the tables, but a lenient server could read the field as a listed one. Its name has non-ASCII
/// characters, or differs only in case or punctuation from the name of a listed field other than [`Field::Other`].
pub(super) fn field(api: Api, name: &str) -> Result<Field, ()> {
    let own = match api {
        Api::Messages => MESSAGES,
        Api::ChatCompletions => CHAT,
        Api::Responses => RESPONSES,
    };
    let known = || own.iter().chain(COMMON);
    if let Some((_, field)) = known().find(|(known, _)| *known == name) {
        return Ok(*field);
    }
    let resembles = |known: &str| folded(known).eq(folded(name));
    if !name.is_ascii() || known().any(|(known, field)| *field != Other && resembles(known)) {
        return Err(());
    }
    Ok(Field::Unknown)
}

/// The letters and digits of a name in lower case.
fn folded(name: &str) -> impl Iterator<Item = u8> + '_ {
    name.bytes().filter(u8::is_ascii_alphanumeric).map(|byte| byte.to_ascii_lowercase())
}

/// Whether a field that is not in the tables could refer to content outside of the request. The check uses the last
/// word of the field's name.
pub(super) fn names_a_reference(name: &str) -> bool {
    let last = name.rsplit(['_', '-']).next().unwrap_or(name).to_ascii_lowercase();
    ["id", "ids", "url", "urls", "uri", "uris", "file", "files"].contains(&last.as_str())
}

/// Whether a model of this name reads content outside of the request. OpenRouter's search variants, OpenRouter's stored
/// presets and OpenAI's search models read such content.
pub(super) fn has_own_references(model: &str) -> bool {
    model.contains(":online") || model.contains("@preset/") || model.contains("search")
}

/// The types of tools that the agent runs itself.
const CLIENT_TOOLS: [&str; 9] = [
    "function",
    "custom",
    "local_shell",
    "shell",
    "apply_patch",
    "namespace",
    "computer_use_preview",
    "computer",
    "client",
];

/// The prefixes of types of tools that the agent runs itself. A date follows each prefix.
const DATED_CLIENT_TOOLS: [&str; 4] = ["bash_", "text_editor_", "computer_", "memory_"];

/// Whether the provider runs a tool of this type, so that the model may read more than the request contains.
pub(super) fn is_hosted_tool(kind: &str) -> bool {
    let dated = DATED_CLIENT_TOOLS.iter().filter_map(|begin| kind.strip_prefix(begin));
    !CLIENT_TOOLS.contains(&kind)
        && !dated.into_iter().any(|date| !date.is_empty() && date.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The kind of a block, a message or an item of a conversation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Block {
    /// The block has no type.
    #[default]
    Untyped,
    Image,
    Reasoning,
    /// The block refers to content outside of the request.
    Reference(&'static str),
    Other,
}

impl Block {
    pub(super) fn named(kind: &str) -> Self {
        match kind {
            "image" => Self::Image,
            "reasoning" => Self::Reasoning,
            "item_reference" => Self::Reference("a stored item"),
            "container_upload" => Self::Reference("a container"),
            // The length of a document in bytes says little about the number of its pages.
            "file" | "input_file" => Self::Reference("a document"),
            "image_generation_call" => Self::Reference("a stored image"),
            "video_url" | "input_video" | "video" => Self::Reference("a video"),
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_other_spellings_of_what_costs() {
        for (name, expected) in [
            ("max_output_tokens", Ok(Output)),
            ("Max_Output_Tokens", Err(())),
            ("maxOutputTokens", Err(())),
            ("max-output-tokens", Err(())),
            ("\u{17f}tream", Err(())),
            ("BACKGROUND", Err(())),
            ("User", Ok(Field::Unknown)),
            ("something_new", Ok(Field::Unknown)),
        ] {
            assert_eq!(field(Api::Responses, name), expected, "{name}");
        }
    }

    #[test]
    fn no_field_is_listed_twice() {
        for table in [MESSAGES, CHAT, RESPONSES] {
            let names: Vec<&str> = table.iter().chain(COMMON).map(|(name, _)| *name).collect();
            for (at, name) in names.iter().enumerate() {
                assert!(!names[at + 1..].contains(name), "{name}");
            }
        }
    }

    #[test]
    fn knows_the_tools_that_the_agent_runs() {
        for kind in ["function", "custom", "bash_20250124", "text_editor_20250728", "local_shell"] {
            assert!(!is_hosted_tool(kind), "{kind}");
        }
        for kind in [
            "web_search",
            "web_search_20250305",
            "mcp",
            "code_interpreter",
            "bash_code_execution",
            "bash_",
            "",
        ] {
            assert!(is_hosted_tool(kind), "{kind}");
        }
    }
}
