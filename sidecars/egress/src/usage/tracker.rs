//! Counts the tokens of a response while it streams.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bottle_meter::{Expected, Meter, Reading, estimate};
use bottle_policy::route::Route;
use bottle_protocol::endpoints::Endpoint;
use bottle_protocol::usage::{Api, Source, Tokens, Usage, provider_for};
use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, Response};
use http_body_util::BodyExt;

use super::Outbox;
use crate::egress::Egress;
use crate::inspect::decoded_memory::DecodedMemory;
use crate::inspect::{Decoding, codings};
use crate::lease::{Charge, Leases};
use crate::report::Reporter;
use crate::report::record::RequestInfo;
use crate::request::body::{Body, Observe, Observed};

/// A request to a model, whose response may report token usage.
pub(crate) struct UsageTracker {
    api: Api,
    host: String,
    provider_route: bool,
    source: Option<Source>,
    /// The length of the request body so far, in bytes of decoded text.
    request: Arc<AtomicU64>,
    /// The assumed number of text bytes for each byte of the body.
    expansion: u64,
}

/// The assumed number of text bytes for each byte of a compressed request body.
const EXPANSION: u64 = 4;

impl UsageTracker {
    /// Returns `None` if the request is not for a model. Responses of an endpoint may report usage even if the proxy
    /// cannot meter the requests to this endpoint.
    pub(crate) fn for_request(info: &RequestInfo, route: &Route, headers: &HeaderMap) -> Option<Self> {
        let api = match Endpoint::of(&info.method, &info.host, &info.path) {
            Endpoint::Metered(api) => api,
            Endpoint::Free => return None,
            Endpoint::Unknown => Api::from_request(&info.method, &info.path)?,
        };
        Some(Self {
            api,
            host: info.host.clone(),
            provider_route: route.provider,
            source: Source::from_headers(|name| headers.contains_key(name)),
            request: Arc::default(),
            expansion: if headers.contains_key(CONTENT_ENCODING) { EXPANSION } else { 1 },
        })
    }

    /// Creates the tracker of a request that is a WebSocket message of `bytes` bytes.
    pub(crate) fn for_message(
        api: Api,
        info: &RequestInfo,
        provider_route: bool,
        source: Option<Source>,
        bytes: u64,
    ) -> Self {
        let host = info.host.clone();
        Self { api, host, provider_route, source, request: Arc::new(AtomicU64::new(bytes)), expansion: 1 }
    }

    /// Observes the length of the request body.
    pub(crate) fn observe_request(&self, body: Body) -> Body {
        let (request, expansion) = (Arc::clone(&self.request), self.expansion);
        Observed::new(body, RequestObserver { request, expansion }).boxed_unsync()
    }

    /// Registers the request as being sent.
    pub(crate) fn send(self, egress: &Egress, charge: Charge) -> InFlight {
        let pending = Arc::new(PendingUsage {
            id: format!("{:032x}", rand::random::<u128>()),
            active: Mutex::new(Some(Active { meter: Meter::new(self.api, false), charge })),
            tracker: self,
            reporter: Arc::clone(&egress.reporter),
            outbox: Arc::clone(&egress.outbox),
            leases: Arc::clone(&egress.leases),
            memory: egress.decoded_memory.clone(),
        });
        pending.reserve();
        egress.outbox.register(&pending);
        InFlight(Some(pending))
    }
}

/// A request to a model that is being sent. The value is dropped if the client disconnects. All tokens reserved for the
/// request then count as used, because the provider may complete the response.
pub(crate) struct InFlight(Option<Arc<PendingUsage>>);

impl InFlight {
    /// Records that upstream did not respond. If upstream received a part of the request, upstream may have completed
    /// the response, so the reserved tokens count as used.
    pub(crate) fn fail(self) {
        drop(self);
    }

    /// Observes the response without changing it. Only responses with a success status are counted.
    pub(crate) fn observe(mut self, response: Response<Body>) -> Response<Body> {
        let Some(pending) = self.0.take() else { return response };
        if !response.status().is_success() {
            pending.cancel();
            return response;
        }
        let (parts, body) = response.into_parts();
        pending.respond(streams(&parts.headers));
        let decoding = match codings(&parts.headers) {
            Ok(codings) => (!codings.is_empty()).then(|| Decoding::new(&codings, &pending.memory)),
            Err(_) => {
                // The proxy cannot decode this response, so the response does not show how many tokens it used.
                pending.end(false);
                return Response::from_parts(parts, body);
            }
        };
        Response::from_parts(
            parts,
            Observed::new(body, UsageObserver { decoding, is_broken: false, pending }).boxed_unsync(),
        )
    }
}

/// The progress of a response that arrives in WebSocket messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessageProgress {
    Continues,
    Ended,
}

impl InFlight {
    /// Reads the next message of a response that arrives in WebSocket messages.
    pub(crate) fn message(&self, event: &[u8]) -> MessageProgress {
        self.0.as_ref().map_or(MessageProgress::Ended, |pending| pending.message(event))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let Some(pending) = self.0.take() else { return };
        // If the provider received no byte of the request's body, it does not count the request.
        if pending.tracker.request.load(Ordering::Relaxed) == 0 {
            pending.cancel();
        } else {
            pending.end(false);
        }
    }
}

fn streams(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.trim_start().to_ascii_lowercase().starts_with("text/event-stream")
}

/// A response for which no usage record was created yet.
pub(super) struct PendingUsage {
    /// The id of the record.
    id: String,
    /// `None` after the record is created.
    active: Mutex<Option<Active>>,
    tracker: UsageTracker,
    reporter: Arc<Reporter>,
    outbox: Arc<Outbox>,
    leases: Arc<Leases>,
    memory: DecodedMemory,
}

