//! Handles one request: checks the key, selects the model's turn, renders it in the request's format, and
//! injects faults.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::request::Parts;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};

use super::conversation::{Api, Conversation};
use super::fault::FaultKind;
use super::reply::Reply;
use super::{Options, Seen, Used, chat, messages, responses, socket, sse};
use crate::body::{Body, Pace, paced, whole};
use crate::server::Answer;
use crate::websocket;

/// The maximum size of a request body in bytes; a larger request is refused as invalid. The first request of
/// Claude Code has 110 KB.
const BODY_LIMIT: usize = 16 << 20;

/// The state that all requests share.
pub(super) struct State {
    pub(super) options: Options,
    pub(super) seen: Mutex<Vec<Seen>>,
    /// How many times each fault of `options.faults` has been injected.
    pub(super) fault_uses: Mutex<Vec<usize>>,
}

pub(super) async fn answer(state: Arc<State>, mut request: Request<Incoming>) -> Answer {
    let upgrade = hyper::upgrade::on(&mut request);
    let (parts, body) = request.into_parts();
    // A body that is interrupted or too long is treated as empty, and the request is refused as invalid.
    let body = Limited::new(body, BODY_LIMIT).collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let body = String::from_utf8_lossy(&body).into_owned();
    let api = Api::of_path(parts.uri.path());
    let conversation = api.and_then(|api| Conversation::read(api, &body));
    let response = respond(&state, &parts, api, conversation.as_ref());
    let status = response.status();
    state.record(&parts, format!("{:?}", parts.version), body, conversation.as_ref(), status);
    if status == StatusCode::SWITCHING_PROTOCOLS {
        tokio::spawn(socket::serve(state, parts, upgrade));
    }
    Some(response)
}

impl State {
    /// Adds a request to the requests that the test can see.
    pub(super) fn record(
        &self,
        parts: &Parts,
        protocol: String,
        body: String,
        conversation: Option<&Conversation>,
        status: StatusCode,
    ) {
        let seen = Seen {
            method: parts.method.to_string(),
            path: parts.uri.path_and_query().map(ToString::to_string).unwrap_or_default(),
            host: host(parts),
            protocol,
            headers: headers(parts),
            body,
            key_accepted: carries_key(parts, &self.options.key),
            api: Api::of_path(parts.uri.path()),
            streamed: conversation.is_some_and(|c| c.streamed),
            step: conversation.filter(|c| c.tool.is_some() && c.generates).map(|c| c.results),
            status: status.as_u16(),
            used: conversation.filter(|_| status == StatusCode::OK).map(used),
        };
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).push(seen);
    }

    /// The model's turn in a conversation.
    pub(super) fn reply<'a>(&'a self, conversation: &'a Conversation) -> Reply<'a> {
        let script = &self.options.script;
        Reply::new(conversation, script.turn(conversation.results, conversation.ends_by_command))
    }
}

fn used(conversation: &Conversation) -> Used {
    let [input, output] = [conversation.input_tokens, messages::OUTPUT_TOKENS]
        .map(|tokens| if conversation.generates { tokens as u64 } else { 0 });
    Used { model: conversation.model.clone(), input, output }
}

fn respond(
    state: &State,
    parts: &Parts,
    api: Option<Api>,
    conversation: Option<&Conversation>,
) -> Response<Body> {
    if !carries_key(parts, &state.options.key) {
        return refusal(api, 401, "this key is not the one");
    }
    let upgrades = parts.headers.contains_key(http::header::UPGRADE);
    match (api, conversation) {
        (Some(Api::Responses), _) if state.options.websockets && upgrades => {
            websocket::accept(&parts.headers).unwrap_or_else(|| refusal(api, 400, "no key of a WebSocket"))
        }
        // Codex first tries to open a WebSocket. It switches to ordinary requests without a delay only if the
        // response has this status.
        (Some(_), _) if upgrades => refusal(api, 426, "no WebSocket is spoken here"),
        (Some(api), _) if parts.method != Method::POST => refusal(Some(api), 405, "post a conversation"),
        (Some(_), Some(conversation)) => turn(state, conversation),
        (Some(api), None) => refusal(Some(api), 400, "not a request of this format"),
        (None, _) if parts.uri.path().ends_with("/count_tokens") => json_answer(&json!({"input_tokens": 1})),
        (None, _) if parts.uri.path().ends_with("/models") => {
            json_answer(&json!({"object": "list", "data": []}))
        }
        (None, _) if parts.uri.path().ends_with("/accounts/check") => {
            json_answer(&responses::accounts(&parts.headers))
        }
        (None, _) => refusal(None, 404, "no such endpoint"),
    }
}

fn turn(state: &State, conversation: &Conversation) -> Response<Body> {
    let mut pace = Pace::default();
    match fault(state, conversation.results) {
        Some(FaultKind::Status(status)) => return refusal(Some(conversation.api), status, "on purpose"),
        Some(FaultKind::Delay(delay)) => pace.delay = delay,
        Some(FaultKind::Cut { after }) => pace.cut_after = Some(after),
        None => {}
    }
    let reply = state.reply(conversation);
    let events = conversation.streamed.then(|| match conversation.api {
        Api::Messages => messages::events(&reply),
        Api::Chat => chat::events(&reply, conversation.stream_usage),
        Api::Responses => responses::events(&reply).iter().map(sse::named).collect(),
    });
    let (kind, chunks) = match events {
        Some(events) => ("text/event-stream", events),
        None => {
            let whole = match conversation.api {
                Api::Messages => messages::json(&reply),
                Api::Chat => chat::json(&reply),
                Api::Responses => responses::json(&reply),
            };
            pace.cut_after = pace.cut_after.map(|_| 0);
            ("application/json", vec![Bytes::from(whole.to_string())])
        }
    };
    respond_with(StatusCode::OK, kind, paced(chunks, pace))
}

/// Returns the fault to inject at `step`, and counts it.
fn fault(state: &State, step: usize) -> Option<FaultKind> {
    let mut uses = state.fault_uses.lock().unwrap_or_else(PoisonError::into_inner);
    uses.resize(state.options.faults.len(), 0);
    let due = state
        .options
        .faults
        .iter()
        .zip(uses.iter_mut())
        .find(|(fault, used)| **used < fault.times && fault.step.is_none_or(|at| at == step));
    due.map(|(fault, used)| {
        *used += 1;
        fault.kind.clone()
    })
}

fn refusal(api: Option<Api>, status: u16, message: &str) -> Response<Body> {
    let kind = match status {
        401 => "authentication_error",
        429 => "rate_limit_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    };
    let body = match api {
        Some(Api::Messages) => messages::error(kind, message),
        _ => chat::error(kind, message),
    };
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    respond_with(status, "application/json", whole(body.to_string()))
}

fn json_answer(body: &Value) -> Response<Body> {
    respond_with(StatusCode::OK, "application/json", whole(body.to_string()))
}

fn respond_with(status: StatusCode, kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
    response
}

/// Whether a header contains the key in one of the formats: `x-api-key`, or `Authorization: Bearer`.
fn carries_key(parts: &Parts, key: &str) -> bool {
    let value = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
    value("x-api-key") == Some(key)
        || value("authorization").and_then(|value| value.strip_prefix("Bearer ")) == Some(key)
}

fn host(parts: &Parts) -> String {
    let header = || parts.headers.get("host").and_then(|host| host.to_str().ok()).map(str::to_owned);
    parts.uri.authority().map(ToString::to_string).or_else(header).unwrap_or_default()
}

fn headers(parts: &Parts) -> Vec<(String, String)> {
    parts
        .headers
        .iter()
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect()
}
