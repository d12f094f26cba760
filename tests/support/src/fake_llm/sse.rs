//! Server-sent events as the three formats write them.

use bytes::Bytes;
use serde_json::Value;

/// `event: NAME` with a JSON payload (Messages, Responses).
pub(super) fn named(payload: &Value) -> Bytes {
    let name = payload["type"].as_str().unwrap_or("message");
    Bytes::from(format!("event: {name}\ndata: {payload}\n\n"))
}

/// A JSON payload without a name (Chat Completions).
pub(super) fn unnamed(payload: &Value) -> Bytes {
    Bytes::from(format!("data: {payload}\n\n"))
}

/// The last line of a Chat Completions stream.
pub(super) const DONE: Bytes = Bytes::from_static(b"data: [DONE]\n\n");

/// A text in pieces of a few characters, as a model's tokens arrive.
pub(super) fn pieces(text: &str) -> Vec<String> {
    text.chars().collect::<Vec<_>>().chunks(8).map(|piece| piece.iter().collect()).collect()
}
