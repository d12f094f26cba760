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

use super::approval::{self, Key};
use super::body::{self, Body};
use super::buffered_body::{BufferedBody, HoldError};
use super::credentials::Exchange;
use super::facts;
use super::request_body::RequestBody;
use crate::egress::Egress;
use crate::inspect::head::{Head, Leaving};
use crate::inspect::{Seen, described, rewritten};
use crate::listener::ConnectionContext;
use crate::live;
use crate::report::record::Asked;
use crate::upstream::Target;

/// An allowed request, in the form in which it is sent.
pub(super) struct Permit {
    pub(super) asked: Asked,
    pub(super) target: Target,
    /// Canonical, as decided on, without credentials.
    path: String,
    query: Option<String>,
    /// Keys of what was stripped from the query.
    pub(super) stripped_keys: Vec<String>,
    pub(super) exchange: Exchange,
    /// The binding of the injected credential.
    pub(super) credential: Option<Binding>,
    /// Whether the route has `matches`.
    bounded: bool,
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
pub(super) type Refused = Box<(Asked, Refusal)>;

/// The body of a request that may be sent.
pub(super) enum OutboundBody {
    /// The route scans no bodies, or there is none.
    RequestBody(RequestBody),
    /// Scanned.
    BufferedBody(Box<BufferedBody>),
    /// Redacted.
    Whole(Vec<u8>),
}

impl OutboundBody {
    /// The body to send upstream.
    pub(super) fn under(self, exchange: Exchange) -> Body {
        match self {
            Self::RequestBody(body) => body.under(exchange),
            Self::BufferedBody(held) => held.under(exchange),
            Self::Whole(text) => body::full(text),
        }
    }
}

/// The context in which a request is evaluated.
pub(super) struct Judging<'r> {
    pub(super) egress: &'r Arc<Egress>,
    /// The routes that decide the whole request.
    pub(super) table: &'r RouteTable,
    pub(super) way: &'r ConnectionContext,
}

