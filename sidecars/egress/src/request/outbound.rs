//! Stages 1 to 6 of the request pipeline: decides on a request, scans it, and decides again with the findings.
//!
//! ```text
//! ReceivedRequest ─► decide 1–5 ─► Unscanned ─► scan head, buffer and scan body ─► Scanned ─► decide 6 ─► Cleared
//!                        │                                                           ▲           │  │
//!                        └─► deny (body unread)                                      └── redact ◄┘  └─► deny
//! ```
//! If the proxy denies a request because of its head, the proxy does not read the body. Only a [`Cleared`] request can
//! be sent, and only this module creates one.

use std::borrow::Cow;
use std::sync::Arc;

use bottle_policy::decide::{Findings, Reason, Refusal, Verdict, form_methods, quick_action};
use bottle_policy::route::RouteTable;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue};
use hyper::body::Body as _;
use hyper::upgrade::OnUpgrade;
use tokio::sync::OwnedSemaphorePermit;
use tracing::{Instrument, field};

use super::approval;
use super::body::Body;
use super::buffered_body::{BufferError, BufferedBody};
use super::credentials::CredentialRewrite;
use super::findings::RequestFindings;
use super::head::{Denied, DeniedRequest, ReceivedRequest, RequestHead};
use super::permit::Permit;
use super::request_body::RequestBody;
use crate::egress::Egress;
use crate::inspect::{Coding, rewritten};
use crate::report::record::RequestInfo;
use crate::upstream::chain;

/// A request whose head is allowed. `Scan` is the state of its scan: [`Unscanned`], [`Scanned`] or [`Cleared`].
pub(super) struct AllowedRequest<'t, Scan> {
    pub(super) head: RequestHead,
    pub(super) permit: Permit<'t>,
    pub(super) upgrade: OnUpgrade,
    scan: Scan,
}

/// The state before the scan, with the unread body.
pub(super) struct Unscanned(RequestBody);

/// The state after the scan: the body and the findings, before the decision on them.
pub(super) struct Scanned {
    body: OutboundBody,
    findings: RequestFindings,
}

/// The state after the decision, with the body to send. Every blocking finding is redacted or approved.
pub(super) struct Cleared(OutboundBody);

/// The body of a scanned request.
enum OutboundBody {
    /// There is no body, or the route does not scan bodies.
    Unscanned(RequestBody),
    Buffered(Box<BufferedBody>),
}

impl OutboundBody {
    fn buffered(&self) -> Option<&BufferedBody> {
        match self {
            Self::Buffered(buffered) => Some(buffered),
            Self::Unscanned(_) => None,
        }
    }
}

impl Cleared {
    /// Buffers a body that was not read for a scan, so that the proxy can read the whole body before it sends any of
    /// it.
    ///
    /// # Errors
    /// [`BufferError`] if the body is too long, or cannot be read.
    pub(super) async fn buffer(self, egress: &Egress, headers: &HeaderMap) -> Result<Self, BufferError> {
        let OutboundBody::Unscanned(body) = self.0 else { return Ok(self) };
        let (buffered, _) = BufferedBody::read(egress, None, headers, body).await?;
        Ok(Self(OutboundBody::Buffered(Box::new(buffered))))
    }

    /// Whether the proxy has read the body.
    pub(super) fn is_read(&self) -> bool {
        !matches!(self.0, OutboundBody::Unscanned(_))
    }

    /// Returns the decoded body. `None` if the body is not read yet, is too long, or cannot be decoded.
    pub(super) async fn decoded(&self) -> Option<Cow<'_, [u8]>> {
        match &self.0 {
            OutboundBody::Unscanned(_) => None,
            OutboundBody::Buffered(buffered) => buffered.decoded().await,
        }
    }

    /// Returns the body to send upstream. The body's trailers are stripped like the headers.
    pub(super) fn into_body(self, rewrite: CredentialRewrite) -> Body {
        match self.0 {
            OutboundBody::Unscanned(body) => body.into_body(rewrite),
            OutboundBody::Buffered(buffered) => buffered.into_body(rewrite),
        }
    }
}

impl<'t, Scan> AllowedRequest<'t, Scan> {
    fn with_scan<Next>(self, scan: Next) -> AllowedRequest<'t, Next> {
        let Self { head, permit, upgrade, .. } = self;
        AllowedRequest { head, permit, upgrade, scan }
    }

    /// Separates the state of the scan, which contains the body, from the rest of the request.
    pub(super) fn take_scan(self) -> (Scan, AllowedRequest<'t, ()>) {
        let Self { head, permit, upgrade, scan } = self;
        (scan, AllowedRequest { head, permit, upgrade, scan: () })
    }

    fn denied(&self, refusal: Refusal) -> Denied {
        DeniedRequest::new(Arc::clone(&self.permit.info), refusal)
    }
}

