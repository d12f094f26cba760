//! The server's side of a WebSocket.

use http::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE};
use http::{HeaderMap, HeaderValue, StatusCode};
use hyper::Response;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use crate::body::{Body, whole};

/// Returns the response that accepts an upgrade (RFC 6455, 4.2.2). Returns `None` if the request has no key.
#[must_use]
pub fn accept(request: &HeaderMap) -> Option<Response<Body>> {
    let key = request.get(SEC_WEBSOCKET_KEY)?;
    let accept = HeaderValue::from_str(&derive_accept_key(key.as_bytes())).ok()?;
    let mut response = Response::new(whole(""));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    Some(response)
}

/// Returns the WebSocket after the response was sent. Returns `None` if the client has disconnected.
pub async fn open(upgrade: OnUpgrade) -> Option<WebSocketStream<TokioIo<Upgraded>>> {
    let upgraded = upgrade.await.ok()?;
    Some(WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await)
}