impl Judging<'_> {
    /// Evaluates a request; redacts `parts` where the route asks for it.
    pub(super) async fn judge(
        &self,
        parts: &mut Parts,
        body: RequestBody,
    ) -> Result<(Permit, OutboundBody), Refused> {
        let permit = self.decided(parts, &Findings::none())?;
        let (head, in_head) = look_at_head(self.egress, &permit, parts);
        self.egress.count_in_head(&head, &in_head, &permit.asked.host);
        self.spare_the_body(&permit, parts, &head, &in_head)?;
        let Some(scanner) = self.egress.inspector.outbound(&permit.dlp).filter(|_| !body.is_end_stream())
        else {
            self.merges_nothing(&permit, parts, None).await?;
            let found = Found { head, in_head, held: None, in_body: Seen::default() };
            return self.weighed(permit, parts, found, Some(body)).await;
        };
        let held = BufferedBody::read(&self.egress.spools, scanner, &parts.headers, body).await;
        let (held, in_body) = held.map_err(|error| unheld(&permit, &error))?;
        self.egress.count_in_body(&held, &in_body, &permit.asked.host).await;
        self.form_agrees(&permit, parts, &held).await?;
        self.merges_nothing(&permit, parts, Some(&held)).await?;
        let found = Found { head, in_head, held: Some(held), in_body };
        self.weighed(permit, parts, found, None).await
    }

    /// The denial of any request, while the bottle is locked.
    pub(super) fn locked_out(&self, parts: &Parts) -> Option<Refused> {
        if !self.egress.lockout.is_locked() {
            return None;
        }
        let asked = match self.decided(parts, &Findings::none()) {
            Ok(permit) => permit.asked,
            Err(refused) => refused.0,
        };
        let refusal = self.egress.locked_out(&asked.host)?;
        Some(Box::new((asked, refusal)))
    }

    /// Denies a text with a GitLab quick action that changes a gated repository, and a text too long to be checked. A
    /// body that the route does not scan stays unread.
    async fn merges_nothing(
        &self,
        permit: &Permit,
        parts: &Parts,
        held: Option<&BufferedBody>,
    ) -> Result<(), Refused> {
        let host = &permit.asked.host;
        let is_gitlabs = permit.path.to_ascii_lowercase().contains("/projects/");
        if !self.table.is_forge(host) || !is_gitlabs || ["GET", "HEAD"].contains(&parts.method.as_str()) {
            return Ok(());
        }
        let text = match held {
            Some(held) => held.text().await,
            None => Some(Vec::new()),
        };
        let word = match text {
            Some(text) => quick_action(permit.query.as_deref(), &text),
            None => Some("merge"),
        };
        word.map_or(Ok(()), |word| Err(self.refused(parts, Refusal::quick_action(host, word))))
    }

    /// Denies a form that overrides the method to one that the route denies: some servers read the method from the
    /// form.
    async fn form_agrees(&self, permit: &Permit, parts: &Parts, held: &BufferedBody) -> Result<(), Refused> {
        let kind = parts.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let is_form = ["form", "json"].iter().any(|word| kind.to_ascii_lowercase().contains(word));
        // Provider routes lead to models, whose long conversations need no second pass.
        if !permit.bounded || permit.provider || !is_form {
            return Ok(());
        }
        let Some(text) = held.text().await else { return Ok(()) };
        for word in form_methods(kind, &text) {
            // Decided like the header of the same meaning.
            let Ok(value) = HeaderValue::try_from(word) else { continue };
            let mut headers = parts.headers.clone();
            headers.append("x-http-method-override", value);
            let facts = RequestFacts { headers: &headers, ..facts::of(self.way, parts) };
            let loaded = |slot: &str| self.egress.vault.holds(slot);
            if let Verdict::Deny(refusal) = decide(self.table, &facts, &loaded, &Findings::none()) {
                return Err(self.refused(parts, refusal));
            }
        }
        Ok(())
    }

    /// Stages 1 to 6 with the findings so far.
    fn decided(&self, parts: &Parts, findings: &Findings) -> Result<Permit, Refused> {
        let facts = facts::of(self.way, parts);
        match self.verdict(&facts, findings) {
            Verdict::Allow(allowed) => self.permit(parts, &allowed, facts.method, facts.websocket),
            Verdict::Deny(refusal) => Err(self.refused(parts, refusal)),
            // A decision without findings, or after a redaction, returns neither.
            Verdict::Redact(allowed) | Verdict::Ask(allowed) => {
                Err(self.refused(parts, Refusal::unasked(&allowed.host, "")))
            }
        }
    }

    fn verdict<'d>(&'d self, facts: &RequestFacts<'d>, findings: &Findings) -> Verdict<'d, 'd> {
        decide(self.table, facts, &|slot| self.egress.vault.holds(slot), findings)
    }

    fn refused(&self, parts: &Parts, refusal: Refusal) -> Refused {
        let (method, path) = (parts.method.as_str(), parts.uri.path());
        Box::new((Asked::of_refused(&refusal, self.way.port_of(&parts.uri), method, path), refusal))
    }

    fn permit(
        &self,
        parts: &Parts,
        allowed: &Allowed<'_, '_>,
        method: &str,
        websocket: bool,
    ) -> Result<Permit, Refused> {
        let Allowed { route, host, port, target, .. } = allowed;
        let route: &Route = route;
        // The decision checked that the slot is loaded; this checks that it is bound to this very destination.
        let exchange = Exchange::of(route, &self.egress.vault)
            .ok_or_else(|| self.refused(parts, Refusal::later(Reason::CredentialMissing, host, "")))?;
        let tls = *port != HTTP_PORT;
        let path = target.path.text.clone().into_owned();
        Ok(Permit {
            asked: Asked {
                host: host.clone().into_owned(),
                port: *port,
                method: method.to_owned(),
                path: path.clone(),
            },
            target: live::target(route, host, *port, tls),
            query: target.query.as_deref().map(|query| exchange.query(query)),
            stripped_keys: exchange.stripped_keys(target.query.as_deref().unwrap_or_default()),
            path,
            exchange,
            credential: binding(route),
            bounded: !route.matches.is_empty(),
            websocket,
            dlp: route.dlp.clone(),
            provider: route.provider,
        })
    }

    /// Denies a request by the findings in its head alone, before its body is read.
    fn spare_the_body(
        &self,
        permit: &Permit,
        parts: &Parts,
        head: &Head,
        in_head: &[Finding],
    ) -> Result<(), Refused> {
        let weighed = self.egress.inspector.weighed(in_head.iter());
        if weighed.is_empty() {
            return Ok(());
        }
        let words = words(head, in_head, &Seen::default(), &parts.headers);
        let facts = facts::of(self.way, parts);
        match self.verdict(&facts, &Findings::new(weighed).described(words)) {
            Verdict::Deny(refusal) => Err(told(permit, head, in_head, refusal, &parts.headers)),
            _ => Ok(()),
        }
    }

    /// Stage 6.
    async fn weighed(
        &self,
        permit: Permit,
        parts: &mut Parts,
        found: Found,
        unread: Option<RequestBody>,
    ) -> Result<(Permit, OutboundBody), Refused> {
        let Found { head, in_head, held, in_body } = found;
        let weighed = self.egress.inspector.weighed(in_head.iter().chain(in_body.all()));
        let words = words(&head, &in_head, &in_body, &parts.headers);
        if weighed.is_empty() {
            let cargo = cargo(held, unread);
            return Ok((permit, cargo));
        }
        let facts = facts::of(self.way, parts);
        let findings = Findings::new(weighed).described(words.clone());
        match self.verdict(&facts, &findings) {
            Verdict::Allow(_) => Ok((permit, cargo(held, unread))),
            Verdict::Deny(refusal) => Err(told(&permit, &head, &in_head, refusal, &parts.headers)),
            Verdict::Ask(_) => {
                let found = Found { head, in_head, held, in_body };
                self.asked(&permit, parts, &found, &words).await?;
                // By the current rules: the user may have taken a while.
                let permit = self.decided(parts, &Findings::none())?;
                Ok((permit, cargo(found.held, unread)))
            }
            Verdict::Redact(_) => {
                let found = Found { head, in_head, held, in_body };
                let redacted = self.redacted(permit, parts, found, unread).await?;
                self.egress.reporter.noticed(&redacted.0.asked, "redacted", &words);
                Ok(redacted)
            }
        }
    }

    /// Asks the user to approve all findings.
    async fn asked(&self, permit: &Permit, parts: &Parts, found: &Found, words: &str) -> Result<(), Refused> {
        let Found { head, in_head, .. } = found;
        let refused = |refusal| told(permit, head, in_head, refusal, &parts.headers);
        let Some(keys) = keys(permit, found).await else {
            let words = format!("{words}, where nobody can say which it is");
            return Err(refused(Refusal::unasked(&permit.asked.host, &words)));
        };
        let all = |name: &HeaderName| leaves(permit, name);
        let made = head.without(in_head, &leaving(permit, &parts.headers, &all));
        let shown = Asked { path: made.path, method: made.method, ..permit.asked.clone() };
        approval::ask(self.egress, &shown, keys, words).await.map_err(refused)
    }

    /// Redacts the findings and decides again; remaining findings deny the request.
    async fn redacted(
        &self,
        permit: Permit,
        parts: &mut Parts,
        found: Found,
        unread: Option<RequestBody>,
    ) -> Result<(Permit, OutboundBody), Refused> {
        take_out_of_head(&permit, parts, &found);
        let mut cargo = cargo(found.held, unread);
        let mut left = Vec::new();
        if found.in_body.blocks() {
            match self.without(&permit, &parts.headers, cargo).await {
                Some(text) => {
                    say_whole(&mut parts.headers, text.len());
                    cargo = OutboundBody::Whole(text);
                }
                None => {
                    left = self.egress.inspector.weighed(found.in_body.all());
                    cargo = OutboundBody::Whole(Vec::new());
                }
            }
        }
        let again = self.decided(parts, &Findings::none())?;
        let (head, in_head) = look_at_head(self.egress, &again, parts);
        self.egress.count_in_head(&head, &in_head, &again.asked.host);
        left.extend(self.egress.inspector.weighed(in_head.iter()));
        let in_body = if left.is_empty() { Seen::default() } else { found.in_body };
        let words = words(&head, &in_head, &in_body, &parts.headers);
        let permit = self
            .decided(parts, &Findings::after_redaction(left).described(words))
            .map_err(|refused| told(&again, &head, &in_head, refused.1, &parts.headers))?;
        Ok((permit, cargo))
    }

    /// The body without the findings; `None` when it cannot be redacted.
    async fn without(&self, permit: &Permit, headers: &HeaderMap, cargo: OutboundBody) -> Option<Vec<u8>> {
        let OutboundBody::BufferedBody(held) = cargo else { return None };
        let scanner = self.egress.inspector.outbound(&permit.dlp)?;
        let text = held.whole().await?;
        rewritten(scanner, &text, held.codings(), headers).ok().flatten()
    }
}

