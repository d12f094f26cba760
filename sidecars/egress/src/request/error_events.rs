//! Errors with which the proxy ends a stream of server-sent events.
//!
//! An MCP client waits for the answer to its request, and treats a stream that ends without an answer as a lost
//! connection. The error event therefore contains the id of the request (JSON-RPC 2.0, 5.1).

use bottle_policy::decide::Refusal;
use http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE};
use http::response::Parts;
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

/// The media type of a stream of events.
const EVENTS: &str = "text/event-stream";

/// The longest request id that an error contains, in bytes.
const MAX_ID: usize = 256;

/// The code of an error that the server defines (JSON-RPC 2.0, 5.1).
const SERVER_ERROR: i32 = -32000;

/// The format of the error events in one stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ErrorEvents {
    /// The id of the request, if it is a JSON-RPC request.
    id: Option<Value>,
}

impl ErrorEvents {
    /// Returns `None` if no event can be added to the response. `id` is the id of the request.
    pub(super) fn for_response(parts: &Parts, is_encoded: bool, id: Option<Value>) -> Option<Self> {
        let kind = parts.headers.get(CONTENT_TYPE)?.to_str().ok()?;
        let has_end =
            parts.headers.contains_key(CONTENT_LENGTH) || parts.status == StatusCode::PARTIAL_CONTENT;
        (is_events(kind) && !is_encoded && !has_end).then_some(Self { id })
    }

    /// Returns the error event for a denial.
    pub(super) fn of(&self, refusal: &Refusal) -> String {
        let about = json!({"reason": refusal.reason.as_str(), "host": refusal.host});
        match &self.id {
            Some(id) => {
                let error = json!({"code": SERVER_ERROR, "message": refusal.sentence, "data": about});
                format!("event: message\ndata: {}\n\n", json!({"jsonrpc": "2.0", "id": id, "error": error}))
            }
            None => {
                let error = json!({"error": {"message": refusal.sentence, "data": about}});
                format!("event: error\ndata: {error}\n\n")
            }
        }
    }
}

/// Whether the client of a request accepts a stream of events.
pub(super) fn accepts_events(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|kind| is_events(kind.trim()))
}

/// Returns the id of a JSON-RPC request.
pub(super) fn request_id(body: &[u8]) -> Option<Value> {
    #[derive(Deserialize)]
    struct Request {
        #[serde(rename = "jsonrpc")]
        _version: serde::de::IgnoredAny,
        id: Value,
    }
    let Request { id, .. } = serde_json::from_slice(body).ok()?;
    match &id {
        Value::Number(_) => Some(id),
        Value::String(text) if text.len() <= MAX_ID => Some(id),
        _ => None,
    }
}

fn is_events(kind: &str) -> bool {
    kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(EVENTS)
}

#[cfg(test)]
mod tests {
    use bottle_policy::decide::Reason;
    use http::{HeaderValue, Response};

    use super::*;

    #[test]
    fn an_error_answers_the_request() {
        let refusal = Refusal::later(Reason::InjectionFound, "h.example", "an order");
        let data = |events: &ErrorEvents| -> Value {
            let event = events.of(&refusal);
            let (_, data) = event.split_once("data: ").expect("data");
            assert!(event.ends_with("\n\n") && !data.trim_end().contains('\n'), "{event}");
            serde_json::from_str(data).expect("JSON")
        };
        let answer = data(&ErrorEvents { id: Some(json!("a\nb")) });
        assert_eq!((&answer["jsonrpc"], &answer["id"]), (&json!("2.0"), &json!("a\nb")));
        assert_eq!(answer["error"]["data"]["reason"], "injection-found");
        let answer = data(&ErrorEvents { id: None });
        assert_eq!(answer["error"]["message"], refusal.sentence.as_str());
    }

    #[test]
    fn only_requests_of_json_rpc_have_an_id() {
        for (body, id) in [
            (r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"id":8}}"#, Some(json!(7))),
            (r#"{"jsonrpc":"2.0","method":"x","id":"a"}"#, Some(json!("a"))),
            (r#"{"jsonrpc":"2.0","method":"notifications/x"}"#, None),
            (r#"{"jsonrpc":"2.0","id":null,"method":"x"}"#, None),
            (r#"{"jsonrpc":"2.0","id":{"a":1},"method":"x"}"#, None),
            (r#"{"id":7}"#, None),
            (r#"[{"jsonrpc":"2.0","id":7}]"#, None),
            ("id=7", None),
        ] {
            assert_eq!(request_id(body.as_bytes()), id, "{body}");
        }
        assert_eq!(request_id(json!({"jsonrpc": "2.0", "id": "x".repeat(300)}).to_string().as_bytes()), None);
    }

    #[test]
    fn events_are_added_only_where_they_can_be_read() {
        let of = |status: u16, headers: &[(&'static str, &'static str)], is_encoded| {
            let mut response = Response::new(());
            *response.status_mut() = StatusCode::from_u16(status).expect("status");
            for (name, value) in headers {
                response.headers_mut().insert(*name, HeaderValue::from_static(value));
            }
            ErrorEvents::for_response(&response.into_parts().0, is_encoded, None).is_some()
        };
        let kind = ("content-type", "Text/Event-Stream; charset=utf-8");
        assert!(of(200, &[kind], false));
        assert!(!of(200, &[kind], true));
        assert!(!of(206, &[kind], false));
        assert!(!of(200, &[kind, ("content-length", "9")], false));
        assert!(!of(200, &[("content-type", "application/json")], false));
    }
}
