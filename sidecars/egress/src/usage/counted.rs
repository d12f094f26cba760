//! An answer that is counted as it passes.

use std::sync::{Arc, Mutex, PoisonError};

use bottle_contract::usage::{Api, Usage, provider_for};
use bottle_meter::Meter;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Response};
use http_body_util::BodyExt;

use super::Outbox;
use crate::egress::Egress;
use crate::inspect::{Decoding, codings};
use crate::report::Reporter;
use crate::report::record::Asked;
use crate::request::body::{Body, Watch, Watched};

/// A request whose answer may say what it cost.
pub(crate) struct Counting {
    api: Api,
    host: String,
}

impl Counting {
    /// None when it is no request to a model.
    pub(crate) fn of(asked: &Asked) -> Option<Self> {
        let api = Api::from_request(&asked.method, &asked.path)?;
        Some(Self { api, host: asked.host.clone() })
    }

    /// Counts the answer while it goes on as it is; one that says no is none.
    pub(crate) fn watch(self, egress: &Egress, response: Response<Body>) -> Response<Body> {
        if !response.status().is_success() {
            return response;
        }
        let (parts, body) = response.into_parts();
        // What the proxy cannot decode does not reach the bottle either.
        let Ok(codings) = codings(&parts.headers) else { return Response::from_parts(parts, body) };
        let open = Arc::new(Open {
            meter: Mutex::new(Some(Meter::new(self.api, streams(&parts.headers)))),
            counting: self,
            reporter: Arc::clone(&egress.reporter),
            outbox: Arc::clone(&egress.outbox),
        });
        egress.outbox.watch(&open);
        let decoding = (!codings.is_empty()).then(|| Decoding::new(&codings));
        Response::from_parts(parts, Watched::new(body, Counted { decoding, open }).boxed_unsync())
    }
}

fn streams(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.trim_start().to_ascii_lowercase().starts_with("text/event-stream")
}

/// An answer of which there is no record yet.
pub(super) struct Open {
    /// Taken by whoever makes the record.
    meter: Mutex<Option<Meter>>,
    counting: Counting,
    reporter: Arc<Reporter>,
    outbox: Arc<Outbox>,
}

impl Open {
    /// Reads the next piece; the record is made when nothing more can change it.
    fn feed(&self, text: &[u8]) {
        let mut meter = self.meter.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(open) = meter.as_mut() else { return };
        open.feed(text);
        if open.has_ended() {
            self.record(meter.take(), true);
        }
    }

    /// Makes the record, unless there is one. `whole`: all of the answer came.
    pub(super) fn end(&self, whole: bool) {
        let meter = self.meter.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.record(meter, whole);
    }

    fn record(&self, meter: Option<Meter>, whole: bool) {
        let Some(reading) = meter.and_then(|meter| meter.finish(whole)) else { return };
        let Counting { api, host } = &self.counting;
        let masked = |text: &str| self.reporter.masked(text).into_owned();
        self.outbox.put(Usage {
            id: format!("{:032x}", rand::random::<u128>()),
            time: jiff::Timestamp::now(),
            provider: masked(provider_for(host)),
            host: masked(host),
            api: *api,
            model: reading.model.as_deref().map(masked),
            tokens: reading.tokens,
            interrupted: reading.interrupted,
        });
    }
}

/// See the module.
struct Counted {
    /// None: it is in plain.
    decoding: Option<Decoding>,
    open: Arc<Open>,
}

impl Watch for Counted {
    fn piece(&mut self, piece: &Bytes) {
        let open = &self.open;
        match &mut self.decoding {
            None => open.feed(piece),
            // Where it cannot be decoded the reading ends there; the judge who comes next cuts it.
            Some(decoding) => drop(decoding.feed(piece, &mut |text| {
                open.feed(text);
                true
            })),
        }
    }

    fn over(&mut self, whole: bool) {
        self.open.end(whole);
    }
}
