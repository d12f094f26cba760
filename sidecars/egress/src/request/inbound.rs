//! Stage 8: scans the response before the bottle receives it.
//!
//! ```text
//! head ──► credential redacted
//! body ─┬─ complete within a moment ──► scanned whole ─► forwarded, redacted, or denied
//!       └─ continues ─────────────────► streaming_scan: scanned as it streams, cut at a finding
//! ```
//! The credential that was injected into this very request is redacted where the host echoes it. No other secret is
//! searched for: a host that never received it cannot echo it, and could otherwise learn it from the proxy's reaction.
//! A prompt injection denies the response; on a provider route it is only logged, because a client retries a cut model
//! stream and pays for it twice.

use std::sync::Arc;
use std::time::Duration;

use bottle_contract::decide::{Reason, Refusal};
use bottle_scan::{Finding, Scanner, Severity};
use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::response::Parts;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Frame};
use tokio::time::timeout;

use super::body::{self, Body};
use super::outbound::Permit;
use super::streaming_scan::{ScanContext, StreamingScan};
use crate::egress::Egress;
use crate::inspect::head::{Head, OutgoingHead};
use crate::inspect::{Coding, Decoding, ResponseScanners, Unreadable, codings, rewritten};
use crate::report::record::RequestInfo;

/// A response that declares at most this length is read whole.
const MAX_WHOLE: u64 = 1 << 20;
/// A response without a length is read for at most so many bytes,
const MAX_BEGINNING: usize = 256 << 10;
/// as long as it pauses for no longer than this.
const MAX_PAUSE: Duration = Duration::from_millis(50);

/// Media types whose clients need each chunk as it arrives.
const STREAMS: [&str; 9] = [
    "text/event-stream",
    "application/x-ndjson",
    "application/jsonl",
    "application/json-seq",
    "application/stream+json",
    "application/grpc",
    "application/connect+",
    "application/vnd.amazon.eventstream",
    "multipart/x-mixed-replace",
];

/// The scans of one response.
pub(super) struct Inbound {
    info: RequestInfo,
    scanner: Arc<Scanner>,
    credential: Option<Arc<Scanner>>,
    provider: bool,
}

impl Inbound {
    /// `None` when the route disables all scans of responses.
    pub(super) fn for_permit(egress: &Egress, permit: &Permit) -> Option<Self> {
        let ResponseScanners { scanner, credential } =
            egress.inspector.inbound(&permit.dlp, permit.credential.as_ref())?;
        Some(Self { info: permit.info.clone(), scanner, credential, provider: permit.provider })
    }

    /// Scans a response.
    ///
    /// # Errors
    /// The denial that replaces it.
    pub(super) async fn scan(
        self,
        egress: &Arc<Egress>,
        response: Response<Body>,
    ) -> Result<Response<Body>, Refusal> {
        let (mut parts, body) = response.into_parts();
        self.redact_headers(egress, &mut parts.headers);
        if body.is_end_stream() {
            return Ok(Response::from_parts(parts, body));
        }
        let codings = self.codings(&parts)?;
        let (beginning, rest) = self.beginning(&parts, body).await?;
        match rest {
            None => self.whole(egress, parts, beginning.freeze(), &codings),
            Some(rest) => Ok(self.streaming(egress, parts, beginning, rest, &codings)),
        }
    }

    /// The content codings. A part (206) of an encoded text cannot be decoded and is scanned as it is; no host serves
    /// parts of a response that echoes the request.
    fn codings(&self, parts: &Parts) -> Result<Vec<Coding>, Refusal> {
        if parts.status == StatusCode::PARTIAL_CONTENT {
            return Ok(Vec::new());
        }
        codings(&parts.headers).map_err(|error| self.unreadable(error))
    }

    fn unreadable(&self, error: Unreadable) -> Refusal {
        Refusal::unreadable_answer(&self.info.host, &error.to_string())
    }

    fn redact_headers(&self, egress: &Egress, headers: &mut HeaderMap) {
        let redacted =
            self.credential.as_ref().and_then(|credential| redact_headers_for(headers, credential));
        if let Some(redacted) = redacted {
            *headers = redacted;
            egress.reporter.report_finding(
                &self.info,
                "redacted",
                "the route's credential in the answer's headers",
            );
        }
    }

