//! Stage 8 of the request pipeline: scans the response before the bottle receives it.
//!
//! ```text
//! head ──► credential redacted
//! body ─┬─ complete within a moment ──► scanned fully ─► forwarded, redacted, or denied
//!       └─ continues ─────────────────► streaming_scan: scanned as it streams, cut at a finding
//! ```
//! If the host echoes the credential that the proxy injected into the request, the proxy redacts the credential. The
//! scan searches for no other secret: a host that never received a secret cannot echo it, but could learn it from the
//! proxy's reaction.
//!
//! If a page contains a prompt injection, the proxy forwards the page in a marked frame, because an article may quote
//! an injection. The proxy denies every other response with an injection, such as the result of a tool. If a part of
//! the response was already forwarded, the proxy cuts the response. A stream of events then ends with an error event.
//! With `dlp.inbound_on_match`, a route can select that all responses with an injection are denied, or that none are
//! denied. On a provider route, the proxy only logs the injection, because a client would retry an interrupted model
//! response and pay for it twice.

use std::sync::Arc;
use std::time::Duration;

use bottle_policy::decide::{Reason, Refusal};
use bottle_policy::route::InboundOnMatch;
use bottle_scan::{Finding, Severity};
use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::response::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use serde_json::Value;
use tokio::time::timeout;

use super::body::{self, Body};
use super::error_events::{ErrorEvents, accepts_events, request_id};
use super::headers;
use super::marking::{Markup, OnInjection};
use super::outbound::Cleared;
use super::permit::Permit;
use super::streaming_scan::{Rest, ScanContext, StreamingScan};
use crate::egress::Egress;
use crate::inspect::{Coding, Decoding, ResponseScanners, Unreadable, codings, decoded, rewritten};
use crate::listener::early_hints::EarlyHints;
use crate::upstream::OnEarlyHints;

/// A response with a declared length up to this many bytes is read completely before any of it is forwarded.
const MAX_WHOLE: u64 = 1 << 20;
/// The most bytes of a response without a declared length that the proxy reads before it forwards any of them. The
/// proxy scans the rest of the response while it streams.
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

/// Headers with a checksum of the content. The proxy removes them when it changes the content.
const CHECKSUMS: [&str; 4] = ["content-digest", "content-md5", "digest", "repr-digest"];

/// The header that warns that the response contains a prompt injection.
const WARNING: HeaderName = HeaderName::from_static("x-bottle-warning");

/// The scan of one response.
pub(super) struct Inbound {
    context: ScanContext,
    /// `dlp.inbound_on_match`.
    on_match: Option<InboundOnMatch>,
    provider: bool,
    /// The id of the request, if it is a JSON-RPC request whose client accepts events.
    id: Option<Value>,
}

impl Inbound {
    /// Returns `None` if the route disables all scans of responses.
    pub(super) fn for_permit(egress: &Egress, permit: &Permit<'_>) -> Option<Self> {
        let ResponseScanners { scanner, credential } = egress.secrets.inspector.inbound(permit.route)?;
        let context = ScanContext {
            info: Arc::clone(&permit.info),
            scanner,
            credential,
            on_injection: OnInjection::Block,
            events: None,
            reporter: Arc::clone(&egress.reporter),
            reported: 0,
            memory: egress.decoded_memory.clone(),
        };
        let route = permit.route;
        let (on_match, provider) = (route.dlp.inbound_on_match, route.provider);
        Some(Self { context, on_match, provider, id: None })
    }

