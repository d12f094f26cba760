//! Stages 1 to 6: decides a request, scans it, and decides again with the findings.
//!
//! ```text
//! head ─► decide 1–5 ─► head scanned ─► body buffered and scanned ─► decide 6 ─┬─► forward
//!              │                                  ▲                           ├─► deny
//!              └─► deny (body unread)             └─────── redact ◄───────────┘
//! ```
//! A denial by the head costs nothing: the body stays unread. A body is sent only after its verdict.

use std::sync::Arc;

use bottle_contract::credential::{Binding, binding};
use bottle_contract::decide::{
    Allowed, Findings, Reason, Refusal, RequestFacts, Verdict, decide, form_methods, quick_action,
};
use bottle_contract::names::HTTP_PORT;
use bottle_contract::route::{Dlp, Route, RouteTable};
use bottle_scan::{Finding, Severity};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue};
use hyper::body::Body as _;

use super::approval::{self, ApprovalKey};
use super::body::{self, Body};
use super::buffered_body::{BufferError, BufferedBody};
use super::credentials::CredentialRewrite;
use super::facts;
use super::request_body::RequestBody;
use crate::egress::Egress;
use crate::inspect::head::{Head, OutgoingHead};
use crate::inspect::{BodyFindings, describe, rewritten};
use crate::listener::ConnectionContext;
use crate::live;
use crate::report::record::RequestInfo;
use crate::upstream::Target;

/// An allowed request, in the form in which it is sent.
pub(super) struct Permit {
    pub(super) info: RequestInfo,
    pub(super) target: Target,
    /// Canonical, as decided on, without credentials.
    path: String,
    query: Option<String>,
    /// Keys of what was stripped from the query.
    pub(super) stripped_keys: Vec<String>,
    pub(super) rewrite: CredentialRewrite,
    /// The binding of the injected credential.
    pub(super) credential: Option<Binding>,
    /// Whether the route has `matches`.
    has_matches: bool,
    pub(super) websocket: bool,
    pub(super) dlp: Dlp,
    /// Whether the route is a provider route.
    pub(super) provider: bool,
}

impl Permit {
    pub(super) fn path_and_query(&self) -> String {
        match &self.query {
            Some(query) => format!("{}?{query}", self.path),
            None => self.path.clone(),
        }
    }
}

/// A denied request and its denial.
pub(super) type DeniedRequest = Box<(RequestInfo, Refusal)>;

/// The body of a request that may be sent.
pub(super) enum OutboundBody {
    /// The route scans no bodies, or there is none.
    Unscanned(RequestBody),
    /// Scanned.
    Buffered(Box<BufferedBody>),
    /// Redacted.
    Redacted(Vec<u8>),
}

impl OutboundBody {
    /// The body to send upstream.
    pub(super) fn into_body(self, rewrite: CredentialRewrite) -> Body {
        match self {
            Self::Unscanned(body) => body.into_body(rewrite),
            Self::Buffered(buffered) => buffered.into_body(rewrite),
            Self::Redacted(text) => body::full(text),
        }
    }
}

/// The context in which a request is evaluated.
pub(super) struct Evaluation<'r> {
    pub(super) egress: &'r Arc<Egress>,
    /// The routes that decide the whole request.
    pub(super) table: &'r RouteTable,
    pub(super) connection: &'r ConnectionContext,
}

