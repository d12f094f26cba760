//! The request pipeline, from a received request to its response.
//!
//! ```text
//! _egress.local ─► local_response
//! ReceivedRequest ─► outbound 1–6 ─► Cleared ─► credentials (strip, inject) ─► forward ─► inbound 8 ─► access log
//!                       │                                                        │            │
//!                       └─────────────────────────► denial ◄─────────────────────┴────────────┘
//! ```
//! This module defines the order of the stages, and types enforce it: only [`outbound`] creates a [`Cleared`] request,
//! [`forward()`] sends only cleared requests, and a credential can be added only to stripped headers. For each request,
//! the pipeline reads the routes once, at the beginning. So the decision and the forwarding use the same revision of
//! the routes.
//!
//! Within the tracing span of the request, the stages that take time have their own spans. The benchmark of the proxy
//! measures these spans: `decide`, `scan_head`, `read_body`, `send`, `scan_response`.

mod access_log;
pub(crate) mod approval;
pub(crate) mod body;
mod budget;
mod buffered_body;
mod credentials;
mod error_events;
mod exact;
mod excerpt;
mod findings;
mod forward;
mod head;
mod headers;
mod hits;
mod inbound;
pub(crate) mod issued_links;
pub(crate) mod local_response;
mod marking;
mod model_socket;
mod one_time_grant;
mod outbound;
mod permit;
mod request_body;
pub(crate) mod request_slots;
mod streaming_scan;
pub(crate) mod websocket_frames;
mod websocket_messages;
mod websocket_upgrade;

use std::sync::Arc;

use bottle_policy::decide::Refusal;
use http::{Method, Request, Response};
use hyper::body::Incoming;
use tokio::sync::OwnedSemaphorePermit;
use tracing::{Instrument, Span, field};

use crate::bounds;
use crate::egress::Egress;
use crate::listener::ConnectionContext;
use crate::live::{CurrentRoutes, GrantClaim};
use crate::report::{CapturedMessage, ForwardedRequest};
use crate::usage::UsageTracker;
use access_log::AccessLog;
use body::Body;
use forward::Outgoing;
use head::{Denied, DeniedRequest, ReceivedRequest, RequestHead};
use inbound::Inbound;
use local_response::Client;
use outbound::{AllowedRequest, Cleared, Evaluation};
use websocket_messages::MessageRelay;

/// Responds to one request, except a CONNECT request to the explicit proxy. Every error becomes a response, because the
/// client receives no other report.
pub(crate) async fn handle(
    egress: Arc<Egress>,
    connection: Arc<ConnectionContext>,
    request: Request<Incoming>,
) -> Response<Body> {
    // For HTTP/1.1, hyper's server enforces this limit itself.
    if request.headers().len() > bounds::HEADERS {
        return local_response::too_many_headers();
    }
    let span = span(&connection, request.method());
    respond(egress, connection, request).instrument(span).await
}

/// Creates the tracing span of a request. The span contains no text from the agent except a host without findings.
fn span(connection: &ConnectionContext, method: &Method) -> Span {
    let standard = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"];
    let method = standard.iter().find(|known| *known == method).copied().unwrap_or("other");
    let (host, route) = (field::Empty, field::Empty);
    tracing::debug_span!("request", connection = connection.id, method, host, route)
}