impl<'t> AllowedRequest<'t, Scanned> {
    fn cleared(self) -> AllowedRequest<'t, Cleared> {
        let (scanned, request) = self.take_scan();
        request.with_scan(Cleared(scanned.body))
    }

    /// Returns a denial. Its report contains the redacted path and method.
    fn redacted_denial(&self, refusal: Refusal) -> Denied {
        self.scan.findings.denied(&self.permit, &self.head, refusal)
    }
}

/// Decides on requests by one revision of the routes.
pub(super) struct Evaluation<'t> {
    pub(super) egress: &'t Arc<Egress>,
    /// The routes that all stages of a request use.
    pub(super) table: &'t RouteTable,
}

impl<'t> Evaluation<'t> {
    /// Runs stages 1 to 6 for a request. Redacts the request if the route requires that. Returns the request with its
    /// request slot. The request has held the slot since before its scan.
    pub(super) async fn evaluate(
        &self,
        request: ReceivedRequest,
    ) -> Result<(AllowedRequest<'t, Cleared>, OwnedSemaphorePermit), Denied> {
        let decided = tracing::debug_span!("decide").in_scope(|| self.decide(request));
        let allowed = self.unless_locked(decided).await?;
        tracing::Span::current().record("route", field::display(&allowed.permit.route.host));
        let slot = self.egress.request_slots.take().await.map_err(|why| {
            allowed.denied(Refusal::later(Reason::UpstreamUnreachable, allowed.permit.host(), why))
        })?;
        // Checks the lock again, because the scan of this request may have locked the bottle.
        Ok((self.unless_locked(self.clear(allowed).await).await?, slot))
    }

