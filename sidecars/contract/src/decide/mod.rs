//! The policy decision: (routes, request facts, loaded credentials, findings) → verdict. A pure function.
//!
//! The proxy calls it for every request, `bottle policy check` for a described one, so the explanation and
//! the enforcement cannot disagree. Cheap rules run first: a request that is denied anyway neither asks the
//! user nor has its body read.
//!
//! ```text
//! 1 authority  CONNECT, SNI, :authority and Host name one host      authority-mismatch
//!              host, path and query converted to canonical form     path-ambiguous (with matches)
//! 2 route      by host and port                                     host-/port-not-allowed
//! 3 git        push → the gate, fetch only where allowed; TRACE     use-git-gate, git-not-allowed, method-refused
//! 4 matches    one entry must match; WebSocket                      request-not-allowed
//!              on a gated forge, writes that no entry names          use-git-gate
//! 5 credential the route's slot is loaded                           credential-missing
//! 6 findings   of the outbound scan: ask, redact or block           secret-found, structure-refused
//! ```
//! The proxy runs the remaining steps (7 resolve and forward, 8 inspect the response). It builds their
//! denials with [`Refusal::later`], so that all messages read alike.

mod facts;
mod findings;
mod forge_writes;
mod git;
mod matching;
mod names;
mod quick_action;
mod reason;
mod refusal;
mod tunnel;
mod url;

pub use facts::{Ingress, RequestFacts, UrlScheme, is_websocket_upgrade};
pub use findings::{Finding, Findings};
pub use git::Git;
pub use matching::form_methods;
pub use quick_action::quick_action;
pub use reason::Reason;
pub use refusal::{Refusal, RefusalBody};
pub use tunnel::{Passthrough, Tunnel, decide_connect, decide_hello};
pub use url::{BadUrl, decide_url, decide_url_with};

use std::borrow::Cow;

use crate::canonical::{self, Path, Target};
use crate::names::HTTP_PORT;
use crate::route::{Found, Route, RouteTable, WebSocket};
use matching::Methods;

/// The decision on a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict<'t, 'f> {
    /// Forward it in this form.
    Allow(Allowed<'t, 'f>),
    /// Redact the findings, then decide again with [`Findings::after_redaction`].
    Redact(Allowed<'t, 'f>),
    /// Buffer it and ask the user, then decide again.
    Ask(Allowed<'t, 'f>),
    /// Answer with this denial.
    Deny(Refusal),
}

/// An allowed request in canonical form: the decision read this form, and the proxy forwards it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowed<'t, 'f> {
    /// The route that allows it; the proxy injects the route's `auth`. With `inspect: false` nothing of the
    /// request was inspected.
    pub route: &'t Route,
    /// Canonical host: Host header, SNI and the name to resolve.
    pub host: Cow<'f, str>,
    /// Port.
    pub port: u16,
    /// Canonical path and query.
    pub target: Target<'f>,
    /// The git operation, if it is one.
    pub git: Option<Git>,
}

/// The host, port and target of a request in canonical form. Every rule reads this form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CanonicalNames<'f> {
    host: Cow<'f, str>,
    port: u16,
    target: Target<'f>,
}

impl<'f> CanonicalNames<'f> {
    /// Step 1: converts the names in `facts`.
    ///
    /// # Errors
    /// The denial of a request whose names do not agree on one host.
    pub fn parse(facts: &RequestFacts<'f>) -> Result<Self, Box<Refusal>> {
        let (host, port) = names::agreed_host(facts)?;
        Ok(Self { host, port, target: canonical::target(facts.target) })
    }

    /// The same names without a borrow.
    #[must_use]
    pub fn into_owned(self) -> CanonicalNames<'static> {
        let owned = |text: Cow<'f, str>| Cow::Owned(text.into_owned());
        let Self { host, port, target } = self;
        let path = Path { text: owned(target.path.text), ambiguous: target.path.ambiguous };
        CanonicalNames { host: owned(host), port, target: Target { path, query: target.query.map(owned) } }
    }

    fn borrowed(&'f self) -> Self {
        let Self { host, port, target } = self;
        let path = Path { text: Cow::Borrowed(&*target.path.text), ambiguous: target.path.ambiguous };
        let target = Target { path, query: target.query.as_deref().map(Cow::Borrowed) };
        Self { host: Cow::Borrowed(&**host), port: *port, target }
    }
}

