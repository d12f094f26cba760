//! OpenAI's Responses over a WebSocket: a message `response.create` is a request, and each event of its answer is a
//! message.
//!
//! A request that names the previous response contains only new input, so the server keeps the earlier input of a
//! connection.

use std::sync::Arc;

use futures_util::{SinkExt, StreamExt};
use http::request::Parts;
use hyper::StatusCode;
use hyper::upgrade::OnUpgrade;
use serde_json::Value;
use tokio_tungstenite::tungstenite::Message;

use super::answer::State;
use super::conversation::{Api, Conversation};
use super::responses;
use crate::websocket;

/// Answers requests until the client closes the connection.
pub(super) async fn serve(state: Arc<State>, parts: Parts, upgrade: OnUpgrade) {
    let Some(mut socket) = websocket::open(upgrade).await else { return };
    let mut input = Vec::new();
    while let Some(Ok(message)) = socket.next().await {
        let Message::Text(text) = message else { continue };
        let Some(body) = complete(&text, &mut input) else { return };
        let Some(conversation) = Conversation::read(Api::Responses, &body) else { return };
        state.record(&parts, "WebSocket".to_owned(), body, Some(&conversation), StatusCode::OK);
        let reply = state.reply(&conversation);
        let events =
            if conversation.generates { responses::events(&reply) } else { responses::prepared(&reply) };
        for event in events {
            if socket.send(Message::text(event.to_string())).await.is_err() {
                return;
            }
        }
    }
}

/// Returns the request in a message with its complete input, and stores this input in `before`. Returns `None` if the
/// message is not a request.
fn complete(text: &str, before: &mut Vec<Value>) -> Option<String> {
    let mut request: Value = serde_json::from_str(text).ok()?;
    let new = request["input"].as_array()?.clone();
    if request["type"] != "response.create" {
        return None;
    }
    if request["previous_response_id"].is_null() {
        before.clear();
    }
    before.extend(new);
    request["input"] = Value::from(before.clone());
    Some(request.to_string())
}
