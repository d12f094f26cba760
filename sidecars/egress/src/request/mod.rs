//! The request pipeline: from a received request to a response.
//!
//! ```text
//! CONNECT ─► listener::tunnel        _egress.local ─► local_response
//! outbound (facts ─► decide 1–6) ─► credentials (strip, inject) ─► forward ─► inbound 8 ─► access log
//!             │                                                     │            │
//!             └─────────────────────────► denial ◄──────────────────┴────────────┘
//! ```
//! Owns the order of the stages. A request reads the routes once, at the beginning: one revision decides and forwards
//! it.

mod access_log;
pub(crate) mod answer;
pub(crate) mod approval;
pub(crate) mod body;
mod buffered_body;
mod credentials;
mod facts;
mod forward;
mod headers;
mod hits;
mod inbound;
pub(crate) mod messages;
mod one_time_grant;
mod outbound;
mod request_body;
mod streaming_scan;

use std::sync::Arc;
use std::time::Instant;

use bottle_contract::decide::{Reason, Refusal};
use http::request::Parts;
use http::{Method, Request, Response};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;

use crate::egress::Egress;
use crate::listener::{ConnectionContext, tunnel};
use crate::live::{Current, Turn};
use crate::report::Passed;
use crate::usage::Counting;
use access_log::AccessLog;
use body::Body;
use forward::Outgoing;
use inbound::Inbound;
use messages::Messages;
use outbound::{Judging, OutboundBody, Permit};
use request_body::RequestBody;

/// Responds to one request. Every error becomes a response; there is no other report to the client.
pub(crate) async fn handle(
    egress: Arc<Egress>,
    way: Arc<ConnectionContext>,
    mut request: Request<Incoming>,
) -> Response<Body> {
    if request.method() == Method::CONNECT && way.is_proxy() {
        return tunnel::accept(egress, &way, request);
    }
    let started = Instant::now();
    let current = egress.live.current();
    let upgrade = hyper::upgrade::on(&mut request);
    let (mut parts, body) = request.into_parts();
    let body = RequestBody::new(body, parts.version, &parts.headers);
    headers::take_declared(&mut parts.headers);
    if facts::asks_the_proxy(&way, &parts) {
        return about_the_proxy(&current, &parts);
    }
    let turn = one_time_grant::turn(&egress, &current, &way, &parts);
    let table = turn.as_ref().map_or(&current.table, Turn::table);
    let judging = Judging { egress: &egress, table, way: &way };
    let judged = match judging.locked_out(&parts) {
        Some(refused) => Err(refused),
        // The scan of this request may lock the bottle.
        None => match (judging.judge(&mut parts, body).await, judging.locked_out(&parts)) {
            (_, Some(refused)) => Err(refused),
            (judged, None) => judged,
        },
    };
    let refused = match judged {
        Ok((permit, cargo)) => {
            if let Some(turn) = turn {
                egress.reporter.spent(turn.spend());
            }
            let asked = permit.asked.clone();
            match forwarded(&egress, permit, parts, (cargo, upgrade), started).await {
                Ok(response) => return response,
                Err(refusal) => Box::new((asked, refusal)),
            }
        }
        Err(refused) => refused,
    };
    let (asked, refusal) = *refused;
    answer::refused(&egress.reporter, &asked, &refusal)
}

/// Stages 7 and 8.
async fn forwarded(
    egress: &Arc<Egress>,
    permit: Permit,
    parts: Parts,
    (cargo, upgrade): (OutboundBody, OnUpgrade),
    started: Instant,
) -> Result<Response<Body>, Refusal> {
    let path_and_query = permit.path_and_query();
    let inbound = Inbound::of(egress, &permit);
    let messages = if permit.websocket { Messages::of(egress, &permit) } else { None };
    let counting = Counting::of(&permit.asked);
    let Permit { asked, target, exchange, websocket, stripped_keys, .. } = permit;
    let place = Arc::clone(&egress.requests).acquire_owned().await;
    let Ok(place) = place else {
        return Err(Refusal::later(Reason::UpstreamUnreachable, &target.host, "the proxy is closing"));
    };
    // It may have waited for its slot for long.
    if let Some(refusal) = egress.locked_out(&target.host) {
        return Err(refusal);
    }
    let query = path_and_query.split_once('?').map(|(_, query)| query.to_owned());
    let mut stripped = exchange.stripped(&parts.headers);
    stripped.extend(stripped_keys.iter().map(|key| format!("?{key}")));
    let passed = Passed { stripped: stripped.clone(), ..Passed::begin(asked, query, started) };
    let mut telling = AccessLog::begin(egress, passed, place);
    let mut headers = parts.headers;
    let body = cargo.under(exchange.clone());
    if inbound.is_some() {
        headers::accept_readable(&mut headers);
    }
    let hidden = exchange.headers(&mut headers);
    let body = telling.request(&headers, hidden.as_ref(), body);
    let outgoing = Outgoing { method: parts.method, path_and_query, headers, body };
    let sent = if websocket {
        forward::websocket(egress, &target, outgoing, upgrade, messages).await
    } else {
        forward::send(&egress.upstream, &target, outgoing).await
    };
    let mut response = sent.map_err(|error| error.refusal())?;
    if let Some(counting) = counting {
        response = counting.watch(egress, response);
    }
    if let Some(inbound) = inbound {
        response = inbound.judge(egress, response).await?;
    }
    answer::say_stripped(response.headers_mut(), &stripped);
    Ok(telling.response(response))
}

fn about_the_proxy(current: &Current, parts: &Parts) -> Response<Body> {
    if facts::asks_for_allowlist(parts) { answer::allowlist(current) } else { answer::unknown() }
}
