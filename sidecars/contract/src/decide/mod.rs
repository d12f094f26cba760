//! The decision: (routes, request facts, loaded credentials, findings) → verdict. One pure function.
//!
//! The proxy calls it for every request, `bottle policy check` for a described one; so an explanation
//! cannot disagree with what is enforced. Cheap rules come first: nobody is asked, and no body is read,
//! for a request that is refused anyway.
//!
//! ```text
//! 1 authority  CONNECT, SNI, :authority and Host name one host      authority-mismatch
//!              host, path and query brought into canonical form     path-ambiguous (with matches)
//! 2 route      by host and port                                     host-/port-not-allowed
//! 3 git        push → the gate, fetch only where allowed; TRACE     use-git-gate, git-not-allowed, method-refused
//! 4 matches    one entry must hold; WebSocket                       request-not-allowed
//!              on a gated forge, writes that none spells out        use-git-gate
//! 5 credential the route's slot is loaded                           credential-missing
//! 6 findings   of the outbound scan: ask, redact or refuse          secret-found, structure-refused
//! ```
//! What follows (7 resolve and forward, 8 the way back) is the proxy's; it words its refusals with
//! [`Refusal::later`], so that all of them read alike.

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
pub use tunnel::{Passed, Tunnel, decide_connect, decide_hello};
pub use url::{BadUrl, decide_url, decide_url_with};

use std::borrow::Cow;

use crate::canonical::{self, Target};
use crate::names::HTTP_PORT;
use crate::route::{Found, Route, RouteTable, WebSocket};
use matching::Methods;

/// What becomes of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict<'t, 'f> {
    /// Forward it, as described.
    Allow(Allowed<'t, 'f>),
    /// Rewrite what was found, then decide again with [`Findings::after_redaction`].
    Redact(Allowed<'t, 'f>),
    /// Hold it and ask a user, then decide again.
    Ask(Allowed<'t, 'f>),
    /// Answer this instead.
    Deny(Refusal),
}

/// A request in the form in which it was decided on, which is the form in which it is forwarded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowed<'t, 'f> {
    /// The route that allowed it; its `auth` is what gets injected. With `inspect: false` nothing of the
    /// request was looked at.
    pub route: &'t Route,
    /// Canonical host: Host header, SNI and the name to resolve.
    pub host: Cow<'f, str>,
    /// Port.
    pub port: u16,
    /// Canonical path and query.
    pub target: Target<'f>,
    /// What of git it is, if anything.
    pub git: Option<Git>,
}

/// Decides `facts` by `table`: steps 1 to 6.
///
/// `loaded` says whether the credential of that slot (in a manifest's form: of that reference) is there.
pub fn decide<'t, 'f>(
    table: &'t RouteTable,
    facts: &RequestFacts<'f>,
    loaded: &dyn Fn(&str) -> bool,
    findings: &Findings,
) -> Verdict<'t, 'f> {
    match allow(table, facts, loaded) {
        Ok(allowed) => findings.weigh(allowed),
        Err(refusal) => Verdict::Deny(*refusal),
    }
}

/// Steps 1 to 5. Boxed, because a refusal is the rare case and large.
fn allow<'t, 'f>(
    table: &'t RouteTable,
    facts: &RequestFacts<'f>,
    loaded: &dyn Fn(&str) -> bool,
) -> Result<Allowed<'t, 'f>, Box<Refusal>> {
    let (host, port) = names::agreed(facts)?;
    let route = route(table, &host, port, facts.scheme)?;
    let target = canonical::target(facts.target);
    if !route.inspect {
        return Ok(Allowed { route, host, port, target, git: None });
    }
    if let (Some(why), false) = (target.path.ambiguous, route.matches.is_empty()) {
        return Err(Refusal::path_ambiguous(&host, why).into());
    }
    let methods = Methods::of(facts, target.query.as_deref());
    if let Some(word) = methods.forbidden() {
        return Err(Refusal::method(&host, &word).into());
    }
    let git = git::kind(&methods, &target, facts.headers);
    if let Some(git) = git {
        git.permitted(route).map_err(|why| Refusal::git(&host, route, why))?;
    }
    // Before `matches`, which then need not name the attempt for the client to hear the answer it falls
    // back on.
    if facts.websocket && route.websocket == WebSocket::Refuse {
        return Err(Refusal::websocket(&host).into());
    }
    if !matching::any(route, &methods, &target.path.text, facts.headers) {
        return Err(Refusal::request(&host, route, facts.method, &target.path.text).into());
    }
    if table.is_forge(&host) && forge_writes::refuses(route, &methods, &target.path, facts.headers) {
        return Err(Refusal::forge_write(&host, facts.method, &target.path.text).into());
    }
    match &route.auth {
        Some(auth) if !loaded(auth.source.name()) => Err(Refusal::credential(&host).into()),
        _ => Ok(Allowed { route, host, port, target, git }),
    }
}

/// Step 2. Port 80 is plain HTTP and nothing else is, so that a credential never travels in the clear.
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