    /// The part of the body that arrives at once, and the rest if there is more.
    async fn beginning(&self, parts: &Parts, mut body: Body) -> Result<(BytesMut, Option<Rest>), Refusal> {
        let mut beginning = BytesMut::new();
        let length = length(&parts.headers);
        let read_whole = length.is_some_and(|length| length <= MAX_WHOLE);
        if !read_whole && (length.is_some() || is_stream(&parts.headers)) {
            return Ok((beginning, Some(Rest { body, next: None })));
        }
        loop {
            let frame = if read_whole {
                body.frame().await
            } else {
                match timeout(MAX_PAUSE, body.frame()).await {
                    Ok(frame) => frame,
                    Err(_) => return Ok((beginning, Some(Rest { body, next: None }))),
                }
            };
            match frame {
                None => return Ok((beginning, None)),
                Some(Err(_)) => {
                    let host = &self.info.host;
                    return Err(Refusal::later(
                        Reason::UpstreamUnreachable,
                        host,
                        "its response ended early",
                    ));
                }
                Some(Ok(frame)) if frame.is_data() => {
                    beginning.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
                    if beginning.len() > MAX_BEGINNING && !read_whole {
                        return Ok((beginning, Some(Rest { body, next: None })));
                    }
                }
                // Trailers follow after the text.
                Some(other) => return Ok((beginning, Some(Rest { body, next: Some(other) }))),
            }
        }
    }

    fn whole(
        &self,
        egress: &Egress,
        mut parts: Parts,
        text: Bytes,
        codings: &[Coding],
    ) -> Result<Response<Body>, Refusal> {
        let found = self.findings(&text, codings).map_err(|error| self.unreadable(error))?;
        let mut context = self.scan_context(egress);
        context.report(&found);
        if let Some(finding) = context.denying(&found) {
            return Err(Refusal::later(Reason::InjectionFound, &self.info.host, &finding.preview));
        }
        let Some(credential) = self.credential.as_ref().filter(|_| found.iter().any(is_echo)) else {
            return Ok(Response::from_parts(parts, body::full(text)));
        };
        let words = "the route's credential in the answer";
        match rewritten(credential, &text, codings, &parts.headers) {
            Ok(Some(redacted)) => {
                egress.reporter.report_finding(&self.info, "redacted", words);
                parts.headers.remove(CONTENT_ENCODING);
                parts.headers.insert(CONTENT_LENGTH, HeaderValue::from(redacted.len()));
                Ok(Response::from_parts(parts, body::full(redacted)))
            }
            Ok(None) => Err(Refusal::secret_in_answer(&self.info.host, "it cannot be redacted")),
            Err(error) => Err(self.unreadable(error)),
        }
    }

    fn findings(&self, text: &[u8], codings: &[Coding]) -> Result<Vec<Finding>, Unreadable> {
        if codings.is_empty() {
            return Ok(self.scanner.scan(text).findings);
        }
        let mut decoding = Decoding::new(codings);
        let mut stream = self.scanner.stream();
        decoding.feed(text, &mut |text| {
            stream.feed(text);
            true
        })?;
        if decoding.is_whole() { Ok(stream.finish().findings) } else { Err(Unreadable::Broken) }
    }

    fn streaming(
        &self,
        egress: &Arc<Egress>,
        parts: Parts,
        beginning: BytesMut,
        rest: Rest,
        codings: &[Coding],
    ) -> Response<Body> {
        let context = self.scan_context(egress);
        let scan = StreamingScan::new(context, beginning, rest.next, rest.body, codings);
        Response::from_parts(parts, scan.boxed_unsync())
    }

    fn scan_context(&self, egress: &Egress) -> ScanContext {
        ScanContext {
            info: self.info.clone(),
            scanner: Arc::clone(&self.scanner),
            credential: self.credential.clone(),
            provider: self.provider,
            reporter: Arc::clone(&egress.reporter),
            reported: 0,
        }
    }
}

/// The rest of a body; its next frame may have been read already.
struct Rest {
    body: Body,
    next: Option<Result<Frame<Bytes>, body::BodyError>>,
}

/// Whether the finding is the injected credential.
pub(super) fn is_echo(finding: &Finding) -> bool {
    finding.secret.is_some() && finding.severity == Severity::Block
}

/// `headers` without secrets; `None` when they contain none.
pub(super) fn redact_headers_for(headers: &HeaderMap, known: &Arc<Scanner>) -> Option<HeaderMap> {
    let outgoing = OutgoingHead { host: "", path: "", query: None, headers, is_sent: &|_| true };
    let head = Head::new(&outgoing);
    let found: Vec<Finding> = head.scan(Some(known)).into_iter().filter(is_echo).collect();
    (!found.is_empty()).then(|| head.redact(&found, &outgoing).headers)
}

fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Whether the client needs each chunk as it arrives.
fn is_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    STREAMS.iter().any(|stream| kind.starts_with(stream))
}
