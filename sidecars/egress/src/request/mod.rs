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
pub(crate) mod approval;
pub(crate) mod body;
mod buffered_body;
mod credentials;
mod facts;
mod forward;
mod headers;
mod hits;
mod inbound;
pub(crate) mod local_response;
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
use crate::live::{CurrentRoutes, GrantClaim};
use crate::report::ForwardedRequest;
use crate::usage::UsageTracker;
use access_log::AccessLog;
use body::Body;
use forward::Outgoing;
use inbound::Inbound;
use messages::MessageRelay;
use outbound::{Evaluation, OutboundBody, Permit};
use request_body::RequestBody;

/// Responds to one request. Every error becomes a response; there is no other report to the client.
pub(crate) async fn handle(
    egress: Arc<Egress>,
    connection: Arc<ConnectionContext>,
    mut request: Request<Incoming>,
) -> Response<Body> {
    if request.method() == Method::CONNECT && connection.is_proxy() {
        return tunnel::accept(egress, &connection, request);
    }
    let started = Instant::now();
    let current = egress.live.current();
    let upgrade = hyper::upgrade::on(&mut request);
    let (mut parts, body) = request.into_parts();
    let body = RequestBody::new(body, parts.version, &parts.headers);
    headers::remove_connection_listed(&mut parts.headers);
    if facts::targets_proxy(&connection, &parts) {
        return describe_proxy(&current, &parts);
    }
    let claim = one_time_grant::claim(&egress, &current, &connection, &parts);
    let table = claim.as_ref().map_or(&current.table, GrantClaim::table);
    let evaluation = Evaluation { egress: &egress, table, connection: &connection };
    let evaluated = match evaluation.locked_out(&parts) {
        Some(denied) => Err(denied),
        // The scan of this request may lock the bottle.
        None => match (evaluation.evaluate(&mut parts, body).await, evaluation.locked_out(&parts)) {
            (_, Some(denied)) => Err(denied),
            (evaluated, None) => evaluated,
        },
    };
    let denied = match evaluated {
        Ok((permit, body)) => {
            if let Some(claim) = claim {
                egress.reporter.report_spent_grant(claim.spend());
            }
            let info = permit.info.clone();
            match forward(&egress, permit, parts, (body, upgrade), started).await {
                Ok(response) => return response,
                Err(refusal) => Box::new((info, refusal)),
            }
        }
        Err(denied) => denied,
    };
    let (info, refusal) = *denied;
    local_response::denied(&egress.reporter, &info, &refusal)
}

/// Stages 7 and 8.
async fn forward(
    egress: &Arc<Egress>,
    permit: Permit,
    parts: Parts,
    (body, upgrade): (OutboundBody, OnUpgrade),
    started: Instant,
) -> Result<Response<Body>, Refusal> {
    let path_and_query = permit.path_and_query();
    let inbound = Inbound::for_permit(egress, &permit);
    let messages = if permit.websocket { MessageRelay::for_permit(egress, &permit) } else { None };
    let tracker = UsageTracker::for_request(&permit.info);
    let Permit { info, target, rewrite, websocket, stripped_keys, .. } = permit;
    let slot = Arc::clone(&egress.request_slots).acquire_owned().await;
    let Ok(slot) = slot else {
        return Err(Refusal::later(Reason::UpstreamUnreachable, &target.host, "the proxy is closing"));
    };
    // It may have waited for its slot for long.
    if let Some(refusal) = egress.locked_out(&target.host) {
        return Err(refusal);
    }
    let query = path_and_query.split_once('?').map(|(_, query)| query.to_owned());
    let mut stripped = rewrite.stripped(&parts.headers);
    stripped.extend(stripped_keys.iter().map(|key| format!("?{key}")));
    let record =
        ForwardedRequest { stripped: stripped.clone(), ..ForwardedRequest::new(info, query, started) };
    let mut log = AccessLog::new(egress, record, slot);
    let mut headers = parts.headers;
    let body = body.into_body(rewrite.clone());
    if inbound.is_some() {
        headers::limit_accept_encoding(&mut headers);
    }
    let injected = rewrite.headers(&mut headers);
    let body = log.capture_request(&headers, injected.as_ref(), body);
    let outgoing = Outgoing { method: parts.method, path_and_query, headers, body };
    let sent = if websocket {
        forward::websocket(egress, &target, outgoing, upgrade, messages).await
    } else {
        forward::send(&egress.upstream, &target, outgoing).await
    };
    let mut response = sent.map_err(|error| error.refusal())?;
    if let Some(tracker) = tracker {
        response = tracker.observe(egress, response);
    }
    if let Some(inbound) = inbound {
        response = inbound.scan(egress, response).await?;
    }
    local_response::add_stripped_header(response.headers_mut(), &stripped);
    Ok(log.observe_response(response))
}

fn describe_proxy(current: &CurrentRoutes, parts: &Parts) -> Response<Body> {
    if facts::requests_allowlist(parts) {
        local_response::allowlist(current)
    } else {
        local_response::not_found()
    }
}
