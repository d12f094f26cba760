//! Stage 8 of the request pipeline: scans the response before the bottle receives it.
//!
//! ```text
//! head ──► credential redacted
//! body ─┬─ complete within a moment ──► scanned fully ─► forwarded, redacted, or denied
//!       └─ continues ─────────────────► streaming_scan: scanned as it streams, cut at a finding
//! ```
//! If the host echoes the credential that the proxy injected into the request, the scan redacts it. The scan searches
//! for no other secret: a host that never received a secret cannot echo it, but could learn it from the proxy's
//! reaction.
//!
//! If the response contains a prompt injection, the proxy denies the response, or cuts it if a part was already
//! forwarded. On a provider route the proxy only logs the injection, because a client would retry an interrupted model
//! response and pay for it twice.

use std::sync::Arc;
use std::time::Duration;

use bottle_contract::decide::{Reason, Refusal};
use bottle_scan::{Finding, Severity};
use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::response::Parts;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use tokio::time::timeout;

use super::body::{self, Body};
use super::permit::Permit;
use super::streaming_scan::{Rest, ScanContext, StreamingScan};
use crate::egress::Egress;
use crate::inspect::{Coding, Decoding, ResponseScanners, Unreadable, codings, rewritten};

/// A response with a declared length up to this many bytes is read completely before any of it is forwarded.
const MAX_WHOLE: u64 = 1 << 20;
/// The most bytes of a response without a declared length that are read before any of them are forwarded. The rest is
/// scanned while it streams.
const MAX_BEGINNING: usize = 256 << 10;
/// If no chunk of a response without a declared length arrives for this long, the proxy stops reading ahead and scans
/// the rest while it streams.
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

/// The scan of one response.
pub(super) struct Inbound(ScanContext);

impl Inbound {
    /// Returns `None` if the route disables all scans of responses.
    pub(super) fn for_permit(egress: &Egress, permit: &Permit<'_>) -> Option<Self> {
        let ResponseScanners { scanner, credential } = egress.inspector.inbound(permit.route)?;
        Some(Self(ScanContext {
            info: Arc::clone(&permit.info),
            scanner,
            credential,
            provider: permit.route.provider,
            reporter: Arc::clone(&egress.reporter),
            reported: 0,
        }))
    }

    /// Scans a response.
    ///
    /// # Errors
    /// The denial that replaces the response.
    pub(super) async fn scan(self, response: Response<Body>) -> Result<Response<Body>, Refusal> {
        let (mut parts, body) = response.into_parts();
        self.redact_headers(&mut parts.headers);
        if body.is_end_stream() {
            return Ok(Response::from_parts(parts, body));
        }
        let codings = self.codings(&parts)?;
        let (beginning, rest) = self.beginning(&parts, body).await?;
        match rest {
            None => self.whole(parts, beginning, &codings),
            Some(rest) => {
                let scan = StreamingScan::new(self.0, beginning, rest, &codings);
                Ok(Response::from_parts(parts, scan.boxed_unsync()))
            }
        }
    }

    /// Returns the content codings. A part (206) of encoded text cannot be decoded, so it is scanned without decoding.
    /// On a route with a credential, the proxy strips the request headers that ask for a part.
    fn codings(&self, parts: &Parts) -> Result<Vec<Coding>, Refusal> {
        if parts.status == StatusCode::PARTIAL_CONTENT {
            return Ok(Vec::new());
        }
        codings(&parts.headers).map_err(|error| self.unreadable(error))
    }

    fn host(&self) -> &str {
        &self.0.info.host
    }

    fn unreadable(&self, error: Unreadable) -> Refusal {
        Refusal::unreadable_answer(self.host(), &error.to_string())
    }

    fn redact_headers(&self, headers: &mut HeaderMap) {
        if let Some(redacted) = self.0.redact_headers(headers) {
            *headers = redacted;
            self.0.report_redacted("the route's credential in the answer's headers");
        }
    }

    /// Reads the part of the body that arrives without a pause. Returns it, and the rest of the body if there is more.
    async fn beginning(&self, parts: &Parts, mut body: Body) -> Result<(Bytes, Option<Rest>), Refusal> {
        let length = length(&parts.headers);
        let read_whole = length.is_some_and(|length| length <= MAX_WHOLE);
        if !read_whole && (length.is_some() || is_stream(&parts.headers)) {
            return Ok((Bytes::new(), Some(Rest { body, next: None })));
        }
        let mut beginning = BytesMut::with_capacity(usize::try_from(length.unwrap_or(0)).unwrap_or(0));
        loop {
            let frame = if read_whole {
                body.frame().await
            } else {
                match timeout(MAX_PAUSE, body.frame()).await {
                    Ok(frame) => frame,
                    Err(_) => return Ok((beginning.freeze(), Some(Rest { body, next: None }))),
                }
            };
            let frame = match frame {
                None => return Ok((beginning.freeze(), None)),
                Some(Err(_)) => {
                    let why = "its response ended early";
                    return Err(Refusal::later(Reason::UpstreamUnreachable, self.host(), why));
                }
                Some(Ok(frame)) => frame,
            };
            match frame.into_data() {
                Ok(data) => {
                    beginning.extend_from_slice(&data);
                    if beginning.len() > MAX_BEGINNING && !read_whole {
                        return Ok((beginning.freeze(), Some(Rest { body, next: None })));
                    }
                }
                // Trailers are the last frame, so the text is complete.
                Err(other) => {
                    return Ok((beginning.freeze(), Some(Rest { body, next: Some(Ok(other)) })));
                }
            }
        }
    }

    fn whole(mut self, mut parts: Parts, text: Bytes, codings: &[Coding]) -> Result<Response<Body>, Refusal> {
        let found = self.findings(&text, codings).map_err(|error| self.unreadable(error))?;
        self.0.report(&found);
        if let Some(finding) = self.0.denying(&found) {
            return Err(Refusal::later(Reason::InjectionFound, self.host(), &finding.preview));
        }
        let Some(credential) = self.0.credential.as_ref().filter(|_| found.iter().any(is_echo)) else {
            return Ok(Response::from_parts(parts, body::full(text)));
        };
        match rewritten(credential, &text, codings, &parts.headers) {
            Ok(Some(redacted)) => {
                self.0.report_redacted("the route's credential in the answer");
                parts.headers.remove(CONTENT_ENCODING);
                parts.headers.insert(CONTENT_LENGTH, HeaderValue::from(redacted.len()));
                Ok(Response::from_parts(parts, body::full(redacted)))
            }
            Ok(None) => Err(Refusal::secret_in_answer(self.host(), "it cannot be redacted")),
            Err(error) => Err(self.unreadable(error)),
        }
    }

    fn findings(&self, text: &[u8], codings: &[Coding]) -> Result<Vec<Finding>, Unreadable> {
        if codings.is_empty() {
            return Ok(self.0.scanner.scan(text).findings);
        }
        let mut decoding = Decoding::new(codings);
        let mut stream = self.0.scanner.stream();
        decoding.feed(text, &mut |text| {
            stream.feed(text);
            true
        })?;
        if decoding.is_whole() { Ok(stream.finish().findings) } else { Err(Unreadable::Broken) }
    }
}

/// Whether the finding is the credential that the proxy injected.
pub(super) fn is_echo(finding: &Finding) -> bool {
    finding.secret.is_some() && finding.severity == Severity::Block
}

fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Whether clients of this media type need each chunk as it arrives.
fn is_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    STREAMS.iter().any(|stream| kind.starts_with(stream))
}
