//! Records a request from its forwarding to the end of its response, for the access log.
//!
//! Bodies are observed without delaying them. Only the beginning of a body is captured, and only at log level `full`.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::header::CONTENT_ENCODING;
use http::{HeaderName, HeaderValue, Response};
use http_body_util::BodyExt;
use tokio::sync::OwnedSemaphorePermit;

use super::body::{Body, Observe, Observed};
use super::credentials::InjectedHead;
use crate::egress::Egress;
use crate::report::record::RequestInfo;
use crate::report::{CapturedMessage, ForwardedRequest};

/// Logs a request when its response has been read or abandoned.
pub(super) struct AccessLog {
    egress: Arc<Egress>,
    record: ForwardedRequest,
    request: Capture,
    response: Capture,
    /// The request's slot in the limit of concurrent requests.
    _slot: OwnedSemaphorePermit,
}

/// The captured beginning of a body.
type Capture = Arc<Mutex<Vec<u8>>>;

impl AccessLog {
    /// Starts to record a request.
    pub(super) fn new(egress: &Arc<Egress>, record: ForwardedRequest, slot: OwnedSemaphorePermit) -> Self {
        Self {
            egress: Arc::clone(egress),
            record,
            request: Capture::default(),
            response: Capture::default(),
            _slot: slot,
        }
    }

    /// The facts about the request.
    pub(super) fn info(&self) -> &RequestInfo {
        &self.record.info
    }

    /// Captures the request's headers and body at log level `full`.
    pub(super) fn capture_request(&mut self, headers: &InjectedHead, body: Body) -> Body {
        if !self.egress.reporter.logs_bodies() {
            return body;
        }
        self.record.request.headers = header_list(headers.loggable());
        if headers.contains_key(&CONTENT_ENCODING) {
            return body;
        }
        self.capture_body(body, &self.request)
    }

    fn capture_body(&self, body: Body, capture: &Capture) -> Body {
        let room = self.egress.reporter.captured_body_bytes();
        Observed::new(body, CapturePrefix { capture: Arc::clone(capture), room }).boxed_unsync()
    }

    /// Records the response until its end.
    pub(super) fn observe_response(mut self, response: Response<Body>) -> Response<Body> {
        let (parts, mut body) = response.into_parts();
        self.record.status = parts.status.as_u16();
        if self.egress.reporter.logs_bodies() {
            self.record.response.headers = header_list(parts.headers.iter());
            if !parts.headers.contains_key(CONTENT_ENCODING) {
                body = self.capture_body(body, &self.response);
            }
        }
        Response::from_parts(parts, Observed::new(body, self).boxed_unsync())
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        // Without a status there was no response, and the denial was already reported.
        if self.record.status != 0 && self.egress.reporter.logs_bodies() {
            let room = self.egress.reporter.captured_body_bytes();
            take(&self.request, &mut self.record.request, room);
            take(&self.response, &mut self.record.response, room);
            self.egress.reporter.report_forwarded(&self.record);
        }
    }
}

fn take(capture: &Capture, message: &mut CapturedMessage, room: usize) {
    let bytes = std::mem::take(&mut *capture.lock().unwrap_or_else(PoisonError::into_inner));
    if !bytes.is_empty() {
        message.truncated = bytes.len() >= room;
        message.body = Some(String::from_utf8_lossy(&bytes).into_owned());
    }
}

fn header_list<'h>(
    headers: impl Iterator<Item = (&'h HeaderName, &'h HeaderValue)>,
) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    headers.map(|(name, value)| (name.to_string(), text(value.as_bytes()))).collect()
}

/// Captures the beginning of a body.
struct CapturePrefix {
    capture: Capture,
    room: usize,
}

impl Observe for CapturePrefix {
    fn on_data(&mut self, data: &Bytes) {
        let mut captured = self.capture.lock().unwrap_or_else(PoisonError::into_inner);
        let room = self.room.saturating_sub(captured.len());
        captured.extend_from_slice(&data[..data.len().min(room)]);
    }
}

/// Counts the bytes of the response. Dropping the [`AccessLog`] writes the log line.
impl Observe for AccessLog {
    fn on_data(&mut self, data: &Bytes) {
        self.record.bytes += data.len() as u64;
    }
}