/// The findings in a request.
struct Found {
    head: Head,
    in_head: Vec<Finding>,
    held: Option<BufferedBody>,
    in_body: Seen,
}

/// The approvals that the request needs; `None` when a finding cannot be identified.
async fn keys(permit: &Permit, found: &Found) -> Option<Vec<Key>> {
    let blocks = |finding: &&Finding| finding.severity == Severity::Block;
    if found.in_body.packed.iter().any(|finding| blocks(&finding)) {
        return None;
    }
    let host = &permit.asked.host;
    let in_head = found.in_head.iter().filter(blocks);
    let mut keys: Vec<Key> =
        in_head.map(|finding| Key::of(finding, found.head.said(finding), host)).collect();
    let in_body: Vec<&Finding> = found.in_body.plain.iter().filter(blocks).collect();
    if !in_body.is_empty() {
        let text = found.held.as_ref()?.text().await?;
        let value = |finding: &Finding| &text[finding.span.within(text.len())];
        keys.extend(in_body.iter().map(|finding| Key::of(finding, value(finding), host)));
    }
    Some(keys)
}

fn cargo(held: Option<BufferedBody>, unread: Option<RequestBody>) -> OutboundBody {
    match (held, unread) {
        (Some(held), _) => OutboundBody::BufferedBody(Box::new(held)),
        (None, Some(unread)) => OutboundBody::RequestBody(unread),
        (None, None) => OutboundBody::Whole(Vec::new()),
    }
}

