//! Counts the tokens of a WebSocket that carries responses of a model: the WebSocket mode of OpenAI's Responses API.
//! Each message `response.create` of the bottle is a request, and its response is a sequence of events, one in each
//! message. A budget applies to each request as over HTTP: the proxy sends no byte of a request before its tokens are
//! reserved.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bottle_policy::decide::{Reason, Refusal};
use bottle_protocol::endpoints::Endpoint;
use bottle_protocol::usage::{Api, Source};
use http::HeaderMap;
use serde::Deserialize;
use serde_json::json;

use super::budget;
use super::permit::Permit;
use crate::egress::Egress;
use crate::report::record::RequestInfo;
use crate::usage::{InFlight, MessageProgress, UsageTracker};

/// The most unanswered requests of one WebSocket. The API allows one unanswered request.
const IN_FLIGHT: usize = 16;

/// The type of a message that is a request.
const REQUEST: &str = "response.create";

/// The types of messages that use no tokens.
const FREE: [&str; 2] = ["response.cancel", "response.processed"];

/// The longest response id that is compared, in bytes. OpenAI's ids have 55 bytes.
const MAX_ID: usize = 256;

/// Counts the tokens of the responses on one WebSocket.
pub(super) struct ModelSocket {
    egress: Arc<Egress>,
    info: Arc<RequestInfo>,
    api: Api,
    provider_route: bool,
    source: Option<Source>,
    in_flight: Mutex<Requests>,
}

/// The fields of a bottle's message that the proxy reads. A repeated key is an error, because the model could read the
/// other value.
#[derive(Deserialize)]
struct ClientMessage<'t> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'t, str>,
}

/// A message that uses no tokens, with all its permitted fields. If other fields were permitted, a lenient server could
/// treat the message as another type of message.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FreeMessage<'t> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'t, str>,
    #[serde(rename = "response_id", default)]
    _response: Option<String>,
    #[serde(rename = "event_id", default)]
    _event: Option<String>,
}

impl FreeMessage<'_> {
    fn is_free(text: &[u8]) -> bool {
        serde_json::from_slice::<FreeMessage<'_>>(text).is_ok_and(|message| FREE.contains(&&*message.kind))
    }
}

/// The fields of a model's message that the proxy reads.
#[derive(Deserialize)]
struct ServerMessage<'t> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'t, str>,
    response: Option<ResponseHead>,
}

#[derive(Deserialize)]
struct ResponseHead {
    id: Option<String>,
}

/// The requests of one WebSocket whose responses have not ended, oldest first.
///
/// The model begins the responses in the order of the requests, and a response has an id from its beginning. An error
/// has no id, and may concern any message of the bottle. So an error ends a request only if the error cannot concern
/// another message. Otherwise the request stays in the queue, because later events may still complete its response.
/// Without such events, all tokens reserved for the request count as used.
#[derive(Default)]
struct Requests {
    sent: VecDeque<Sent>,
    /// Whether the model may still report an error about a message that was not a request.
    may_reject_another: bool,
}

/// A request that was sent.
struct Sent {
    response: InFlight,
    /// The id of the response, known once the response begins. Empty if the model sends no id.
    id: Option<String>,
    /// Whether all messages that the bottle sent after this request are requests. If so, the beginning of this
    /// request's response shows that the model has read all messages that are not requests.
    is_after_others: bool,
}

impl Requests {
    fn push(&mut self, response: InFlight) {
        self.sent.push_back(Sent { response, id: None, is_after_others: true });
    }

    /// Records that the bottle sends a message that is not a request.
    fn send_another(&mut self) {
        self.may_reject_another = true;
        self.sent.iter_mut().for_each(|sent| sent.is_after_others = false);
    }

    /// Returns the index of the request to which a message of the model belongs, or `None` if that is unclear.
    fn position_of(&mut self, message: &ServerMessage<'_>) -> Option<usize> {
        let Some(response) = &message.response else {
            return match &*message.kind {
                "error" => (self.sent.len() == 1 && !self.may_reject_another).then_some(0),
                _ => self.sent.iter().position(|sent| sent.id.is_some()),
            };
        };
        let id = response.id.as_deref().filter(|id| id.len() <= MAX_ID).unwrap_or_default();
        let known = self.sent.iter().position(|sent| sent.id.as_deref() == Some(id));
        if known.is_some() || message.kind != "response.created" {
            return known;
        }
        let next = self.sent.iter().position(|sent| sent.id.is_none())?;
        let sent = &mut self.sent[next];
        sent.id = Some(id.to_owned());
        self.may_reject_another &= !sent.is_after_others;
        Some(next)
    }
}

impl ModelSocket {
    /// Returns `None` if the WebSocket is not for a model.
    pub(super) fn for_permit(egress: &Arc<Egress>, permit: &Permit<'_>, headers: &HeaderMap) -> Option<Self> {
        let Endpoint::Metered(api) = Endpoint::of_websocket(permit.host(), &permit.info.path) else {
            return None;
        };
        Some(Self {
            egress: Arc::clone(egress),
            info: Arc::clone(&permit.info),
            api,
            provider_route: permit.route.provider,
            source: Source::from_headers(|name| headers.contains_key(name)),
            in_flight: Mutex::default(),
        })
    }

    /// Reserves the tokens of the bottle's message, if the message is a request. Waits until a lease has enough tokens.
    ///
    /// # Errors
    /// The denial. A message that the proxy cannot read is denied too, because it could be a request.
    pub(super) async fn outbound(&self, text: &[u8]) -> Result<(), Refusal> {
        let message: ClientMessage<'_> = serde_json::from_slice(text).map_err(|_| {
            let why = "a message to a model is not a JSON object with one `type`";
            Refusal::later(Reason::StructureRefused, &self.info.host, why)
        })?;
        let (info, provider) = (&self.info, self.provider_route);
        if message.kind != REQUEST {
            if !FreeMessage::is_free(text) {
                budget::deny_unknown_message(&self.egress, info, provider).await?;
            }
            self.in_flight().send_another();
            return Ok(());
        }
        if self.in_flight().sent.len() >= IN_FLIGHT {
            let why = "the WebSocket has too many requests without an answer";
            return Err(Refusal::later(Reason::StructureRefused, &self.info.host, why));
        }
        let charge = budget::charge_message(&self.egress, info, provider, self.api, text).await?;
        let bytes = text.len() as u64;
        let tracker = UsageTracker::for_message(self.api, info, provider, self.source, bytes);
        self.in_flight().push(tracker.send(&self.egress, charge));
        Ok(())
    }

    /// Counts the tokens of a message of the model. Ignores a message that the proxy cannot parse.
    pub(super) fn inbound(&self, event: &[u8]) {
        let Ok(message) = serde_json::from_slice::<ServerMessage<'_>>(event) else { return };
        let mut requests = self.in_flight();
        let Some(position) = requests.position_of(&message) else { return };
        if requests.sent[position].response.message(event) == MessageProgress::Ended {
            requests.sent.remove(position);
        }
    }

    fn in_flight(&self) -> MutexGuard<'_, Requests> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the denial in the format in which the API reports errors, so that the agent shows the denial and does not
/// repeat its request.
pub(super) fn error_message(refusal: &Refusal) -> String {
    let error = json!({
        "type": "invalid_request_error",
        "code": refusal.reason.as_str(),
        "message": refusal.sentence,
    });
    json!({ "type": "error", "status": refusal.status, "error": error }).to_string()
}