impl Evaluation<'_> {
    /// Evaluates a request; redacts `parts` where the route asks for it.
    pub(super) async fn evaluate(
        &self,
        parts: &mut Parts,
        body: RequestBody,
    ) -> Result<(Permit, OutboundBody), DeniedRequest> {
        let permit = self.decide_request(parts, &Findings::none())?;
        let (head, in_head) = scan_head(self.egress, &permit, parts);
        self.egress.count_in_head(&head, &in_head, &permit.info.host);
        self.check_head(&permit, parts, &head, &in_head)?;
        let Some(scanner) = self.egress.inspector.outbound(&permit.dlp).filter(|_| !body.is_end_stream())
        else {
            self.check_quick_actions(&permit, parts, None).await?;
            let found = RequestFindings { head, in_head, buffered: None, in_body: BodyFindings::default() };
            return self.decide_findings(permit, parts, found, Some(body)).await;
        };
        let buffered = BufferedBody::read(&self.egress.spools, scanner, &parts.headers, body).await;
        let (buffered, in_body) = buffered.map_err(|error| buffer_denial(&permit, &error))?;
        self.egress.count_in_body(&buffered, &in_body, &permit.info.host).await;
        self.check_form_method(&permit, parts, &buffered).await?;
        self.check_quick_actions(&permit, parts, Some(&buffered)).await?;
        let found = RequestFindings { head, in_head, buffered: Some(buffered), in_body };
        self.decide_findings(permit, parts, found, None).await
    }

    /// The denial of any request, while the bottle is locked.
    pub(super) fn locked_out(&self, parts: &Parts) -> Option<DeniedRequest> {
        if !self.egress.lockout.is_locked() {
            return None;
        }
        let info = match self.decide_request(parts, &Findings::none()) {
            Ok(permit) => permit.info,
            Err(denied) => denied.0,
        };
        let refusal = self.egress.locked_out(&info.host)?;
        Some(Box::new((info, refusal)))
    }

    /// Denies a text with a GitLab quick action that changes a gated repository, and a text too long to be checked. A
    /// body that the route does not scan stays unread.
    async fn check_quick_actions(
        &self,
        permit: &Permit,
        parts: &Parts,
        buffered: Option<&BufferedBody>,
    ) -> Result<(), DeniedRequest> {
        let host = &permit.info.host;
        let is_gitlabs = permit.path.to_ascii_lowercase().contains("/projects/");
        if !self.table.is_forge(host) || !is_gitlabs || ["GET", "HEAD"].contains(&parts.method.as_str()) {
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
        word.map_or(Ok(()), |word| Err(self.denial(parts, Refusal::quick_action(host, word))))
    }

    /// Denies a form that overrides the method to one that the route denies: some servers read the method from the
    /// form.
    async fn check_form_method(
        &self,
        permit: &Permit,
        parts: &Parts,
        buffered: &BufferedBody,
    ) -> Result<(), DeniedRequest> {
        let kind = parts.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let is_form = ["form", "json"].iter().any(|word| kind.to_ascii_lowercase().contains(word));
        // Provider routes lead to models, whose long conversations need no second pass.
        if !permit.has_matches || permit.provider || !is_form {
            return Ok(());
        }
        let Some(text) = buffered.text().await else { return Ok(()) };
        for word in form_methods(kind, &text) {
            // Decided like the header of the same meaning.
            let Ok(value) = HeaderValue::try_from(word) else { continue };
            let mut headers = parts.headers.clone();
            headers.append("x-http-method-override", value);
            let facts = RequestFacts { headers: &headers, ..facts::collect(self.connection, parts) };
            let loaded = |slot: &str| self.egress.vault.holds(slot);
            if let Verdict::Deny(refusal) = decide(self.table, &facts, &loaded, &Findings::none()) {
                return Err(self.denial(parts, refusal));
            }
        }
        Ok(())
    }

    /// Stages 1 to 6 with the findings so far.
    fn decide_request(&self, parts: &Parts, findings: &Findings) -> Result<Permit, DeniedRequest> {
        let facts = facts::collect(self.connection, parts);
        match self.verdict(&facts, findings) {
            Verdict::Allow(allowed) => self.permit(parts, &allowed, facts.method, facts.websocket),
            Verdict::Deny(refusal) => Err(self.denial(parts, refusal)),
            // A decision without findings, or after a redaction, returns neither.
            Verdict::Redact(allowed) | Verdict::Ask(allowed) => {
                Err(self.denial(parts, Refusal::unasked(&allowed.host, "")))
            }
        }
    }

    fn verdict<'d>(&'d self, facts: &RequestFacts<'d>, findings: &Findings) -> Verdict<'d, 'd> {
        decide(self.table, facts, &|slot| self.egress.vault.holds(slot), findings)
    }

    fn denial(&self, parts: &Parts, refusal: Refusal) -> DeniedRequest {
        let (method, path) = (parts.method.as_str(), parts.uri.path());
        Box::new((
            RequestInfo::for_denied(&refusal, self.connection.port_of(&parts.uri), method, path),
            refusal,
        ))
    }

    fn permit(
        &self,
        parts: &Parts,
        allowed: &Allowed<'_, '_>,
        method: &str,
        websocket: bool,
    ) -> Result<Permit, DeniedRequest> {
        let Allowed { route, host, port, target, .. } = allowed;
        let route: &Route = route;
        // The decision checked that the slot is loaded; this checks that it is bound to this very destination.
        let rewrite = CredentialRewrite::for_route(route, &self.egress.vault)
            .ok_or_else(|| self.denial(parts, Refusal::later(Reason::CredentialMissing, host, "")))?;
        let tls = *port != HTTP_PORT;
        let path = target.path.text.clone().into_owned();
        Ok(Permit {
            info: RequestInfo {
                host: host.clone().into_owned(),
                port: *port,
                method: method.to_owned(),
                path: path.clone(),
            },
            target: live::target(route, host, *port, tls),
            query: target.query.as_deref().map(|query| rewrite.query(query)),
            stripped_keys: rewrite.stripped_keys(target.query.as_deref().unwrap_or_default()),
            path,
            rewrite,
            credential: binding(route),
            has_matches: !route.matches.is_empty(),
            websocket,
            dlp: route.dlp.clone(),
            provider: route.provider,
        })
    }

    /// Denies a request by the findings in its head alone, before its body is read.
    fn check_head(
        &self,
        permit: &Permit,
        parts: &Parts,
        head: &Head,
        in_head: &[Finding],
    ) -> Result<(), DeniedRequest> {
        let blocking = self.egress.inspector.policy_findings(in_head.iter());
        if blocking.is_empty() {
            return Ok(());
        }
        let words = describe_findings(head, in_head, &BodyFindings::default(), &parts.headers);
        let facts = facts::collect(self.connection, parts);
        match self.verdict(&facts, &Findings::new(blocking).described(words)) {
            Verdict::Deny(refusal) => Err(redacted_denial(permit, head, in_head, refusal, &parts.headers)),
            _ => Ok(()),
        }
    }

    /// Stage 6.
    async fn decide_findings(
        &self,
        permit: Permit,
        parts: &mut Parts,
        found: RequestFindings,
        unscanned: Option<RequestBody>,
    ) -> Result<(Permit, OutboundBody), DeniedRequest> {
        let RequestFindings { head, in_head, buffered, in_body } = found;
        let blocking = self.egress.inspector.policy_findings(in_head.iter().chain(in_body.all()));
        let words = describe_findings(&head, &in_head, &in_body, &parts.headers);
        if blocking.is_empty() {
            let body = outbound_body(buffered, unscanned);
            return Ok((permit, body));
        }
        let facts = facts::collect(self.connection, parts);
        let findings = Findings::new(blocking).described(words.clone());
        match self.verdict(&facts, &findings) {
            Verdict::Allow(_) => Ok((permit, outbound_body(buffered, unscanned))),
            Verdict::Deny(refusal) => Err(redacted_denial(&permit, &head, &in_head, refusal, &parts.headers)),
            Verdict::Ask(_) => {
                let found = RequestFindings { head, in_head, buffered, in_body };
                self.ask_user(&permit, parts, &found, &words).await?;
                // By the current rules: the user may have taken a while.
                let permit = self.decide_request(parts, &Findings::none())?;
                Ok((permit, outbound_body(found.buffered, unscanned)))
            }
            Verdict::Redact(_) => {
                let found = RequestFindings { head, in_head, buffered, in_body };
                let redacted = self.redact(permit, parts, found, unscanned).await?;
                self.egress.reporter.report_finding(&redacted.0.info, "redacted", &words);
                Ok(redacted)
            }
        }
    }

    /// Asks the user to approve all findings.
    async fn ask_user(
        &self,
        permit: &Permit,
        parts: &Parts,
        found: &RequestFindings,
        words: &str,
    ) -> Result<(), DeniedRequest> {
        let RequestFindings { head, in_head, .. } = found;
        let denied = |refusal| redacted_denial(permit, head, in_head, refusal, &parts.headers);
        let Some(keys) = approval_keys(permit, found).await else {
            let words = format!("{words}, which cannot be identified for an approval");
            return Err(denied(Refusal::unasked(&permit.info.host, &words)));
        };
        let sent = |name: &HeaderName| is_sent(permit, name);
        let redacted = head.redact(in_head, &outgoing_head(permit, &parts.headers, &sent));
        let shown = RequestInfo { path: redacted.path, method: redacted.method, ..permit.info.clone() };
        approval::ask(self.egress, &shown, keys, words).await.map_err(denied)
    }

    /// Redacts the findings and decides again; remaining findings deny the request.
    async fn redact(
        &self,
        permit: Permit,
        parts: &mut Parts,
        found: RequestFindings,
        unscanned: Option<RequestBody>,
    ) -> Result<(Permit, OutboundBody), DeniedRequest> {
        redact_head(&permit, parts, &found);
        let mut body = outbound_body(found.buffered, unscanned);
        let mut left = Vec::new();
        if found.in_body.blocks() {
            match self.redact_body(&permit, &parts.headers, body).await {
                Some(text) => {
                    set_plain_length(&mut parts.headers, text.len());
                    body = OutboundBody::Redacted(text);
                }
                None => {
                    left = self.egress.inspector.policy_findings(found.in_body.all());
                    body = OutboundBody::Redacted(Vec::new());
                }
            }
        }
        let redecided = self.decide_request(parts, &Findings::none())?;
        let (head, in_head) = scan_head(self.egress, &redecided, parts);
        self.egress.count_in_head(&head, &in_head, &redecided.info.host);
        left.extend(self.egress.inspector.policy_findings(in_head.iter()));
        let in_body = if left.is_empty() { BodyFindings::default() } else { found.in_body };
        let words = describe_findings(&head, &in_head, &in_body, &parts.headers);
        let permit = self
            .decide_request(parts, &Findings::after_redaction(left).described(words))
            .map_err(|denied| redacted_denial(&redecided, &head, &in_head, denied.1, &parts.headers))?;
        Ok((permit, body))
    }

    /// The body without the findings; `None` when it cannot be redacted.
    async fn redact_body(&self, permit: &Permit, headers: &HeaderMap, body: OutboundBody) -> Option<Vec<u8>> {
        let OutboundBody::Buffered(buffered) = body else { return None };
        let scanner = self.egress.inspector.outbound(&permit.dlp)?;
        let text = buffered.whole().await?;
        rewritten(scanner, &text, buffered.codings(), headers).ok().flatten()
    }
}

