//! Stage 7 of the request pipeline for a WebSocket: sends the upgrade request upstream and relays the messages.

use std::sync::Arc;

use http::{Response, StatusCode};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::body::{self, Body};
use super::forward::{Outgoing, for_bottle};
use super::websocket_messages::MessageRelay;
use super::{headers, websocket_frames};
use crate::egress::Egress;
use crate::listener::bridge;
use crate::upstream::{Unreachable, UpstreamError};

/// Sends a WebSocket upgrade. The bottle receives the status 101 only after upstream sent it. The proxy then relays
/// messages in both directions, and scans them if the route requires it, until one side closes or the bottle is locked.
///
/// # Errors
/// [`UpstreamError`] with the step that failed.
pub(super) async fn send(
    egress: &Arc<Egress>,
    outgoing: Outgoing,
    bottle: OnUpgrade,
    messages: Option<MessageRelay>,
) -> Result<Response<Body>, UpstreamError> {
    let (target, mut request) = outgoing.into_request()?;
    headers::set_websocket_upgrade(request.headers_mut());
    let scanned = messages.is_some();
    // Limits the offered extensions to those that the scan can read.
    let offered = scanned && websocket_frames::limit_extensions(request.headers_mut());
    let mut response = egress.upstream.send_exclusive(&target, request).await?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(for_bottle(response));
    }
    let deflate = match websocket_frames::chosen_extensions(response.headers(), offered) {
        Some(deflate) => deflate,
        None if scanned => return Err(Unreachable::WebSocketExtension.at(&target.host)),
        None => false,
    };
    let messages = messages.map(|messages| messages.with_deflate(deflate));
    let upstream = hyper::upgrade::on(&mut response);
    let lockout = Arc::clone(&egress.lockout);
    tokio::spawn(async move {
        let Ok((bottle, upstream)) = tokio::try_join!(bottle, upstream) else { return };
        match messages {
            Some(messages) => messages.relay(bottle, upstream).await,
            // Both sides see the connection close, so the result is not needed.
            None => tokio::select! {
                _ = bridge(TokioIo::new(bottle), TokioIo::new(upstream)) => {}
                _ = lockout.locked() => {}
            },
        }
    });
    let (mut parts, _) = response.into_parts();
    headers::for_bottle(&mut parts.headers);
    parts.extensions.clear();
    headers::set_websocket_upgrade(&mut parts.headers);
    Ok(Response::from_parts(parts, body::empty()))
}
