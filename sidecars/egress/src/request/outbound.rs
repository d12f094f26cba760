//! Stages 1 to 6: a request is decided, read, and decided again by what was found in it.
//!
//! ```text
//! head ─► decide 1–5 ─► head looked through ─► body held and looked through ─► decide 6 ─┬─► forward
//!              │                                          ▲                             ├─► refuse
//!              └─► refuse (nothing is read)               └────── taken out ◄───────────┘
//! ```
//! What is refused anyway costs nothing: no body is read for it. A body leaves only after its verdict.

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

/// What was allowed, in the form in which it leaves.
pub(super) struct Permit {
    pub(super) asked: Asked,
    pub(super) target: Target,
    /// Canonical, as decided on, without credentials.
    path: String,
    query: Option<String>,
    /// Keys of what was taken out of the query.
    pub(super) stripped_keys: Vec<String>,
    pub(super) exchange: Exchange,
    /// Where the credential is bound that is injected.
    pub(super) credential: Option<Binding>,
    /// Whether the route has `matches`.
    bounded: bool,
    pub(super) websocket: bool,
    pub(super) dlp: Dlp,
    /// Whether the route is a provider's own.
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

/// A request that is answered by the proxy, and what it was.
pub(super) type Refused = Box<(Asked, Refusal)>;

/// The body of a request that may leave.
pub(super) enum OutboundBody {
    /// Nobody wants it looked at, or there is none.
    RequestBody(RequestBody),
    /// It was looked at.
    BufferedBody(Box<BufferedBody>),
    /// It was rewritten.
    Whole(Vec<u8>),
}

impl OutboundBody {
    /// As it is sent.
    pub(super) fn under(self, exchange: Exchange) -> Body {
        match self {
            Self::RequestBody(body) => body.under(exchange),
            Self::BufferedBody(held) => held.under(exchange),
            Self::Whole(text) => body::full(text),
        }
    }
}

/// What is known while a request is judged.
pub(super) struct Judging<'r> {
    pub(super) egress: &'r Arc<Egress>,
    /// The routes, for the whole of the request.
    pub(super) table: &'r RouteTable,
    pub(super) way: &'r ConnectionContext,
}

impl Judging<'_> {
    /// Judges a request; `parts` are changed where something is taken out.
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

    /// The refusal of any request, while the bottle is locked.
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

    /// Refuses a text by which GitLab changes a gated repository, and one that is too long to be read for that. A body
    /// that nobody wants looked at is not read.
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

    /// Refuses a form that says of its request what its route would refuse: some servers take the method from there.
    async fn form_agrees(&self, permit: &Permit, parts: &Parts, held: &BufferedBody) -> Result<(), Refused> {
        let kind = parts.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let is_form = ["form", "json"].iter().any(|word| kind.to_ascii_lowercase().contains(word));
        // A provider's own routes lead to models, whose long conversations need no second reading.
        if !permit.bounded || permit.provider || !is_form {
            return Ok(());
        }
        let Some(text) = held.text().await else { return Ok(()) };
        for word in form_methods(kind, &text) {
            // Judged as the header that says the same.
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

    /// Stages 1 to 6 by what was found so far.
    fn decided(&self, parts: &Parts, findings: &Findings) -> Result<Permit, Refused> {
        let facts = facts::of(self.way, parts);
        match self.verdict(&facts, findings) {
            Verdict::Allow(allowed) => self.permit(parts, &allowed, facts.method, facts.websocket),
            Verdict::Deny(refusal) => Err(self.refused(parts, refusal)),
            // Neither comes of a decision without findings, nor after a redaction.
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
        // The decision asked whether the slot is loaded; this asks whether it is bound to this very place.
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

    /// Refuses what the head alone makes impossible, before its body is read.
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
                // By the rules that hold now: a user may have taken their time.
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

    /// Asks a user about all that was found.
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

    /// Takes out what was found and decides again; what is left then is refused.
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

    /// The body without what was found; none when that cannot be done.
    async fn without(&self, permit: &Permit, headers: &HeaderMap, cargo: OutboundBody) -> Option<Vec<u8>> {
        let OutboundBody::BufferedBody(held) = cargo else { return None };
        let scanner = self.egress.inspector.outbound(&permit.dlp)?;
        let text = held.whole().await?;
        rewritten(scanner, &text, held.codings(), headers).ok().flatten()
    }
}

/// Everything that was found in a request.
struct Found {
    head: Head,
    in_head: Vec<Finding>,
    held: Option<BufferedBody>,
    in_body: Seen,
}

/// What a user would have to allow; none when a part of it cannot be told from others like it.
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

/// Whether a header is sent as the agent wrote it. `Host` is written from what was decided on.
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
    // What cannot be read again stays as it was, is found again, and refused.
    if let Ok(target) = target.parse() {
        uri.path_and_query = Some(target);
        if let Ok(uri) = http::Uri::from_parts(uri) {
            parts.uri = uri;
        }
    }
    parts.headers = made.headers;
}

/// What was found and where, for a user.
fn words(head: &Head, in_head: &[Finding], in_body: &Seen, headers: &HeaderMap) -> String {
    let in_head: Vec<(&Finding, String)> =
        in_head.iter().map(|finding| (finding, head.place(finding, headers))).collect();
    let in_head = in_head.iter().map(|(finding, place)| (*finding, place.as_str()));
    let plain = in_body.plain.iter().map(|finding| (finding, "the body"));
    let packed = in_body.packed.iter().map(|finding| (finding, "a file in the body"));
    described(in_head.chain(plain).chain(packed))
}

/// A refusal whose path and method may hold what was found: it is told without it.
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

/// The headers of a body that was rewritten: it is plain now, and so long.
fn say_whole(headers: &mut HeaderMap, length: usize) {
    headers.remove(CONTENT_ENCODING);
    headers.remove(TRANSFER_ENCODING);
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
}