/// The findings in a request.
struct RequestFindings {
    head: Head,
    in_head: Vec<Finding>,
    buffered: Option<BufferedBody>,
    in_body: BodyFindings,
}

/// The approvals that the request needs; `None` when a finding cannot be identified.
async fn approval_keys(permit: &Permit, found: &RequestFindings) -> Option<Vec<ApprovalKey>> {
    let blocks = |finding: &&Finding| finding.severity == Severity::Block;
    if found.in_body.packed.iter().any(|finding| blocks(&finding)) {
        return None;
    }
    let host = &permit.info.host;
    let in_head = found.in_head.iter().filter(blocks);
    let mut keys: Vec<ApprovalKey> =
        in_head.map(|finding| ApprovalKey::new(finding, found.head.matched_text(finding), host)).collect();
    let in_body: Vec<&Finding> = found.in_body.plain.iter().filter(blocks).collect();
    if !in_body.is_empty() {
        let text = found.buffered.as_ref()?.text().await?;
        let value = |finding: &Finding| &text[finding.span.within(text.len())];
        keys.extend(in_body.iter().map(|finding| ApprovalKey::new(finding, value(finding), host)));
    }
    Some(keys)
}

fn outbound_body(buffered: Option<BufferedBody>, unscanned: Option<RequestBody>) -> OutboundBody {
    match (buffered, unscanned) {
        (Some(buffered), _) => OutboundBody::Buffered(Box::new(buffered)),
        (None, Some(unscanned)) => OutboundBody::Unscanned(unscanned),
        (None, None) => OutboundBody::Redacted(Vec::new()),
    }
}