    async fn clear(
        &self,
        request: AllowedRequest<'t, Unscanned>,
    ) -> Result<AllowedRequest<'t, Cleared>, Denied> {
        self.decide_findings(self.scan(request).await?).await
    }

    /// Waits until all found pieces of credentials are counted. Then returns `outcome`, or the denial of the lock-out
    /// if the bottle is locked.
    async fn unless_locked<Scan>(
        &self,
        outcome: Result<AllowedRequest<'t, Scan>, Denied>,
    ) -> Result<AllowedRequest<'t, Scan>, Denied> {
        if !self.egress.lockout.settled().await {
            return outcome;
        }
        let info = match outcome {
            Ok(request) => request.permit.info,
            Err(denied) => denied.info,
        };
        let refusal = Refusal::locked_out(&info.host);
        Err(DeniedRequest::new(info, refusal))
    }

    /// Runs stages 1 to 5.
    fn decide(&self, request: ReceivedRequest) -> Result<AllowedRequest<'t, Unscanned>, Denied> {
        let permit = self.permit(&request.head, &Findings::none())?;
        let ReceivedRequest { head, body, upgrade } = request;
        Ok(AllowedRequest { head, permit, upgrade, scan: Unscanned(body) })
    }

    /// Scans the head. If the findings in the head do not lead to a denial, then also scans the body.
    async fn scan(
        &self,
        request: AllowedRequest<'t, Unscanned>,
    ) -> Result<AllowedRequest<'t, Scanned>, Denied> {
        let (Unscanned(body), request) = request.take_scan();
        let AllowedRequest { head, permit, .. } = &request;
        let mut findings = tracing::debug_span!("scan_head")
            .in_scope(|| RequestFindings::in_head(self.egress, permit, head));
        self.check_head(permit, head, &findings)?;
        let scanner = self.egress.secrets.inspector.outbound(&permit.route.dlp);
        let Some(scanner) = scanner.filter(|_| !body.is_end_stream()) else {
            self.check_quick_actions(permit, head, None).await?;
            return Ok(request.with_scan(Scanned { body: OutboundBody::Unscanned(body), findings }));
        };
        let read = BufferedBody::read(self.egress, Some(scanner), head.headers(), body)
            .instrument(tracing::debug_span!("read_body"))
            .await;
        let (buffered, in_body) =
            read.map_err(|error| request.denied(buffer_refusal(permit.host(), &error)))?;
        self.egress.count_hits(in_body.all(), permit.host());
        self.check_form_method(permit, head, &buffered).await?;
        self.check_quick_actions(permit, head, Some(&buffered)).await?;
        findings.in_body = in_body;
        let body = OutboundBody::Buffered(Box::new(buffered));
        Ok(request.with_scan(Scanned { body, findings }))
    }

    /// Denies a request with a GitLab quick action that changes a repository behind the git gate, and a request with
    /// text that is too long for this check. If the route does not scan bodies, this check does not read the body.
    async fn check_quick_actions(
        &self,
        permit: &Permit<'_>,
        head: &RequestHead,
        buffered: Option<&BufferedBody>,
    ) -> Result<(), Denied> {
        let host = permit.host();
        let is_gitlabs = permit.info.path.to_ascii_lowercase().contains("/projects/");
        if !self.table.is_forge(host) || !is_gitlabs || ["GET", "HEAD"].contains(&head.method().as_str()) {
            return Ok(());
        }
        let text = match buffered {
            Some(buffered) => buffered.text().await,
            None => Some(Vec::new()),
        };
        let word = match text {
            Some(text) => quick_action(permit.query.as_deref(), &text),
            None => Some("merge"),
        };
        word.map_or(Ok(()), |word| Err(head.denied(Refusal::quick_action(host, word))))
    }

    /// Denies a form that overrides the method with a method that the route denies, because some servers read the
    /// method from the form.
    async fn check_form_method(
        &self,
        permit: &Permit<'_>,
        head: &RequestHead,
        buffered: &BufferedBody,
    ) -> Result<(), Denied> {
        let kind = head.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let is_form = ["form", "json"].iter().any(|word| kind.to_ascii_lowercase().contains(word));
        // Provider routes are exempt: their hosts serve models, and a second pass over long conversations would be
        // slow.
        if permit.route.is_unrestricted() || permit.route.provider || !is_form {
            return Ok(());
        }
        let Some(text) = buffered.text().await else { return Ok(()) };
        for word in form_methods(kind, &text) {
            // The method in the form is checked like a header that overrides the method.
            let Ok(value) = HeaderValue::try_from(word) else { continue };
            let mut headers = head.headers().clone();
            headers.append("x-http-method-override", value);
            let credential_store = &self.egress.secrets.credential_store;
            if let Verdict::Deny(refusal) =
                head.decide_with(&headers, self.table, credential_store, &Findings::none())
            {
                return Err(head.denied(refusal));
            }
        }
        Ok(())
    }

    fn verdict<'h>(&self, head: &'h RequestHead, findings: &Findings) -> Verdict<'t, 'h> {
        head.decide(self.table, &self.egress.secrets.credential_store, findings)
    }

    /// Runs stages 1 to 6 with the findings so far.
    fn permit(&self, head: &RequestHead, findings: &Findings) -> Result<Permit<'t>, Denied> {
        match self.verdict(head, findings) {
            Verdict::Allow(allowed) => {
                let host = allowed.host.clone();
                Permit::new(allowed, head, &self.egress.secrets.credential_store)
                    .ok_or_else(|| head.denied(Refusal::later(Reason::CredentialMissing, &host, "")))
            }
            Verdict::Deny(refusal) => Err(head.denied(refusal)),
            // Without findings the policy returns neither verdict. After a redaction the policy may still return `Ask`.
            // The request is then denied, because the user is never asked about a redacted request.
            Verdict::Redact(allowed) | Verdict::Ask(allowed) => {
                Err(head.denied(Refusal::unasked(&allowed.host, "")))
            }
        }
    }

    /// Denies a request because of the findings in its head, before its body is read.
    fn check_head(
        &self,
        permit: &Permit<'_>,
        head: &RequestHead,
        findings: &RequestFindings,
    ) -> Result<(), Denied> {
        let blocking = self.egress.secrets.inspector.policy_findings(findings.all());
        if blocking.is_empty() {
            return Ok(());
        }
        let words = findings.describe(head.headers());
        match self.verdict(head, &Findings::new(blocking).described(words)) {
            Verdict::Deny(refusal) => Err(findings.denied(permit, head, refusal)),
            _ => Ok(()),
        }
    }

    /// Runs stage 6.
    async fn decide_findings(
        &self,
        mut request: AllowedRequest<'t, Scanned>,
    ) -> Result<AllowedRequest<'t, Cleared>, Denied> {
        let findings = &request.scan.findings;
        if let Some(words) = findings.describe_warnings(request.head.headers()) {
            let info = findings.redacted_info(&request.permit, &request.head);
            self.egress.reporter.report_finding(&info, "noticed", &words);
        }
        let blocking = self.egress.secrets.inspector.policy_findings(findings.all());
        if blocking.is_empty() {
            return Ok(request.cleared());
        }
        let words = request.scan.findings.describe(request.head.headers());
        match self.verdict(&request.head, &Findings::new(blocking).described(words.clone())) {
            Verdict::Allow(_) => Ok(request.cleared()),
            Verdict::Deny(refusal) => Err(request.redacted_denial(refusal)),
            Verdict::Ask(_) => {
                self.ask_user(&request, &words).await?;
                request.permit = self.permit(&request.head, &Findings::none())?;
                Ok(request.cleared())
            }
            Verdict::Redact(_) => {
                let redacted = self.redact(request).await?;
                self.egress.reporter.report_finding(&redacted.permit.info, "redacted", &words);
                Ok(redacted)
            }
        }
    }

    /// Asks the user to approve all findings in the request.
    async fn ask_user(&self, request: &AllowedRequest<'t, Scanned>, words: &str) -> Result<(), Denied> {
        let AllowedRequest { head, permit, scan: Scanned { body, findings }, .. } = request;
        let text = findings.text_for_question(body.buffered()).await;
        let keys = text.as_ref().and_then(|text| findings.approval_keys(permit.host(), text));
        let (Some(text), Some(keys)) = (text, keys) else {
            let words = format!("{words}, which cannot be identified for an approval");
            return Err(request.redacted_denial(Refusal::unasked(permit.host(), &words)));
        };
        if self.egress.approvals.approve_all(&keys) {
            return Ok(());
        }
        let shown: RequestInfo = findings.redacted_info(permit, head);
        let excerpt = findings.excerpt(self.egress, permit, head, &text);
        // The text is dropped early, because it may be long and the user may take long to decide.
        drop(text);
        let question = approval::Asked { keys, words, findings: findings.list(head.headers()), excerpt };
        let asked = approval::ask(&self.egress.approvals, &shown, question).await;
        asked.map_err(|refusal| request.redacted_denial(refusal))
    }

    /// Redacts the findings and decides again. If blocking findings remain, the request is denied.
    async fn redact(
        &self,
        request: AllowedRequest<'t, Scanned>,
    ) -> Result<AllowedRequest<'t, Cleared>, Denied> {
        let AllowedRequest { mut head, permit, upgrade, scan: Scanned { mut body, findings } } = request;
        if !findings.in_head.is_empty() {
            let redacted = findings.redact_head(&permit, &head);
            head = head.replace(redacted);
        }
        let mut left = Vec::new();
        if findings.in_body.blocks() {
            let text = self.redact_body(&permit, head.headers(), &body).await;
            if let Some(text) = &text {
                head.set_plain_length(text.len());
            } else {
                left = self.egress.secrets.inspector.policy_findings(findings.in_body.all());
            }
            let redacted = BufferedBody::of_text(&self.egress.spools, &text.unwrap_or_default()).await;
            let redacted = redacted.map_err(|error| {
                DeniedRequest::new(Arc::clone(&permit.info), buffer_refusal(permit.host(), &error))
            })?;
            body = OutboundBody::Buffered(Box::new(redacted));
        }
        let redecided = self.permit(&head, &Findings::none())?;
        let mut remaining = RequestFindings::in_head(self.egress, &redecided, &head);
        left.extend(self.egress.secrets.inspector.policy_findings(remaining.all()));
        if !left.is_empty() {
            remaining.in_body = findings.in_body;
        }
        let words = remaining.describe(head.headers());
        let permit = self
            .permit(&head, &Findings::after_redaction(left).described(words))
            .map_err(|denied| remaining.denied(&redecided, &head, denied.refusal))?;
        Ok(AllowedRequest { head, permit, upgrade, scan: Cleared(body) })
    }

    /// Returns the body without its findings, or `None` if the findings cannot be redacted. A signed upload to S3
    /// cannot be redacted, because its signatures are wrong without its framing.
    async fn redact_body(
        &self,
        permit: &Permit<'_>,
        headers: &HeaderMap,
        body: &OutboundBody,
    ) -> Option<Vec<u8>> {
        let buffered = body.buffered().filter(|body| !body.codings().contains(&Coding::AwsChunked))?;
        let scanner = self.egress.secrets.inspector.outbound(&permit.route.dlp)?;
        let text = buffered.whole().await?;
        rewritten(scanner, &text, buffered.codings(), headers).ok().flatten()
    }
}

fn buffer_refusal(host: &str, error: &BufferError) -> Refusal {
    Refusal::later(error.reason(), host, &chain(error))
}
