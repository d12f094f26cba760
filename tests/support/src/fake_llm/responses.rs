//! OpenAI's Responses: an answer as a JSON document, or the same answer as events of a stream or a WebSocket.

use serde_json::{Value, json};

use super::messages::OUTPUT_TOKENS;
use super::reply::Reply;
use super::sse;
use super::tool::ShellTool;

/// The answer to codex's first request with a ChatGPT login, which asks for the account's workspaces.
pub(super) fn accounts(headers: &http::HeaderMap) -> Value {
    let id = headers.get("chatgpt-account-id").and_then(|id| id.to_str().ok()).unwrap_or_default();
    let free = "NO_CONSTRAINT";
    json!({"accounts": [{"id": id, "workspace_backend_origin": free, "account_routing_override": free}],
        "account_ordering": [id]})
}

pub(super) fn json(reply: &Reply<'_>) -> Value {
    response(reply, "completed", json!([item(reply)]), usage(reply))
}

/// The response to a request that asks for no answer of the model.
pub(super) fn prepared(reply: &Reply<'_>) -> Vec<Value> {
    let none = json!({"input_tokens": 0, "output_tokens": 0, "total_tokens": 0});
    let [begun, done] = [("in_progress", Value::Null), ("completed", none)]
        .map(|(status, usage)| response(reply, status, json!([]), usage));
    vec![
        json!({"type": "response.created", "response": begun}),
        json!({"type": "response.completed", "response": done}),
    ]
}

pub(super) fn events(reply: &Reply<'_>) -> Vec<Value> {
    let item = item(reply);
    let open = response(reply, "in_progress", json!([]), Value::Null);
    let mut begun = item.clone();
    begun["status"] = json!("in_progress");
    let mut events = vec![
        json!({"type": "response.created", "response": open}),
        json!({"type": "response.in_progress", "response": open}),
    ];
    let deltas = match item["type"].as_str() {
        Some("message") => {
            begun["content"] = json!([]);
            text_events(&item)
        }
        Some("function_call") => {
            begun["arguments"] = json!("");
            delta_events(&item, "response.function_call_arguments", "arguments")
        }
        Some("custom_tool_call") => {
            begun["input"] = json!("");
            delta_events(&item, "response.custom_tool_call_input", "input")
        }
        _ => Vec::new(),
    };
    events.push(json!({"type": "response.output_item.added", "output_index": 0, "item": begun}));
    events.extend(deltas);
    events.push(json!({"type": "response.output_item.done", "output_index": 0, "item": item}));
    events.push(json!({"type": "response.completed", "response": json(reply)}));
    for (number, event) in events.iter_mut().enumerate() {
        event["sequence_number"] = json!(number);
    }
    events
}

fn text_events(item: &Value) -> Vec<Value> {
    let part = &item["content"][0];
    let mut empty = part.clone();
    empty["text"] = json!("");
    let place = |mut event: Value| {
        event["item_id"] = item["id"].clone();
        event["output_index"] = json!(0);
        event["content_index"] = json!(0);
        event
    };
    let text = part["text"].as_str().unwrap_or_default();
    let mut events = vec![place(json!({"type": "response.content_part.added", "part": empty}))];
    events.extend(
        sse::pieces(text)
            .into_iter()
            .map(|piece| place(json!({"type": "response.output_text.delta", "delta": piece}))),
    );
    events.push(place(json!({"type": "response.output_text.done", "text": text})));
    events.push(place(json!({"type": "response.content_part.done", "part": part})));
    events
}

fn delta_events(item: &Value, prefix: &str, field: &str) -> Vec<Value> {
    let text = item[field].as_str().unwrap_or_default();
    let mut events: Vec<Value> = sse::pieces(text)
        .into_iter()
        .map(|piece| {
            json!({"type": format!("{prefix}.delta"), "item_id": item["id"], "output_index": 0, "delta": piece})
        })
        .collect();
    events.push(json!({"type": format!("{prefix}.done"), "item_id": item["id"], "output_index": 0,
        field: text}));
    events
}

fn item(reply: &Reply<'_>) -> Value {
    let Some(call) = reply.call() else {
        return json!({"type": "message", "id": reply.id("msg_"), "status": "completed", "role": "assistant",
            "content": [{"type": "output_text", "text": reply.text(), "annotations": []}]});
    };
    let common = json!({"id": reply.id("fc_"), "call_id": reply.id("call_"), "status": "completed"});
    let own = match &call.tool {
        ShellTool::Function { namespace, .. } => {
            let mut own = json!({"type": "function_call", "name": call.tool.name(),
                "arguments": call.arguments.to_string()});
            if let Some(namespace) = namespace {
                own["namespace"] = json!(namespace);
            }
            own
        }
        ShellTool::Custom { .. } => {
            json!({"type": "custom_tool_call", "name": call.tool.name(), "input": call.arguments})
        }
        ShellTool::LocalShell => json!({"type": "local_shell_call", "action": call.arguments}),
    };
    let mut item = common;
    for (key, value) in own.as_object().into_iter().flatten() {
        item[key] = value.clone();
    }
    item
}

fn response(reply: &Reply<'_>, status: &str, output: Value, usage: Value) -> Value {
    json!({"id": reply.id("resp_"), "object": "response", "created_at": 0, "status": status,
        "model": reply.model, "output": output, "usage": usage, "error": null,
        "incomplete_details": null, "parallel_tool_calls": false, "tools": []})
}

fn usage(reply: &Reply<'_>) -> Value {
    json!({"input_tokens": reply.input_tokens, "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": OUTPUT_TOKENS, "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.input_tokens + OUTPUT_TOKENS})
}
