//! A WebSocket server that sends every message back.

use futures_util::{SinkExt, StreamExt};
use http::StatusCode;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper::{Request, Response};

use crate::body::{Body, whole};
use crate::websocket;

/// Accepts the upgrade request, and sends every message back.
pub(super) fn upgrade(request: Request<Incoming>) -> Response<Body> {
    let Some(response) = websocket::accept(request.headers()) else {
        let mut response = Response::new(whole("a WebSocket is served here\n"));
        *response.status_mut() = StatusCode::UPGRADE_REQUIRED;
        return response;
    };
    tokio::spawn(echo(hyper::upgrade::on(request)));
    response
}

async fn echo(upgrade: OnUpgrade) {
    let Some(mut socket) = websocket::open(upgrade).await else { return };
    while let Some(Ok(message)) = socket.next().await {
        // The library responds to pings and close messages.
        if (message.is_text() || message.is_binary()) && socket.send(message).await.is_err() {
            return;
        }
    }
}