fn scan_head(egress: &Egress, permit: &Permit, parts: &Parts) -> (Head, Vec<Finding>) {
    let sent = |name: &HeaderName| is_sent(permit, name);
    let head = Head::with_method(parts.method.as_str(), &outgoing_head(permit, &parts.headers, &sent));
    let found = head.scan(egress.inspector.outbound(&permit.dlp));
    (head, found)
}

fn outgoing_head<'l>(
    permit: &'l Permit,
    headers: &'l HeaderMap,
    is_sent: &'l dyn Fn(&HeaderName) -> bool,
) -> OutgoingHead<'l> {
    OutgoingHead {
        host: &permit.info.host,
        path: &permit.path,
        query: permit.query.as_deref(),
        headers,
        is_sent,
    }
}

/// Whether a header is sent as the agent wrote it. `Host` is rewritten from the decided host.
fn is_sent(permit: &Permit, name: &HeaderName) -> bool {
    name != HOST && permit.rewrite.forwards(name)
}

fn redact_head(permit: &Permit, parts: &mut Parts, found: &RequestFindings) {
    if found.in_head.is_empty() {
        return;
    }
    let sent = |name: &HeaderName| is_sent(permit, name);
    let redacted = found.head.redact(&found.in_head, &outgoing_head(permit, &parts.headers, &sent));
    let target = match &redacted.query {
        Some(query) => format!("{}?{query}", redacted.path),
        None => redacted.path,
    };
    let mut uri = parts.uri.clone().into_parts();
    // A target that no longer parses stays unchanged, is found again, and denied.
    if let Ok(target) = target.parse() {
        uri.path_and_query = Some(target);
        if let Ok(uri) = http::Uri::from_parts(uri) {
            parts.uri = uri;
        }
    }
    parts.headers = redacted.headers;
}