/// Decides `facts` by `table` (steps 1 to 6).
///
/// `loaded` reports whether the credential of a slot is loaded (in a manifest's form: of a reference).
pub fn decide<'t, 'f>(
    table: &'t RouteTable,
    facts: &RequestFacts<'f>,
    loaded: &dyn Fn(&str) -> bool,
    findings: &Findings,
) -> Verdict<'t, 'f> {
    let names = CanonicalNames::parse(facts);
    match names.and_then(|names| allow(table, facts, names, loaded)) {
        Ok(allowed) => findings.verdict(allowed),
        Err(refusal) => Verdict::Deny(*refusal),
    }
}

/// Like [`decide`], for a request whose `names` were parsed from `facts` before.
pub fn decide_canonical<'t, 'f>(
    table: &'t RouteTable,
    facts: &RequestFacts<'_>,
    names: &'f CanonicalNames<'f>,
    loaded: &dyn Fn(&str) -> bool,
    findings: &Findings,
) -> Verdict<'t, 'f> {
    match allow(table, facts, names.borrowed(), loaded) {
        Ok(allowed) => findings.verdict(allowed),
        Err(refusal) => Verdict::Deny(*refusal),
    }
}

/// Steps 2 to 5. The error is boxed, because denials are rare and large.
fn allow<'t, 'f>(
    table: &'t RouteTable,
    facts: &RequestFacts<'_>,
    names: CanonicalNames<'f>,
    loaded: &dyn Fn(&str) -> bool,
) -> Result<Allowed<'t, 'f>, Box<Refusal>> {
    let CanonicalNames { host, port, target } = names;
    let route = route(table, &host, port, facts.scheme)?;
    if !route.inspect {
        return Ok(Allowed { route, host, port, target, git: None });
    }
    if let (Some(why), false) = (target.path.ambiguous, route.matches.is_empty()) {
        return Err(Refusal::path_ambiguous(&host, why).into());
    }
    let methods = Methods::new(facts, target.query.as_deref());
    if let Some(word) = methods.forbidden() {
        return Err(Refusal::method(&host, &word).into());
    }
    let git = git::operation(&methods, &target, facts.headers);
    if let Some(git) = git {
        git.permitted(route).map_err(|why| Refusal::git(&host, route, why))?;
    }
    // Runs before `matches`, so that the client gets the fallback response even when no entry allows the
    // upgrade.
    if facts.websocket && route.websocket == WebSocket::Refuse {
        return Err(Refusal::websocket(&host).into());
    }
    if !matching::route_matches(route, &methods, &target.path.text, facts.headers) {
        return Err(Refusal::request(&host, route, facts.method, &target.path.text).into());
    }
    if table.is_forge(&host) && forge_writes::denies(route, &methods, &target.path, facts.headers) {
        return Err(Refusal::forge_write(&host, facts.method, &target.path.text).into());
    }
    match &route.auth {
        Some(auth) if !loaded(auth.source.name()) => Err(Refusal::credential(&host).into()),
        _ => Ok(Allowed { route, host, port, target, git }),
    }
}

/// Step 2: finds the route. Port 80 is plain HTTP and no other port is, so a credential never travels
/// unencrypted.
fn route<'t>(
    table: &'t RouteTable,
    host: &str,
    port: u16,
    scheme: UrlScheme,
) -> Result<&'t Route, Box<Refusal>> {
    let route = match table.find(host, port) {
        Found::Route(route) => route,
        Found::OtherPorts(route) => return Err(Refusal::port(host, port, route).into()),
        Found::Nothing => return Err(Refusal::host(host, port).into()),
    };
    match (scheme, port) {
        (UrlScheme::Http, HTTP_PORT) => Ok(route),
        (UrlScheme::Https, port) if port != HTTP_PORT => Ok(route),
        _ => Err(Refusal::scheme(host, port).into()),
    }
}

#[cfg(test)]
mod tests;
