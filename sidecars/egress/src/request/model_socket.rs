//! Counts the tokens of a WebSocket that carries responses of a model: the WebSocket mode of OpenAI's Responses API. Each
//! message `response.create` of the bottle is a request, and its response is a sequence of events, one in each message.
//! A budget applies to each request as it does over HTTP: no byte of it leaves before its tokens are reserved.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bottle_contract::decide::{Reason, Refusal};
use bottle_contract::endpoints::Endpoint;
use bottle_contract::usage::{Api, Source};
use http::HeaderMap;
use serde::Deserialize;
use serde_json::json;

use super::budget;
use super::permit::Permit;
use crate::egress::Egress;
use crate::report::record::RequestInfo;
use crate::usage::{InFlight, MessageProgress, UsageTracker};

/// The most requests of one WebSocket without an answer. The API allows one.
const IN_FLIGHT: usize = 16;

/// The type of a message that is a request.
const REQUEST: &str = "response.create";

/// The types of messages that use no tokens.
const FREE: [&str; 2] = ["response.cancel", "response.processed"];

/// The responses of one WebSocket.
pub(super) struct ModelSocket {
    egress: Arc<Egress>,
    info: Arc<RequestInfo>,
    api: Api,
    provider_route: bool,
    source: Option<Source>,
    /// The responses without an end, oldest first. The model answers the requests of one WebSocket in their order.
    in_flight: Mutex<VecDeque<InFlight>>,
}

/// What the proxy reads of a message of the bottle. Two equal keys are an error, because the model could read the other
/// one.
#[derive(Deserialize)]
struct ClientMessage<'t> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'t, str>,
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

    /// Reserves the tokens of the bottle's message, if it is a request. Waits until a lease has them.
    ///
    /// # Errors
    /// The denial. A message that the proxy cannot read is denied too, because it could be a request.
    pub(super) async fn outbound(&self, text: &[u8]) -> Result<(), Refusal> {
        let message: ClientMessage<'_> = serde_json::from_slice(text).map_err(|_| {
            let why = "a message to a model is not a JSON object with one `type`";
            Refusal::later(Reason::StructureRefused, &self.info.host, why)
        })?;
        let (info, provider) = (&self.info, self.provider_route);
        if FREE.contains(&&*message.kind) {
            return Ok(());
        }
        if message.kind != REQUEST {
            return budget::deny_unknown_message(&self.egress, info, provider).await;
        }
        if self.in_flight().len() >= IN_FLIGHT {
            let why = "the WebSocket has too many requests without an answer";
            return Err(Refusal::later(Reason::StructureRefused, &self.info.host, why));
        }
        let charge = budget::charge_message(&self.egress, info, provider, self.api, text).await?;
        let bytes = text.len() as u64;
        let tracker = UsageTracker::for_message(self.api, info, provider, self.source, bytes);
        self.in_flight().push_back(tracker.send(&self.egress, charge));
        Ok(())
    }

    /// Counts a message of the model.
    pub(super) fn inbound(&self, event: &[u8]) {
        let mut in_flight = self.in_flight();
        let Some(first) = in_flight.front() else { return };
        if first.message(event) == MessageProgress::Ended {
            in_flight.pop_front();
        }
    }

    fn in_flight(&self) -> MutexGuard<'_, VecDeque<InFlight>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
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
