//! Requests of the three APIs, as agents and as attackers write them.

use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::json;

use super::walk::{BAD_COUNT, BAD_KEY, BAD_LIMIT, BAD_MODEL, BAD_NUMBER, BAD_SPELLING, BAD_STREAM};
use super::*;

/// Reads each body with the same hash keys, so that fingerprints can be compared.
fn read(api: Api, body: &str) -> Result<MeteredRequest, NotARequest> {
    static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    MeteredRequest::read(api, body.as_bytes(), &KEYS, true)
}

fn good(api: Api, body: &str) -> MeteredRequest {
    read(api, body).unwrap_or_else(|error| panic!("{error}: {body}"))
}

#[test]
fn reads_what_decides() {
    let messages = r#"{"model":"claude-opus-4-8","max_tokens":32000,"stream":true,"system":[{"type":"text","text":"Be brief."}],
        "messages":[{"role":"user","content":"Hi"}],"tools":[{"name":"Bash","input_schema":{"type":"object","properties":{"url":{"type":"string"}}}}],
        "metadata":{"user_id":"u"},"thinking":{"type":"enabled","budget_tokens":31999},"context_management":{"edits":[{"type":"clear_thinking_20251015"}]}}"#;
    let request = good(Api::Messages, messages);
    assert_eq!((request.model.as_deref(), request.output), (Some("claude-opus-4-8"), Some(32_000)));
    assert!(request.streams && !request.background && request.text > 10, "{request:?}");
    assert_eq!((request.completions, request.reference), (1, None));
    let chat = good(Api::ChatCompletions, r#"{"model":"m","max_tokens":5,"max_completion_tokens":7,"n":3}"#);
    assert_eq!((chat.output, chat.completions), (Some(7), 3));
    let escaped = r#"{"model":"m","input":"x","metadata":{"max_output_tokens":1},"max_output_t\u006fkens":64000,"backgr\u006fund":true}"#;
    let responses = good(Api::Responses, escaped);
    assert_eq!((responses.output, responses.background), (Some(64_000), true));
    assert_eq!(good(Api::ChatCompletions, r#"{"n":128,"max_tokens":null}"#).completions, MAX_COMPLETIONS);
    for n in [r#""2""#, "129", "1000000", "-1"] {
        let body = format!(r#"{{"n":{n}}}"#);
        assert_eq!(read(Api::ChatCompletions, &body).expect_err(n).to_string(), BAD_COUNT, "{n}");
    }
}

/// Some servers read a limit of 0 as no limit.
#[test]
fn a_limit_of_zero_is_none() {
    for body in [
        r#"{"max_tokens":0}"#,
        r#"{"max_tokens":0,"max_completion_tokens":5}"#,
        r#"{"max_completion_tokens":5,"max_tokens":0}"#,
    ] {
        assert_eq!(good(Api::ChatCompletions, body).output, None, "{body}");
    }
}

#[test]
fn decoys_of_a_limit_change_nothing() {
    for body in [
        r#"{"max_tokens":900,"messages":[{"role":"user","content":"\"max_tokens\":1"}]}"#,
        r#"{"metadata":{"max_tokens":1},"max_tokens":900}"#,
        r#"{"x":[{"max_tokens":1}],"max_tokens":900,"y":{"max_tokens":9000}}"#,
    ] {
        assert_eq!(good(Api::Messages, body).output, Some(900), "{body}");
    }
}

#[test]
fn refuses_what_has_two_meanings() {
    let deep = format!(r#"{{"messages":{}1{}}}"#, "[".repeat(200), "]".repeat(200));
    let digits = format!(r#"{{"messages":[{}]}}"#, "1".repeat(400));
    for (body, why) in [
        ("", "is not a valid JSON object"),
        ("[]", "is not a valid JSON object"),
        ("\u{feff}{}", "is not a valid JSON object"),
        ("{}{}", "is not a valid JSON object"),
        (r#"{"a":1,}"#, "is not a valid JSON object"),
        (r#"{"a":NaN}"#, "is not a valid JSON object"),
        (r#"{"a":"\ud800"}"#, "is not a valid JSON object"),
        (deep.as_str(), "is not a valid JSON object"),
        (r#"{"max_tokens":1,"max_tokens":9}"#, BAD_KEY),
        (r#"{"max_tokens":1,"max_t\u006fkens":9}"#, BAD_KEY),
        (r#"{"messages":[{"role":"user","content":[{"type":"text","type":"image"}]}]}"#, BAD_KEY),
        (r#"{"Max_Tokens":1}"#, BAD_SPELLING),
        (r#"{"maxTokens":1}"#, BAD_SPELLING),
        (r#"{"max_tokens":"5"}"#, BAD_LIMIT),
        (r#"{"max_tokens":-5}"#, BAD_LIMIT),
        (r#"{"max_tokens":1e3}"#, BAD_LIMIT),
        (r#"{"max_tokens":99999999999999999999999}"#, BAD_NUMBER),
        (digits.as_str(), "is not a valid JSON object"),
        (r#"{"stream":"yes"}"#, BAD_STREAM),
        (r#"{"model":["m"]}"#, BAD_MODEL),
    ] {
        assert_eq!(read(Api::Messages, body).expect_err(body).to_string(), why, "{body}");
    }
    assert!(MeteredRequest::read(Api::Messages, b"{\"a\":\"\xff\"}", &RandomState::new(), false).is_err());
    let wide: Vec<u8> = "{\"a\":1}".encode_utf16().flat_map(u16::to_le_bytes).collect();
    assert!(MeteredRequest::read(Api::Messages, &wide, &RandomState::new(), false).is_err());
}

#[test]
fn names_what_the_request_only_refers_to() {
    let block = |block: serde_json::Value| json!({"messages": [{"role": "user", "content": [block]}]});
    let source = |kind: &str, source: serde_json::Value| block(json!({"type": kind, "source": source}));
    let item = |item: serde_json::Value| json!({"input": [item]});
    let tool = |tool: serde_json::Value| json!({"tools": [tool]});
    let (messages, chat, responses) = (Api::Messages, Api::ChatCompletions, Api::Responses);
    for (api, body) in [
        (responses, json!({"previous_response_id": "r"})),
        (responses, json!({"conversation": {"id": "c"}})),
        (responses, json!({"instructions": [{"id": "i"}]})),
        (responses, json!({"prompt": {"id": "p"}})),
        (responses, json!({"context_management": [{"type": "compaction", "compact_threshold": 5}]})),
        (responses, item(json!({"type": "item_reference", "id": "i"}))),
        (responses, item(json!({"id": "i"}))),
        (responses, item(json!({"type": null, "id": "i"}))),
        (responses, item(json!({"type": "reasoning", "id": "r", "summary": []}))),
        (responses, item(json!({"type": "reasoning", "id": "r", "summary": [], "content": []}))),
        (responses, item(json!({"type": "reasoning", "id": "r", "summary": [], "encrypted_content": ""}))),
        (
            responses,
            item(
                json!({"type": "reasoning", "id": "r", "content": [{"type": "reasoning_text", "text": ""}, null, []]}),
            ),
        ),
        (responses, item(json!({"role": "", "id": "i"}))),
        (responses, item(json!({"type": "additional_tools", "tools": [{"type": "web_search"}]}))),
        (
            responses,
            item(
                json!({"type": "tool_search_output", "call_id": "c", "tools": [{"type": "namespace", "tools": [{"type": "mcp", "server_url": "u"}]}]}),
            ),
        ),
        (responses, item(json!({"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}))),
        (
            responses,
            item(json!({"role": "user", "content": [{"type": "input_file", "file_data": "data:x"}]})),
        ),
        (responses, item(json!({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}))),
        (
            responses,
            item(json!({"role": "user", "content": [{"image_url": "https://x", "type": "input_image"}]})),
        ),
        (
            responses,
            item(
                json!({"type": "function_call_output", "output": [{"type": "input_image", "image_url": "http://x"}]}),
            ),
        ),
        (responses, tool(json!({"type": "web_search"}))),
        (responses, tool(json!({"type": "mcp", "server_url": "https://x"}))),
        (responses, tool(json!({"type": "code_interpreter", "container": {"type": "auto"}}))),
        (responses, tool(json!({"type": "namespace", "tools": [{"type": "file_search"}]}))),
        (messages, source("image", json!({"type": "url", "url": "https://x"}))),
        (messages, source("image", json!({"type": "file", "file_id": "f"}))),
        (
            messages,
            source("document", json!({"type": "base64", "data": "JVBERi0", "media_type": "application/pdf"})),
        ),
        (messages, source("document", json!({"data": "JVBERi0"}))),
        (
            messages,
            source(
                "document",
                json!({"type": "content", "content": [{"type": "image", "source": {"type": "url", "url": "u"}}]}),
            ),
        ),
        (messages, block(json!({"type": "container_upload", "file_id": "f"}))),
        (
            messages,
            block(
                json!({"type": "tool_result", "content": [{"type": "image", "source": {"type": "url", "url": "u"}}]}),
            ),
        ),
        (messages, json!({"mcp_servers": [{"url": "https://x"}]})),
        (messages, json!({"container": "c"})),
        (messages, json!({"context_management": {"edits": [{"type": "compact_20260112"}]}})),
        (messages, tool(json!({"type": "web_search_20250305", "name": "web_search"}))),
        (messages, json!({"some_new_id": "x"})),
        (messages, json!({"new": {"more": [{"file_ids": ["x"]}]}})),
        (chat, block(json!({"type": "image_url", "image_url": {"url": "https://x"}}))),
        (chat, block(json!({"type": "file", "file": {"file_id": "f"}}))),
        (chat, block(json!({"type": "video_url", "video_url": {"url": "https://x"}}))),
        (chat, json!({"web_search_options": {}})),
        (chat, json!({"messages": [{"role": "assistant", "audio": {"id": "a"}}]})),
        (chat, json!({"plugins": [{"id": "web"}]})),
        (chat, json!({"model": "openai/gpt-5.1:online"})),
        (chat, json!({"previous_response_id": "r"})),
    ] {
        assert!(good(api, &body.to_string()).reference.is_some(), "{body}");
    }
}

#[test]
fn what_agents_send_refers_to_nothing() {
    let call = json!({"type": "tool_use", "id": "t", "name": "WebFetch", "input": {"url": "https://x", "file_id": 5, "type": "url"}});
    let image = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}});
    let result = json!({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "ok"}, image]});
    let messages = json!([
        {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": "s"}, call]},
        {"role": "user", "content": [result, {"type": "document", "source": {"type": "text", "data": "plain"}, "citations": {"enabled": true}}]},
    ]);
    let request = good(Api::Messages, &json!({"messages": messages, "max_tokens": 5}).to_string());
    assert_eq!(request.reference, None);
    assert!(request.images == 1 && request.other < 20, "the bytes of the image are no text: {request:?}");
    let input = json!([
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}, {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]},
        {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "gAAA"},
        {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "x"}]},
        {"type": "tool_search_output", "call_id": "c", "tools": [{"type": "function", "name": "f", "parameters": {"tools": "x"}}]},
        {"type": "mcp_list_tools", "server_label": "l", "tools": [{"name": "t", "input_schema": {"type": "object"}}]},
        {"type": "function_call", "id": "f", "call_id": "c", "name": "shell", "arguments": "{\"url\":\"https://x\"}"},
        {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "*** Begin Patch"},
        {"type": "function_call_output", "call_id": "c", "output": "{\"output\":\"ok\"}"},
        {"role": "user", "content": "x"},
    ]);
    let tools = json!([{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {"type": {"type": "string"}}}}, {"type": "custom", "name": "apply_patch"}]);
    let body = json!({"model": "gpt-5.1-codex", "instructions": "x", "input": input, "tools": tools, "tool_choice": "auto", "store": false,
        "stream": true, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k", "reasoning": {"effort": "high"},
        "client_metadata": {"session_id": "x"}, "previous_response_id": null});
    assert_eq!(good(Api::Responses, &body.to_string()).reference, None);
    let chat = json!({"model": "m", "messages": [
        {"role": "assistant", "content": null, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "bash", "arguments": "{\"url\":1}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "ok"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "high"}}]}],
        "stream": true, "stream_options": {"include_usage": true}, "usage": {"include": true}, "provider": {"order": ["x"]}});
    assert_eq!(good(Api::ChatCompletions, &chat.to_string()).reference, None);
}

#[test]
fn counts_what_the_model_reads_and_not_the_padding() {
    let body = |padding: &str| {
        format!(r#"{{"model":"m","messages":[{{"role":"user","content":"Hello there"}}]{padding}}}"#)
    };
    let plain = good(Api::Messages, &body(""));
    for padding in ["      ", r#","metadata":{"x":"aaaa aaaa aaaa"}"#, r#","unknown":"aaaa aaaa aaaa""#] {
        let padded = good(Api::Messages, &body(padding));
        assert_eq!((padded.text, padded.fingerprint), (plain.text, plain.fingerprint), "{padding}");
        assert!(padded.prompt() >= plain.prompt());
    }
    let escaped = body("").replace("Hello", r"\u0048ello");
    assert_eq!(good(Api::Messages, &escaped), plain);
    // The keys of a JSON schema are text that the model reads.
    let schema = |name: &str| {
        format!(r#"{{"tools":[{{"name":"t","input_schema":{{"properties":{{"{name}":{{}}}}}}}}]}}"#)
    };
    let text = |name: &str| good(Api::Messages, &schema(name)).text;
    assert_eq!(text(&"word ".repeat(1000)) - text(""), count::tokens(&"word ".repeat(1000)));
    assert_ne!(good(Api::Messages, &body("").replace("there", "here")).fingerprint, plain.fingerprint);
    let number = |number: u64| good(Api::Messages, &format!(r#"{{"messages":[{number}]}}"#)).fingerprint;
    assert_ne!(number(1), number(252));
}

#[test]
fn another_image_is_another_prompt() {
    let image = |data: &str| {
        let source = json!({"type": "base64", "media_type": "image/png", "data": data});
        let body = json!({"messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]});
        good(Api::Messages, &body.to_string()).fingerprint
    };
    assert!(image("AAAA") == image("AAAA") && image("AAAA") != image("AAAB"));
    let url = |data: &str| {
        let part = json!({"type": "input_image", "image_url": format!("data:image/png;base64,{data}")});
        good(Api::Responses, &json!({"input": [{"role": "user", "content": [part]}]}).to_string()).fingerprint
    };
    assert!(url("AAAA") == url("AAAA") && url("AAAA") != url("AAAB"));
}

#[test]
fn a_gateway_that_may_choose_another_model_has_none() {
    assert_eq!(good(Api::ChatCompletions, r#"{"model":"o1","models":["x"]}"#).model, None);
    assert_eq!(good(Api::ChatCompletions, r#"{"models":["x"],"model":"o1"}"#).model, None);
    assert_eq!(good(Api::ChatCompletions, "{\"model\":\"\u{e9}\"}").model, None);
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        for api in [Api::Messages, Api::ChatCompletions, Api::Responses] {
            let _ = MeteredRequest::read(api, &bytes, &RandomState::new(), false);
        }
    }

    /// The tokens of every string of a request are part of `text` or of `other`.
    #[test]
    fn no_text_is_hidden(key in "[a-z]{1,8}", text in "[a-z ]{0,40}", depth in 0_usize..40) {
        let value = (0..depth).fold(json!(text), |value, level| if level % 2 == 0 { json!([value]) } else { json!({ &key: value }) });
        for field in ["messages", "system", "tools", "metadata", "x"] {
            let body = json!({ field: value }).to_string();
            let request = good(Api::Messages, &body);
            prop_assert!(request.text + request.other >= count::tokens(&text), "{}", body);
        }
    }
}
