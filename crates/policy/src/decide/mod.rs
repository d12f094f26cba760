//! The policy decision: (routes, request facts, loaded credentials, findings) → verdict. A pure function.
//!
//! The proxy calls [`decide`] for every request, and `bottle policy check` calls it for a request that the user
//! describes. The explanation and the enforcement therefore cannot disagree. Cheap rules are checked first, so that the
//! proxy neither asks the user about a request that another rule denies, nor reads the body of such a request.
//!
//! ```text
//! 1 authority  CONNECT, SNI, :authority and Host must agree         authority-mismatch
//!              host, path and query converted to canonical form     path-ambiguous (with matches or except)
//! 2 route      by host and port                                     host-/port-not-allowed
//! 3 git        push only by the gate, fetch if allowed; TRACE       use-git-gate, git-not-allowed, method-refused
//! 4 matches    one entry must match, none of except; WebSocket      request-not-allowed
//!              on a gated forge, writes that no entry names          use-git-gate
//! 5 credential the route's slot is loaded                           credential-missing
//! 6 findings   of the outbound scan: ask, redact or block           secret-found, structure-refused
//! ```
//! The proxy runs the remaining steps (7 resolve and forward, 8 inspect the response). The proxy builds the denials of
//! these steps with [`Refusal::later`], so that all messages have the same form.

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
    /// Forward the request in this form.
    Allow(Allowed<'t, 'f>),
    /// Redact the findings in the request, then decide again with [`Findings::after_redaction`].
    Redact(Allowed<'t, 'f>),
    /// Buffer the request and ask the user, then decide again.
    Ask(Allowed<'t, 'f>),
    /// Respond with this denial.
    Deny(Refusal),
}

/// An allowed request in canonical form. The policy decided on this form, and the proxy forwards exactly this
/// form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowed<'t, 'f> {
    /// The route that allows the request. The proxy injects the credential in the route's `auth`. If the
    /// route sets `inspect: false`, the request was not inspected.
    pub route: &'t Route,
    /// The canonical host, for the Host header, SNI and name resolution.
    pub host: Cow<'f, str>,
    /// The port of the request.
    pub port: u16,
    /// Canonical path and query.
    pub target: Target<'f>,
    /// The git operation, if the request is a git request.
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
    /// Step 1: converts the host, port and target in `facts` to canonical form.
    ///
    /// # Errors
    /// The denial, if the host names in the request do not agree.
    pub fn parse(facts: &RequestFacts<'f>) -> Result<Self, Box<Refusal>> {
        let (host, port) = names::agreed_host(facts)?;
        Ok(Self { host, port, target: canonical::target(facts.target) })
    }

    /// Returns the same names as owned values.
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

/// Decides on the request with these `facts` by the routes in `table` (steps 1 to 6).
///
/// `loaded` reports whether the credential of a slot is loaded. In a manifest's routes, its argument is the
/// secret reference.
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

/// Like [`decide`], but with `names` that were already parsed from `facts`.
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

/// Runs steps 2 to 5 of [`decide`]. The error is boxed because denials are rare and large.
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
    if let (Some(why), false) = (target.path.ambiguous, route.is_unrestricted()) {
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
    // WebSocket is checked before `matches`, so that the client gets the response that makes it fall back to HTTP even
    // if no entry allows the upgrade.
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

/// Step 2: finds the route. Port 80 allows only plain HTTP, and every other port only TLS. A route
/// with `auth` cannot allow port 80, so an injected credential never travels unencrypted.
fn route<'t>(
    table: &'t RouteTable,
    host: &str,
    port: u16,
    scheme: UrlScheme,
) -> Result<&'t Route, Box<Refusal>> {
    let route = match table.find(host, port) {
        Found::Route(route) | Found::OtherPorts(route) if route.denies_all() => {
            return Err(Refusal::host(host, port).into());
        }
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
