//! Anthropic's Messages: an answer as a JSON document, or the same answer as events.

use bytes::Bytes;
use serde_json::{Value, json};

use super::reply::Reply;
use super::sse;

/// The number of output tokens that every answer reports.
pub(super) const OUTPUT_TOKENS: usize = 17;

pub(super) fn json(reply: &Reply<'_>) -> Value {
    json!({
        "id": reply.id("msg_"), "type": "message", "role": "assistant", "model": reply.model,
        "content": [block(reply)],
        "stop_reason": stop_reason(reply), "stop_sequence": null,
        "usage": usage(reply, OUTPUT_TOKENS),
    })
}

pub(super) fn events(reply: &Reply<'_>) -> Vec<Bytes> {
    let mut start = json(reply);
    start["content"] = json!([]);
    start["stop_reason"] = Value::Null;
    start["usage"] = usage(reply, 1);
    let mut events = vec![json!({"type": "message_start", "message": start})];
    let mut block = block(reply);
    let (field, kind, text) = match reply.call() {
        Some(call) => ("input", "input_json_delta", call.arguments.to_string()),
        None => ("text", "text_delta", reply.text().to_owned()),
    };
    block[field] = if field == "input" { json!({}) } else { json!("") };
    events.push(json!({"type": "content_block_start", "index": 0, "content_block": block}));
    events.push(json!({"type": "ping"}));
    let piece_field = if field == "input" { "partial_json" } else { "text" };
    for piece in sse::pieces(&text) {
        events.push(json!({"type": "content_block_delta", "index": 0,
            "delta": {"type": kind, piece_field: piece}}));
    }
    events.push(json!({"type": "content_block_stop", "index": 0}));
    events.push(json!({"type": "message_delta",
        "delta": {"stop_reason": stop_reason(reply), "stop_sequence": null},
        "usage": {"output_tokens": OUTPUT_TOKENS}}));
    events.push(json!({"type": "message_stop"}));
    events.iter().map(sse::named).collect()
}

/// The body of an error response.
pub(super) fn error(kind: &str, message: &str) -> Value {
    json!({"type": "error", "error": {"type": kind, "message": message}})
}

fn block(reply: &Reply<'_>) -> Value {
    match reply.call() {
        Some(call) => {
            json!({"type": "tool_use", "id": reply.id("toolu_"), "name": call.tool.name(), "input": call.arguments})
        }
        None => json!({"type": "text", "text": reply.text()}),
    }
}

fn stop_reason(reply: &Reply<'_>) -> &'static str {
    if reply.call().is_some() { "tool_use" } else { "end_turn" }
}

fn usage(reply: &Reply<'_>, output: usize) -> Value {
    json!({"input_tokens": reply.input_tokens, "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0, "output_tokens": output})
}
