//! Server-sent events in the forms that the three formats use.

use bytes::Bytes;
use serde_json::Value;

/// Formats an event `event: NAME` with a JSON payload, for Messages and Responses.
pub(super) fn named(payload: &Value) -> Bytes {
    let name = payload["type"].as_str().unwrap_or("message");
    Bytes::from(format!("event: {name}\ndata: {payload}\n\n"))
}

/// Formats a JSON payload without a name, for Chat Completions.
pub(super) fn unnamed(payload: &Value) -> Bytes {
    Bytes::from(format!("data: {payload}\n\n"))
}

/// The event that ends a Chat Completions stream.
pub(super) const DONE: Bytes = Bytes::from_static(b"data: [DONE]\n\n");

/// Splits a text into pieces of a few characters, similar to a model's tokens.
pub(super) fn pieces(text: &str) -> Vec<String> {
    text.chars().collect::<Vec<_>>().chunks(8).map(|piece| piece.iter().collect()).collect()
}