/// Describes the findings and their locations, for a user.
fn describe_findings(
    head: &Head,
    in_head: &[Finding],
    in_body: &BodyFindings,
    headers: &HeaderMap,
) -> String {
    let in_head: Vec<(&Finding, String)> =
        in_head.iter().map(|finding| (finding, head.location(finding, headers))).collect();
    let in_head = in_head.iter().map(|(finding, location)| (*finding, location.as_str()));
    let plain = in_body.plain.iter().map(|finding| (finding, "the body"));
    let packed = in_body.packed.iter().map(|finding| (finding, "a file in the body"));
    describe(in_head.chain(plain).chain(packed))
}

/// A denial whose reported path and method are redacted.
fn redacted_denial(
    permit: &Permit,
    head: &Head,
    in_head: &[Finding],
    refusal: Refusal,
    headers: &HeaderMap,
) -> DeniedRequest {
    let sent = |name: &HeaderName| is_sent(permit, name);
    let redacted = head.redact(in_head, &outgoing_head(permit, headers, &sent));
    Box::new((RequestInfo { path: redacted.path, method: redacted.method, ..permit.info.clone() }, refusal))
}

fn buffer_denial(permit: &Permit, error: &BufferError) -> DeniedRequest {
    let host = &permit.info.host;
    let refusal = Refusal::later(error.reason(), host, &error.to_string());
    Box::new((permit.info.clone(), refusal))
}

/// Sets the headers of a rewritten body: no content coding, and its new length.
fn set_plain_length(headers: &mut HeaderMap, length: usize) {
    headers.remove(CONTENT_ENCODING);
    headers.remove(TRANSFER_ENCODING);
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
}