    /// Prepares the scan for a request. `headers` and `body` are as the bottle sent them. The proxy cannot add an error
    /// event to an encoded stream, so it asks upstream for an unencoded response if the client accepts event streams.
    /// On a provider route this is not necessary, because the proxy does not cut the responses of providers.
    pub(super) async fn prepare(&mut self, headers: &mut HeaderMap, body: &Cleared) {
        headers::limit_accept_encoding(headers);
        if self.provider || !accepts_events(headers) {
            return;
        }
        if headers.contains_key(ACCEPT_ENCODING) {
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        if let Some(text) = body.decoded().await {
            self.id = request_id(&text);
        }
    }

    /// Scans a response.
    ///
    /// # Errors
    /// The denial that replaces the response.
    pub(super) async fn scan(mut self, response: Response<Body>) -> Result<Response<Body>, Refusal> {
        let (mut parts, body) = response.into_parts();
        self.redact_headers(&mut parts.headers);
        if body.is_end_stream() {
            return Ok(Response::from_parts(parts, body));
        }
        let codings = self.codings(&parts)?;
        self.context.on_injection = self.on_injection(&parts);
        self.context.events = ErrorEvents::for_response(&parts, !codings.is_empty(), self.id.take());
        let (beginning, rest) = self.beginning(&parts, body).await?;
        match rest {
            None => self.whole(parts, beginning, &codings),
            Some(rest) => {
                let fixed = !codings.is_empty() || parts.headers.contains_key(CONTENT_LENGTH);
                if fixed && matches!(self.context.on_injection, OnInjection::Mark(_)) {
                    // The proxy cannot add a note to the stream of this response.
                    self.context.on_injection = OnInjection::Block;
                }
                let scan = StreamingScan::new(self.context, beginning, rest, &codings);
                Ok(Response::from_parts(parts, scan.boxed_unsync()))
            }
        }
    }

    /// Returns the content codings. A partial response (status 206) of encoded text cannot be decoded, so the proxy
    /// scans the partial response without decoding. On a route with a credential, the proxy strips the request headers
    /// that ask for a partial response.
    fn codings(&self, parts: &Parts) -> Result<Vec<Coding>, Refusal> {
        if parts.status == StatusCode::PARTIAL_CONTENT {
            return Ok(Vec::new());
        }
        codings(&parts.headers).map_err(|error| self.unreadable(error))
    }

    fn on_injection(&self, parts: &Parts) -> OnInjection {
        // If the proxy added a frame to a partial response, the frame would be inside the complete content.
        let markup = Markup::of(&parts.headers).filter(|_| parts.status != StatusCode::PARTIAL_CONTENT);
        match (self.on_match, markup) {
            _ if self.provider => OnInjection::Log,
            (Some(InboundOnMatch::Block), _) | (None, None) => OnInjection::Block,
            (Some(InboundOnMatch::Warn) | None, Some(markup)) => OnInjection::Mark(markup),
            (Some(InboundOnMatch::Warn), None) => OnInjection::Log,
        }
    }

    fn host(&self) -> &str {
        &self.context.info.host
    }

    fn unreadable(&self, error: Unreadable) -> Refusal {
        Refusal::unreadable_answer(self.host(), &error.to_string())
    }

    fn redact_headers(&self, headers: &mut HeaderMap) {
        if let Some(redacted) = self.context.redact_headers(headers) {
            *headers = redacted;
            self.context.report_redacted("the route's credential in the answer's headers");
        }
    }

    /// Reads the part of the body that arrives without a pause. Returns this part, and the rest of the body if the body
    /// continues.
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
        self.context.report(&found);
        let injection = self.context.injection(&found);
        if let (Some(finding), OnInjection::Block) = (injection, self.context.on_injection) {
            return Err(Refusal::later(Reason::InjectionFound, self.host(), &finding.preview));
        }
        let mut changed = self.redacted(&parts, &text, codings, &found)?;
        if let Some(finding) = injection.filter(|_| !self.provider) {
            parts.headers.insert(WARNING, HeaderValue::from_static(Reason::InjectionFound.as_str()));
            if let OnInjection::Mark(markup) = self.context.on_injection {
                let content = match changed {
                    Some(redacted) => redacted,
                    None => decoded(&text, codings).map_err(|error| self.unreadable(error))?,
                };
                changed = Some(markup.frame(&content, &finding.preview));
            }
        }
        let Some(changed) = changed else { return Ok(Response::from_parts(parts, body::full(text))) };
        parts.headers.remove(CONTENT_ENCODING);
        for name in CHECKSUMS {
            parts.headers.remove(name);
        }
        parts.headers.insert(CONTENT_LENGTH, HeaderValue::from(changed.len()));
        Ok(Response::from_parts(parts, body::full(changed)))
    }

    /// Returns the decoded text without the route's credential, or `None` if the text does not contain the credential.
    fn redacted(
        &self,
        parts: &Parts,
        text: &Bytes,
        codings: &[Coding],
        found: &[Finding],
    ) -> Result<Option<Vec<u8>>, Refusal> {
        let Some(credential) = self.context.credential.as_ref().filter(|_| found.iter().any(is_echo)) else {
            return Ok(None);
        };
        match rewritten(credential, text, codings, &parts.headers) {
            Ok(Some(redacted)) => {
                self.context.report_redacted("the route's credential in the answer");
                Ok(Some(redacted))
            }
            Ok(None) => Err(Refusal::secret_in_answer(self.host(), "it cannot be redacted")),
            Err(error) => Err(self.unreadable(error)),
        }
    }

    fn findings(&self, text: &[u8], codings: &[Coding]) -> Result<Vec<Finding>, Unreadable> {
        if codings.is_empty() {
            return Ok(self.context.scanner.scan(text).findings);
        }
        let mut decoding = Decoding::new(codings, &self.context.memory);
        let mut stream = self.context.scanner.stream();
        decoding.feed(text, &mut |text| {
            stream.feed(text);
            true
        })?;
        if decoding.is_whole() { Ok(stream.finish().findings) } else { Err(Unreadable::Broken) }
    }
}

/// Returns the receiver of the upstream's early hints. The receiver processes the hints like the headers of a response,
/// and sends them to the client.
pub(super) fn early_hints(egress: &Egress, permit: &Permit<'_>, client: EarlyHints) -> OnEarlyHints {
    let inbound = Inbound::for_permit(egress, permit);
    OnEarlyHints::new(move |headers| {
        let mut headers = headers.clone();
        headers::for_bottle(&mut headers);
        if let Some(inbound) = &inbound {
            inbound.redact_headers(&mut headers);
        }
        client.send(&headers);
    })
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
