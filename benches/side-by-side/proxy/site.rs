//! Provides the HTTPS site to which all proxies connect.

use std::sync::Arc;

use anyhow::Result;
use bottle_test_support::authority::{Alpn, Authority, Leaf};
use bottle_test_support::body::whole;
use bottle_test_support::server::{Server, handler};
use bottle_test_support::websocket;
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use http::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use http_body_util::BodyExt;
use hyper::upgrade::OnUpgrade;

use crate::HOST;
use crate::content::Content;

/// The path of the WebSocket.
pub(crate) const SOCKET: &str = "/socket";

/// The last message that a client sends over the WebSocket. The site sends this message back, and only receives all
/// other messages.
pub(crate) const LAST: &str = "the last one";

/// A running site.
pub(crate) struct Site {
    pub(crate) authority: Authority,
    pub(crate) server: Server,
}

/// Starts a site. The query of a request is the name of the [`Content`] in the response. The path [`SOCKET`] is a
/// WebSocket.
pub(crate) fn start() -> Result<Site> {
    let authority = Authority::new("bench site")?;
    let tls = authority.server_config(&[HOST], Leaf::Valid, Alpn::Both)?;
    let answers = Content::ALL.map(|content| (content.name(), Bytes::from(content.answer())));
    let answer = handler(Arc::new(answers), |answers, mut request| async move {
        if request.uri().path() == SOCKET {
            let upgrade = hyper::upgrade::on(&mut request);
            let accepted = websocket::accept(request.headers())?;
            tokio::spawn(receive(upgrade));
            return Some(accepted);
        }
        let query = request.uri().query().unwrap_or_default().to_owned();
        // Reads the complete request body before the response is sent, as servers do.
        let mut body = request.into_body();
        while let Some(Ok(_)) = body.frame().await {}
        let (_, answer) = answers.iter().find(|(name, _)| *name == query)?;
        let mut response = Response::new(whole(Bytes::clone(answer)));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Some(response)
    });
    Ok(Site { authority, server: Server::start(0, Some(tls), answer)? })
}

async fn receive(upgrade: OnUpgrade) {
    let Some(mut socket) = websocket::open(upgrade).await else { return };
    while let Some(Ok(message)) = socket.next().await {
        if message.to_text().is_ok_and(|text| text == LAST) && socket.send(message).await.is_err() {
            return;
        }
    }
}