fn look_at_head(egress: &Egress, permit: &Permit, parts: &Parts) -> (Head, Vec<Finding>) {
    let all = |name: &HeaderName| leaves(permit, name);
    let head = Head::with_method(parts.method.as_str(), &leaving(permit, &parts.headers, &all));
    let found = head.look(egress.inspector.outbound(&permit.dlp));
    (head, found)
}

fn leaving<'l>(
    permit: &'l Permit,
    headers: &'l HeaderMap,
    leaves: &'l dyn Fn(&HeaderName) -> bool,
) -> Leaving<'l> {
    Leaving { host: &permit.asked.host, path: &permit.path, query: permit.query.as_deref(), headers, leaves }
}

/// Whether a header is sent as the agent wrote it. `Host` is rewritten from the decided host.
fn leaves(permit: &Permit, name: &HeaderName) -> bool {
    name != HOST && permit.exchange.lets(name)
}

fn take_out_of_head(permit: &Permit, parts: &mut Parts, found: &Found) {
    if found.in_head.is_empty() {
        return;
    }
    let all = |name: &HeaderName| leaves(permit, name);
    let made = found.head.without(&found.in_head, &leaving(permit, &parts.headers, &all));
    let target = match &made.query {
        Some(query) => format!("{}?{query}", made.path),
        None => made.path,
    };
    let mut uri = parts.uri.clone().into_parts();
    // A target that no longer parses stays unchanged, is found again, and denied.
    if let Ok(target) = target.parse() {
        uri.path_and_query = Some(target);
        if let Ok(uri) = http::Uri::from_parts(uri) {
            parts.uri = uri;
        }
    }
    parts.headers = made.headers;
}

/// Describes the findings and their locations, for a user.
fn words(head: &Head, in_head: &[Finding], in_body: &Seen, headers: &HeaderMap) -> String {
    let in_head: Vec<(&Finding, String)> =
        in_head.iter().map(|finding| (finding, head.place(finding, headers))).collect();
    let in_head = in_head.iter().map(|(finding, place)| (*finding, place.as_str()));
    let plain = in_body.plain.iter().map(|finding| (finding, "the body"));
    let packed = in_body.packed.iter().map(|finding| (finding, "a file in the body"));
    described(in_head.chain(plain).chain(packed))
}

/// A denial whose reported path and method are redacted.
fn told(permit: &Permit, head: &Head, in_head: &[Finding], refusal: Refusal, headers: &HeaderMap) -> Refused {
    let all = |name: &HeaderName| leaves(permit, name);
    let made = head.without(in_head, &leaving(permit, headers, &all));
    Box::new((Asked { path: made.path, method: made.method, ..permit.asked.clone() }, refusal))
}

fn unheld(permit: &Permit, error: &HoldError) -> Refused {
    let host = &permit.asked.host;
    let refusal = Refusal::later(error.reason(), host, &error.to_string());
    Box::new((permit.asked.clone(), refusal))
}

/// Sets the headers of a rewritten body: no content coding, and its new length.
fn say_whole(headers: &mut HeaderMap, length: usize) {
    headers.remove(CONTENT_ENCODING);
    headers.remove(TRANSFER_ENCODING);
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
}
