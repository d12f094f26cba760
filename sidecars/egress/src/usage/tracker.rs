//! Counts the tokens of a response while it streams.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bottle_contract::route::Route;
use bottle_contract::usage::{Api, Source, Usage, provider_for};
use bottle_meter::Meter;
use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, Response};
use http_body_util::BodyExt;

use super::Outbox;
use crate::egress::Egress;
use crate::inspect::{Decoding, codings};
use crate::report::Reporter;
use crate::report::record::RequestInfo;
use crate::request::body::{Body, Observe, Observed};

/// A request to a model, whose response may report token usage.
pub(crate) struct UsageTracker {
    api: Api,
    host: String,
    provider_route: bool,
    source: Option<Source>,
    /// The length of the request body so far, in bytes of its text.
    request: Arc<AtomicU64>,
    /// The number of bytes of text for each byte of the body.
    expansion: u64,
}

/// The number of bytes of text that a byte of a compressed request body stands for.
const EXPANSION: u64 = 4;

impl UsageTracker {
    /// Returns `None` if the request is not for a model.
    pub(crate) fn for_request(info: &RequestInfo, route: &Route, headers: &HeaderMap) -> Option<Self> {
        let api = Api::from_request(&info.method, &info.path)?;
        Some(Self {
            api,
            host: info.host.clone(),
            provider_route: route.provider,
            source: Source::from_headers(|name| headers.contains_key(name)),
            request: Arc::default(),
            expansion: if headers.contains_key(CONTENT_ENCODING) { EXPANSION } else { 1 },
        })
    }

    /// Observes the length of the request body.
    pub(crate) fn observe_request(&self, body: Body) -> Body {
        let (request, expansion) = (Arc::clone(&self.request), self.expansion);
        Observed::new(body, RequestObserver { request, expansion }).boxed_unsync()
    }

    /// Observes the response without changing it. Only responses with a success status are counted.
    pub(crate) fn observe(self, egress: &Egress, response: Response<Body>) -> Response<Body> {
        if !response.status().is_success() {
            return response;
        }
        let (parts, body) = response.into_parts();
        // A response with a coding that the proxy cannot decode is not counted.
        let Ok(codings) = codings(&parts.headers) else { return Response::from_parts(parts, body) };
        let pending = Arc::new(PendingUsage {
            meter: Mutex::new(Some(Meter::new(self.api, streams(&parts.headers)))),
            tracker: self,
            reporter: Arc::clone(&egress.reporter),
            outbox: Arc::clone(&egress.outbox),
        });
        egress.outbox.register(&pending);
        let decoding = (!codings.is_empty()).then(|| Decoding::new(&codings));
        Response::from_parts(parts, Observed::new(body, UsageObserver { decoding, pending }).boxed_unsync())
    }
}

fn streams(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.trim_start().to_ascii_lowercase().starts_with("text/event-stream")
}

/// A response that has not led to a usage record yet.
pub(super) struct PendingUsage {
    /// The meter, until the record is created.
    meter: Mutex<Option<Meter>>,
    tracker: UsageTracker,
    reporter: Arc<Reporter>,
    outbox: Arc<Outbox>,
}

impl PendingUsage {
    /// Reads the next chunk. Creates the record as soon as later chunks cannot change it.
    fn feed(&self, text: &[u8]) {
        let mut meter = self.meter.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(active) = meter.as_mut() else { return };
        active.feed(text);
        if active.has_ended() {
            self.record(meter.take(), true);
        }
    }

    /// Creates the record if it does not exist yet. `whole` states whether the response was complete.
    pub(super) fn end(&self, whole: bool) {
        let meter = self.meter.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.record(meter, whole);
    }

    fn record(&self, meter: Option<Meter>, whole: bool) {
        let UsageTracker { api, host, provider_route, source, request, .. } = &self.tracker;
        let request = request.load(Ordering::Relaxed);
        let Some(reading) = meter.and_then(|meter| meter.finish(whole, request)) else { return };
        let redact = |text: &str| self.reporter.redact(text).into_owned();
        self.outbox.put(Usage {
            id: format!("{:032x}", rand::random::<u128>()),
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
        });
    }
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
    pending: Arc<PendingUsage>,
}

impl Observe for UsageObserver {
    fn on_data(&mut self, data: &Bytes) {
        let pending = &self.pending;
        match &mut self.decoding {
            None => pending.feed(data),
            // After a decoding error, counting stops. If the route scans responses, the scan also cuts the response.
            Some(decoding) => drop(decoding.feed(data, &mut |text| {
                pending.feed(text);
                true
            })),
        }
    }

    fn on_end(&mut self, whole: bool) {
        self.pending.end(whole);
    }
}