async fn respond(
    egress: Arc<Egress>,
    connection: Arc<ConnectionContext>,
    request: Request<Incoming>,
) -> Response<Body> {
    let current = egress.live.current();
    let request = ReceivedRequest::read(connection, request);
    let (client, is_head) = (Client::of(request.head.headers()), request.head.method() == Method::HEAD);
    // With HTTP/2, a body in the response to a HEAD request is a protocol error.
    let local = |response| if is_head { local_response::without_body(response) } else { response };
    if request.head.targets_proxy() {
        return local(describe_proxy(&current, &request.head));
    }
    let claim = one_time_grant::claim(&egress, &current, &request.head);
    let table = claim.as_ref().map_or(&current.table, GrantClaim::table);
    let response = match (Evaluation { egress: &egress, table }).evaluate(request).await {
        Ok((request, slot)) => {
            if let Some(claim) = &claim {
                egress.reporter.report_spent_grant(claim.spend());
            }
            let info = Arc::clone(&request.permit.info);
            forward(&egress, request, slot).await.map_err(|refusal| DeniedRequest::new(info, refusal))
        }
        Err(denied) => Err(denied),
    };
    response.unwrap_or_else(|denied: Denied| {
        tracing::debug!(reason = denied.refusal.reason.as_str(), "denied");
        local(local_response::denied(&egress.reporter, &denied.info, &denied.refusal, client))
    })
}

/// Forwards a cleared request: stages 7 and 8.
async fn forward(
    egress: &Arc<Egress>,
    request: AllowedRequest<'_, Cleared>,
    slot: OwnedSemaphorePermit,
) -> Result<Response<Body>, Refusal> {
    let (cleared, AllowedRequest { head, permit, upgrade, .. }) = request.take_scan();
    Span::current().record("host", permit.host());
    let websocket = head.websocket();
    let mut inbound = Inbound::for_permit(egress, &permit);
    let hints = head.early_hints().map(|hints| inbound::early_hints(egress, &permit, hints.clone()));
    let messages = if websocket { MessageRelay::for_permit(egress, &permit, head.headers()) } else { None };
    let tracker = UsageTracker::for_request(&permit.info, permit.route, head.headers());
    let (cleared, charge) = budget::charge(egress, &permit, &head, cleared).await?;
    // Checks the lock again, because the request may have waited long until its tokens were reserved.
    if let Some(refusal) = egress.locked_out(permit.host()) {
        return Err(refusal);
    }
    let mut stripped = permit.rewrite.stripped(head.headers());
    stripped.extend(permit.stripped_keys.iter().map(|key| format!("?{key}")));
    let path_and_query = permit.path_and_query();
    let record = ForwardedRequest {
        info: permit.info,
        query: permit.query,
        started: head.started,
        status: 0,
        stripped: stripped.clone(),
        bytes: 0,
        request: CapturedMessage::default(),
        response: CapturedMessage::default(),
    };
    let mut log = AccessLog::new(egress, record, slot);
    let (method, mut headers) = head.into_method_and_headers();
    if let Some(inbound) = &mut inbound {
        inbound.prepare(&mut headers, &cleared).await;
    }
    let mut body = cleared.into_body(permit.rewrite.clone());
    if let Some(tracker) = &tracker {
        body = tracker.observe_request(body);
    }
    let headers = permit.rewrite.strip(headers).inject();
    let body = log.capture_request(&headers, body);
    let outgoing = Outgoing { target: permit.target, method, path_and_query, headers, body, hints };
    let in_flight = tracker.map(|tracker| tracker.send(egress, charge));
    let sent = if websocket {
        websocket_upgrade::send(egress, outgoing, upgrade, messages).await
    } else {
        forward::send(&egress.upstream, outgoing).instrument(tracing::debug_span!("send")).await
    };
    let mut response = match sent {
        Ok(response) => response,
        Err(error) => {
            if let Some(in_flight) = in_flight {
                in_flight.fail();
            }
            return Err(error.refusal());
        }
    };
    egress.issued_links.remember(log.info(), &response);
    tracing::debug!(status = response.status().as_u16(), "upstream responded");
    if let Some(in_flight) = in_flight {
        response = in_flight.observe(response);
    }
    if let Some(inbound) = inbound {
        response = inbound.scan(response).instrument(tracing::debug_span!("scan_response")).await?;
    }
    local_response::add_stripped_header(response.headers_mut(), &stripped);
    Ok(log.observe_response(response))
}

fn describe_proxy(current: &CurrentRoutes, head: &RequestHead) -> Response<Body> {
    if head.requests_allowlist() { local_response::allowlist(current) } else { local_response::not_found() }
}
