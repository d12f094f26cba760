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
use super::streaming_scan::{Judge, StreamingScan};
use crate::egress::Egress;
use crate::inspect::head::{Head, Leaving};
use crate::inspect::{Answers, Coding, Decoding, Unreadable, codings, rewritten};
use crate::report::record::Asked;

/// A response that declares at most this length is read whole.
const WHOLE: u64 = 1 << 20;
/// A response without a length is read for at most so many bytes,
const BEGINNING: usize = 256 << 10;
/// as long as it pauses for no longer than this.
const SILENCE: Duration = Duration::from_millis(50);

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
    asked: Asked,
    scanner: Arc<Scanner>,
    credential: Option<Arc<Scanner>>,
    provider: bool,
}

impl Inbound {
    /// `None` when the route disables all scans of responses.
    pub(super) fn of(egress: &Egress, permit: &Permit) -> Option<Self> {
        let Answers { scanner, credential } =
            egress.inspector.inbound(&permit.dlp, permit.credential.as_ref())?;
        Some(Self { asked: permit.asked.clone(), scanner, credential, provider: permit.provider })
    }

    /// Scans a response.
    ///
    /// # Errors
    /// The denial that replaces it.
    pub(super) async fn judge(
        self,
        egress: &Arc<Egress>,
        response: Response<Body>,
    ) -> Result<Response<Body>, Refusal> {
        let (mut parts, body) = response.into_parts();
        self.clean_headers(egress, &mut parts.headers);
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

    /// The content codings. A 206 part cannot be decoded; requests that carry a credential cannot ask for one.
    fn codings(&self, parts: &Parts) -> Result<Vec<Coding>, Refusal> {
        if parts.status == StatusCode::PARTIAL_CONTENT {
            return Ok(Vec::new());
        }
        codings(&parts.headers).map_err(|error| self.unreadable(error))
    }

    fn unreadable(&self, error: Unreadable) -> Refusal {
        Refusal::unreadable_answer(&self.asked.host, &error.to_string())
    }

    fn clean_headers(&self, egress: &Egress, headers: &mut HeaderMap) {
        let clean = self.credential.as_ref().and_then(|credential| without_secrets(headers, credential));
        if let Some(made) = clean {
            *headers = made;
            egress.reporter.noticed(
                &self.asked,
                "redacted",
                "the route's credential in the answer's headers",
            );
        }
    }

    /// The part of the body that arrives at once, and the rest if there is more.
    async fn beginning(&self, parts: &Parts, mut body: Body) -> Result<(BytesMut, Option<Rest>), Refusal> {
        let mut beginning = BytesMut::new();
        let length = length(&parts.headers);
        let awaited = length.is_some_and(|length| length <= WHOLE);
        if !awaited && (length.is_some() || is_stream(&parts.headers)) {
            return Ok((beginning, Some(Rest { body, next: None })));
        }
        loop {
            let frame = if awaited {
                body.frame().await
            } else {
                match timeout(SILENCE, body.frame()).await {
                    Ok(frame) => frame,
                    Err(_) => return Ok((beginning, Some(Rest { body, next: None }))),
                }
            };
            match frame {
                None => return Ok((beginning, None)),
                Some(Err(_)) => {
                    let host = &self.asked.host;
                    return Err(Refusal::later(Reason::UpstreamUnreachable, host, "its answer broke off"));
                }
                Some(Ok(frame)) if frame.is_data() => {
                    beginning.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
                    if beginning.len() > BEGINNING && !awaited {
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
        let found = self.found(&text, codings).map_err(|error| self.unreadable(error))?;
        let mut judge = self.judge_of(egress);
        judge.notice(&found);
        if let Some(finding) = judge.stops(&found) {
            return Err(Refusal::later(Reason::InjectionFound, &self.asked.host, &finding.preview));
        }
        let Some(credential) = self.credential.as_ref().filter(|_| found.iter().any(is_echo)) else {
            return Ok(Response::from_parts(parts, body::full(text)));
        };
        let words = "the route's credential in the answer";
        match rewritten(credential, &text, codings, &parts.headers) {
            Ok(Some(made)) => {
                egress.reporter.noticed(&self.asked, "redacted", words);
                parts.headers.remove(CONTENT_ENCODING);
                parts.headers.insert(CONTENT_LENGTH, HeaderValue::from(made.len()));
                Ok(Response::from_parts(parts, body::full(made)))
            }
            Ok(None) => Err(Refusal::secret_in_answer(&self.asked.host, "it cannot be taken out")),
            Err(error) => Err(self.unreadable(error)),
        }
    }

    fn found(&self, text: &[u8], codings: &[Coding]) -> Result<Vec<Finding>, Unreadable> {
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
        let judge = self.judge_of(egress);
        let scan = StreamingScan::new(judge, beginning, rest.next, rest.body, codings);
        Response::from_parts(parts, scan.boxed_unsync())
    }

    fn judge_of(&self, egress: &Egress) -> Judge {
        Judge {
            asked: self.asked.clone(),
            scanner: Arc::clone(&self.scanner),
            credential: self.credential.clone(),
            provider: self.provider,
            reporter: Arc::clone(&egress.reporter),
            noticed: 0,
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
pub(super) fn without_secrets(headers: &HeaderMap, known: &Arc<Scanner>) -> Option<HeaderMap> {
    let leaving = Leaving { host: "", path: "", query: None, headers, leaves: &|_| true };
    let head = Head::of(&leaving);
    let found: Vec<Finding> = head.look(Some(known)).into_iter().filter(is_echo).collect();
    (!found.is_empty()).then(|| head.without(&found, &leaving).headers)
}

fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Whether the client needs each chunk as it arrives.
fn is_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    STREAMS.iter().any(|stream| kind.starts_with(stream))
}
