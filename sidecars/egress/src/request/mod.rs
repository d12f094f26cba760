//! One request, from the bottle's words to an answer.
//!
//! ```text
//! CONNECT ─► door::tunnel        _egress.local ─► answer
//! facts ─► decide 1–5 ─► scan 6 ─► credentials (strip, inject) ─► forward ─► answer's body ─► record
//!             │            │                                        │
//!             └────────────┴──────────────► refusal ◄───────────────┘
//! ```
//! Owns the order of the stages. Takes the routes once, at the beginning: a request is decided and
//! forwarded by one state of them.

pub(crate) mod answer;
mod arriving;
pub(crate) mod body;
mod credentials;
mod facts;
mod forward;
mod headers;
mod told;

use std::sync::Arc;
use std::time::Instant;

use bottle_contract::decide::{Allowed, Findings, Reason, Refusal, Verdict, decide};
use bottle_contract::names::HTTP_PORT;
use http::request::Parts;
use http::{Method, Request, Response};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;

use crate::door::{Way, tunnel};
use crate::egress::Egress;
use crate::live::{self, Current};
use crate::report::Passed;
use crate::report::record::Asked;
use crate::upstream::Target;
use arriving::Arriving;
use body::Body;
use credentials::Exchange;
use forward::Outgoing;
use told::Telling;

/// Answers one request. Whatever goes wrong becomes an answer; there is nothing else to tell it by.
pub(crate) async fn handle(
    egress: Arc<Egress>,
    way: Arc<Way>,
    mut request: Request<Incoming>,
) -> Response<Body> {
    if request.method() == Method::CONNECT && way.is_proxy() {
        return tunnel::accept(egress, &way, request);
    }
    let started = Instant::now();
    let current = egress.live.current();
    let upgrade = hyper::upgrade::on(&mut request);
    let (mut parts, body) = request.into_parts();
    let body = Arriving::new(body, parts.version, &parts.headers);
    headers::take_declared(&mut parts.headers);
    if facts::asks_the_door(&way, &parts) {
        return about_the_door(&current, &parts);
    }
    let (asked, refusal) = match decided(&egress, &current, &way, &parts) {
        Ok(permit) => {
            let asked = permit.asked.clone();
            match forwarded(&egress, permit, parts, (body, upgrade), started).await {
                Ok(response) => return response,
                Err(refusal) => (asked, refusal),
            }
        }
        Err(refusal) => {
            let (method, path) = (parts.method.as_str(), parts.uri.path());
            (Asked::of_refused(&refusal, way.port_of(&parts.uri), method, path), refusal)
        }
    };
    answer::refused(&egress.reporter, &asked, &refusal)
}

/// What was allowed, in the form in which it leaves.
struct Permit {
    asked: Asked,
    target: Target,
    /// Canonical, as decided on, without credentials.
    path_and_query: String,
    exchange: Exchange,
    websocket: bool,
}

/// Stages 1 to 6.
fn decided(egress: &Egress, current: &Current, way: &Way, parts: &Parts) -> Result<Permit, Refusal> {
    let facts = facts::of(way, parts);
    // Stage 6 has its place here: a scan of what `facts` and the body hold, once a decision without
    // findings has let the request through. No detector is built yet, so that nothing is found.
    let findings = Findings::none();
    match decide(&current.table, &facts, &|slot| egress.vault.holds(slot), &findings) {
        Verdict::Allow(allowed) => permit(egress, &allowed, facts.method, facts.websocket),
        Verdict::Refuse(refusal) => Err(refusal),
        // Both come of findings only.
        Verdict::Redact(allowed) | Verdict::Ask(allowed) => {
            Err(Refusal::later(Reason::SecretFound, &allowed.host, ""))
        }
    }
}

fn permit(
    egress: &Egress,
    allowed: &Allowed<'_, '_>,
    method: &str,
    websocket: bool,
) -> Result<Permit, Refusal> {
    let Allowed { route, host, port, target, .. } = allowed;
    // The decision asked whether the slot is loaded; this asks whether it is bound to this very place.
    let exchange = Exchange::of(route, &egress.vault)
        .ok_or_else(|| Refusal::later(Reason::CredentialMissing, host, ""))?;
    let tls = *port != HTTP_PORT;
    Ok(Permit {
        asked: Asked {
            host: host.clone().into_owned(),
            port: *port,
            method: method.to_owned(),
            path: target.path.text.clone().into_owned(),
        },
        target: live::target(route, host, *port, tls),
        path_and_query: exchange.path_and_query(&target.path.text, target.query.as_deref()),
        exchange,
        websocket,
    })
}

/// Stage 7.
async fn forwarded(
    egress: &Arc<Egress>,
    permit: Permit,
    parts: Parts,
    (body, upgrade): (Arriving, OnUpgrade),
    started: Instant,
) -> Result<Response<Body>, Refusal> {
    let Permit { asked, target, path_and_query, exchange, websocket } = permit;
    let place = Arc::clone(&egress.requests).acquire_owned().await;
    let Ok(place) = place else {
        return Err(Refusal::later(Reason::UpstreamUnreachable, &target.host, "the door is closing"));
    };
    let query = path_and_query.split_once('?').map(|(_, query)| query.to_owned());
    let passed = Passed::begin(asked, query, started);
    let mut telling = Telling::begin(egress, passed, place);
    let mut headers = parts.headers;
    let body = body.under(exchange.clone());
    let hidden = exchange.headers(&mut headers);
    let body = telling.request(&headers, hidden.as_ref(), body);
    let outgoing = Outgoing { method: parts.method, path_and_query, headers, body };
    let sent = if websocket {
        forward::websocket(&egress.upstream, &target, outgoing, upgrade).await
    } else {
        forward::send(&egress.upstream, &target, outgoing).await
    };
    sent.map(|response| telling.response(response)).map_err(|error| error.refusal())
}

fn about_the_door(current: &Current, parts: &Parts) -> Response<Body> {
    if facts::asks_for_allowlist(parts) { answer::allowlist(current) } else { answer::unknown() }
}
