//! Counts the tokens of a WebSocket that carries responses of a model: the WebSocket mode of OpenAI's Responses API. Each
//! message `response.create` of the bottle is a request, and its response is a sequence of events, one in each message.
//! A budget applies to each request as it does over HTTP: no byte of it leaves before its tokens are reserved.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bottle_contract::decide::{Reason, Refusal};
use bottle_contract::usage::{Api, Source};
use http::HeaderMap;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;

use super::budget;
use super::permit::Permit;
use crate::egress::Egress;
use crate::report::record::RequestInfo;
use crate::usage::{InFlight, MessageProgress, UsageTracker};

/// The most requests of one WebSocket without an answer. The API allows one.
const IN_FLIGHT: usize = 16;

/// The responses of one WebSocket.
pub(super) struct ModelSocket {
    egress: Arc<Egress>,
    info: Arc<RequestInfo>,
    api: Api,
    provider_route: bool,
    source: Option<Source>,
    responses: Mutex<Responses>,
}

#[derive(Default)]
struct Responses {
    /// Those without an end, oldest first. The model answers the requests of one WebSocket in their order.
    in_flight: VecDeque<InFlight>,
    /// The tokens of the last response and its prompt. The model remembers them for the next request.
    context: u64,
}

/// What the proxy reads of a message of the bottle. Two equal keys are an error, because the model could read the other
/// one.
#[derive(Deserialize)]
struct ClientMessage<'t> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'t, str>,
    previous_response_id: Option<IgnoredAny>,
}

impl ModelSocket {
    /// Returns `None` if the WebSocket is not for a model.
    pub(super) fn for_permit(egress: &Arc<Egress>, permit: &Permit<'_>, headers: &HeaderMap) -> Option<Self> {
        let api = Api::from_websocket(&permit.info.path)?;
        Some(Self {
            egress: Arc::clone(egress),
            info: Arc::clone(&permit.info),
            api,
            provider_route: permit.route.provider,
            source: Source::from_headers(|name| headers.contains_key(name)),
            responses: Mutex::default(),
        })
    }

    /// Reserves the tokens of the bottle's message, if it is a request. Waits until a lease has them.
    ///
    /// # Errors
    /// The denial. A message that the proxy cannot read is denied too, because it could be a request.
    pub(super) async fn outbound(&self, text: &[u8]) -> Result<(), Refusal> {
        let message: ClientMessage<'_> = serde_json::from_slice(text).map_err(|_| {
            let why = "a message to a model is not a JSON object with one `type`";
            Refusal::later(Reason::StructureRefused, &self.info.host, why)
        })?;
        if message.kind != "response.create" {
            return Ok(());
        }
        if self.responses().in_flight.len() >= IN_FLIGHT {
            let why = "the WebSocket has too many requests without an answer";
            return Err(Refusal::later(Reason::StructureRefused, &self.info.host, why));
        }
        let context = message.previous_response_id.map_or(0, |_| self.responses().context);
        let (info, provider) = (&self.info, self.provider_route);
        let charge = budget::charge_message(&self.egress, info, provider, self.api, text, context).await?;
        let bytes = text.len() as u64;
        let tracker = UsageTracker::for_message(self.api, info, provider, self.source, bytes);
        self.responses().in_flight.push_back(tracker.send(&self.egress, charge));
        Ok(())
    }

    /// Counts a message of the model.
    pub(super) fn inbound(&self, event: &[u8]) {
        let mut responses = self.responses();
        let Some(first) = responses.in_flight.front() else { return };
        if let MessageProgress::Ended(tokens) = first.message(event) {
            responses.in_flight.pop_front();
            responses.context = tokens;
        }
    }

    fn responses(&self) -> MutexGuard<'_, Responses> {
        self.responses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The message with which the API reports an error, so that the agent shows the denial and does not repeat its request.
pub(super) fn error_message(refusal: &Refusal) -> String {
    let error = json!({
        "type": "invalid_request_error",
        "code": refusal.reason.as_str(),
        "message": refusal.sentence,
    });
    json!({ "type": "error", "status": refusal.status, "error": error }).to_string()
}
