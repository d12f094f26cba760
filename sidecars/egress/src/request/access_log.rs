//! Measures a request from its forwarding to the end of its response, for the access log.
//!
//! Bodies are observed without delay. Only their beginning is captured, and only at log level `full`.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::header::CONTENT_ENCODING;
use http::{HeaderMap, HeaderName, Response};
use http_body_util::BodyExt;
use tokio::sync::OwnedSemaphorePermit;

use super::body::{Body, Watch, Watched};
use crate::egress::Egress;
use crate::report::{Passed, Seen};

/// Logs a request when its response was read, or abandoned.
pub(super) struct AccessLog {
    egress: Arc<Egress>,
    passed: Passed,
    request: Beginning,
    response: Beginning,
    /// The request's slot among those in flight.
    _place: OwnedSemaphorePermit,
}

/// The captured beginning of a body.
type Beginning = Arc<Mutex<Vec<u8>>>;

impl AccessLog {
    /// Starts the measurement.
    pub(super) fn begin(egress: &Arc<Egress>, passed: Passed, place: OwnedSemaphorePermit) -> Self {
        Self {
            egress: Arc::clone(egress),
            passed,
            request: Beginning::default(),
            response: Beginning::default(),
            _place: place,
        }
    }

    /// Captures the request's headers and body at log level `full`. `headers` are those sent upstream; `hidden` is the
    /// injected one.
    pub(super) fn request(&mut self, headers: &HeaderMap, hidden: Option<&HeaderName>, body: Body) -> Body {
        if !self.egress.reporter.wants_everything() {
            return body;
        }
        self.passed.request.headers = shown(headers, hidden);
        if headers.contains_key(CONTENT_ENCODING) {
            return body;
        }
        self.watched(body, &self.request)
    }

    fn watched(&self, body: Body, beginning: &Beginning) -> Body {
        let room = self.egress.reporter.body_bytes();
        Watched::new(body, Keeping { beginning: Arc::clone(beginning), room }).boxed_unsync()
    }

    /// Observes the response to its end.
    pub(super) fn response(mut self, response: Response<Body>) -> Response<Body> {
        let (parts, mut body) = response.into_parts();
        self.passed.status = parts.status.as_u16();
        if self.egress.reporter.wants_everything() {
            self.passed.response.headers = shown(&parts.headers, None);
            if !parts.headers.contains_key(CONTENT_ENCODING) {
                body = self.watched(body, &self.response);
            }
        }
        Response::from_parts(parts, Watched::new(body, self).boxed_unsync())
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        // No status: there was no response, and the denial was reported.
        if self.passed.status != 0 && self.egress.reporter.wants_everything() {
            let room = self.egress.reporter.body_bytes();
            take(&self.request, &mut self.passed.request, room);
            take(&self.response, &mut self.passed.response, room);
            self.egress.reporter.passed(&self.passed);
        }
    }
}

fn take(beginning: &Beginning, seen: &mut Seen, room: usize) {
    let bytes = std::mem::take(&mut *beginning.lock().unwrap_or_else(PoisonError::into_inner));
    if !bytes.is_empty() {
        seen.cut = bytes.len() >= room;
        seen.body = Some(String::from_utf8_lossy(&bytes).into_owned());
    }
}

fn shown(headers: &HeaderMap, hidden: Option<&HeaderName>) -> Vec<(String, String)> {
    let headers = headers.iter().filter(|(name, _)| Some(*name) != hidden);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    headers.map(|(name, value)| (name.to_string(), text(value.as_bytes()))).collect()
}

/// Captures the beginning of a body.
struct Keeping {
    beginning: Beginning,
    room: usize,
}

impl Watch for Keeping {
    fn piece(&mut self, piece: &Bytes) {
        let mut kept = self.beginning.lock().unwrap_or_else(PoisonError::into_inner);
        let room = self.room.saturating_sub(kept.len());
        kept.extend_from_slice(&piece[..piece.len().min(room)]);
    }
}

/// Counts the response's bytes; dropping it writes the log line.
impl Watch for AccessLog {
    fn piece(&mut self, piece: &Bytes) {
        self.passed.bytes += piece.len() as u64;
    }
}