/// The state of a response without a record.
struct Active {
    meter: Meter,
    charge: Charge,
}

impl PendingUsage {
    /// If tokens are reserved for the request, stores a preliminary record. The preliminary record remains if this
    /// process is killed before the response is complete.
    fn reserve(&self) {
        let active = self.active();
        let Some(Active { charge, .. }) =
            active.as_ref().filter(|active| active.charge.reservation.is_some())
        else {
            return;
        };
        let expected = self.expected(charge);
        let reading = Meter::new(self.tracker.api, false).finish(false, expected);
        self.outbox.reserve(self.usage(reading.unwrap_or_else(|| unread(expected))));
    }

    /// Records that the response begins. `streams` states whether the response is a stream of events.
    fn respond(&self, streams: bool) {
        if let Some(active) = self.active().as_mut() {
            active.meter = Meter::new(self.tracker.api, streams);
        }
    }

    /// Reads the next chunk. Creates the record as soon as later chunks cannot change it.
    fn feed(&self, text: &[u8]) {
        let mut active = self.active();
        let Some(Active { meter, .. }) = active.as_mut() else { return };
        meter.feed(text);
        if meter.has_ended() {
            let ended = active.take();
            drop(active);
            self.record(ended, true);
        }
    }

    fn message(&self, event: &[u8]) -> MessageProgress {
        let mut active = self.active();
        let Some(Active { meter, .. }) = active.as_mut() else { return MessageProgress::Ended };
        meter.feed_message(event);
        if !meter.has_ended() && !meter.has_failed() {
            return MessageProgress::Continues;
        }
        let (whole, refused) = (meter.has_ended(), meter.is_refused());
        let ended = active.take();
        drop(active);
        if refused {
            self.outbox.cancel(&self.id);
        } else {
            self.record(ended, whole);
        }
        MessageProgress::Ended
    }

    /// Creates the record if it does not exist yet. `whole` states whether the response was complete.
    pub(super) fn end(&self, whole: bool) {
        let active = self.active().take();
        self.record(active, whole);
    }

    /// Whether the response has neither led to a record nor been cancelled.
    pub(super) fn is_active(&self) -> bool {
        self.active().is_some()
    }

    /// Ends without a record.
    fn cancel(&self) {
        if self.active().take().is_some() {
            self.outbox.cancel(&self.id);
        }
    }

    /// Creates the record of a response. All reserved tokens count as used if the response does not report its usage.
    /// `whole` states whether the response was complete.
    fn record(&self, active: Option<Active>, whole: bool) {
        let Some(Active { meter, charge }) = active else { return };
        let expected = self.expected(&charge);
        let unknown = || charge.reservation.is_some().then(|| unread(expected));
        if let Some(reading) = meter.finish(whole, expected).or_else(unknown) {
            let usage = self.usage(reading);
            self.leases.record(charge, &usage);
            self.outbox.put(usage);
        }
    }

    /// Returns the maximum usage that the response can have.
    fn expected(&self, charge: &Charge) -> Expected {
        match &charge.cost {
            Some(cost) => cost.expected(charge.reservation.is_some()),
            None => {
                let prompt = estimate(self.tracker.request.load(Ordering::Relaxed));
                Expected { prompt, ..Expected::default() }
            }
        }
    }

    fn usage(&self, reading: Reading) -> Usage {
        let UsageTracker { api, host, provider_route, source, .. } = &self.tracker;
        let redact = |text: &str| self.reporter.redact(text).into_owned();
        Usage {
            id: self.id.clone(),
            time: jiff::Timestamp::now(),
            provider: redact(provider_for(host)),
            host: redact(host),
            api: *api,
            model: reading.model.as_deref().map(redact),
            tokens: reading.tokens,
            interrupted: reading.interrupted,
            estimated: reading.estimated,
            provider_route: *provider_route,
            source: *source,
        }
    }

    fn active(&self) -> MutexGuard<'_, Option<Active>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the usage of a response that does not follow the API, if tokens are reserved for the response. All reserved
/// tokens count as used.
fn unread(expected: Expected) -> Reading {
    let tokens = Tokens { input: Some(expected.prompt), output: expected.output, ..Tokens::default() };
    Reading { tokens, estimated: true, ..Reading::default() }
}

/// Counts the bytes of a request body.
struct RequestObserver {
    request: Arc<AtomicU64>,
    expansion: u64,
}

impl Observe for RequestObserver {
    fn on_data(&mut self, data: &Bytes) {
        self.request.fetch_add((data.len() as u64).saturating_mul(self.expansion), Ordering::Relaxed);
    }
}

/// Passes the response body to the meter.
struct UsageObserver {
    /// `None` if the body has no content coding.
    decoding: Option<Decoding>,
    /// Whether the body could not be decoded.
    is_broken: bool,
    pending: Arc<PendingUsage>,
}

impl Observe for UsageObserver {
    fn on_data(&mut self, data: &Bytes) {
        let pending = &self.pending;
        match &mut self.decoding {
            None => pending.feed(data),
            // After a decoding error, counting stops. If the route scans responses, the scan also aborts the response.
            Some(_) if self.is_broken => {}
            Some(decoding) => {
                let fed = decoding.feed(data, &mut |text| {
                    pending.feed(text);
                    true
                });
                self.is_broken = fed.is_err();
            }
        }
    }

    fn on_end(&mut self, whole: bool) {
        self.pending.end(whole && !self.is_broken);
    }
}
