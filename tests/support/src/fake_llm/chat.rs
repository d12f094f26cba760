//! OpenAI's Chat Completions: an answer as a JSON document, or the same answer as chunks.

use bytes::Bytes;
use serde_json::{Value, json};

use super::messages::OUTPUT_TOKENS;
use super::reply::Reply;
use super::sse;

pub(super) fn json(reply: &Reply<'_>) -> Value {
    json!({
        "id": reply.id("chatcmpl-"), "object": "chat.completion", "created": 0, "model": reply.model,
        "choices": [{"index": 0, "message": message(reply), "finish_reason": finish_reason(reply)}],
        "usage": usage(reply),
    })
}

pub(super) fn events(reply: &Reply<'_>, with_usage: bool) -> Vec<Bytes> {
    let mut deltas = vec![json!({"role": "assistant", "content": null})];
    match reply.call() {
        Some(call) => {
            deltas.push(json!({"tool_calls": [{"index": 0, "id": reply.id("call_"), "type": "function",
                "function": {"name": call.tool.name(), "arguments": ""}}]}));
            deltas.extend(
                sse::pieces(&call.arguments.to_string())
                    .into_iter()
                    .map(|piece| json!({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})),
            );
        }
        None => deltas.extend(sse::pieces(reply.text()).into_iter().map(|piece| json!({"content": piece}))),
    }
    let mut events: Vec<Bytes> =
        deltas.into_iter().map(|delta| sse::unnamed(&chunk(reply, delta, Value::Null))).collect();
    events.push(sse::unnamed(&chunk(reply, json!({}), json!(finish_reason(reply)))));
    if with_usage {
        let mut last = chunk(reply, Value::Null, Value::Null);
        last["choices"] = json!([]);
        last["usage"] = usage(reply);
        events.push(sse::unnamed(&last));
    }
    events.push(sse::DONE);
    events
}

/// The body of an error response, which the Responses format uses too.
pub(super) fn error(kind: &str, message: &str) -> Value {
    json!({"error": {"type": kind, "code": kind, "message": message, "param": null}})
}

fn chunk(reply: &Reply<'_>, delta: Value, finish_reason: Value) -> Value {
    json!({"id": reply.id("chatcmpl-"), "object": "chat.completion.chunk", "created": 0,
        "model": reply.model,
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})
}

fn message(reply: &Reply<'_>) -> Value {
    match reply.call() {
        Some(call) => json!({"role": "assistant", "content": null, "tool_calls": [{
            "id": reply.id("call_"), "type": "function",
            "function": {"name": call.tool.name(), "arguments": call.arguments.to_string()}}]}),
        None => json!({"role": "assistant", "content": reply.text()}),
    }
}

fn finish_reason(reply: &Reply<'_>) -> &'static str {
    if reply.call().is_some() { "tool_calls" } else { "stop" }
}

fn usage(reply: &Reply<'_>) -> Value {
    // The field `cost` is an addition by OpenRouter.
    json!({"prompt_tokens": reply.input_tokens, "completion_tokens": OUTPUT_TOKENS,
        "total_tokens": reply.input_tokens + OUTPUT_TOKENS,
        "prompt_tokens_details": {"cached_tokens": 0}, "cost": 0.0})
}
