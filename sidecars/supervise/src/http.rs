//! Connections of the bottle: one address, and bounds on everything.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bottle_contract::names::{SUPERVISE_HOST, SUPERVISE_PORT};
use bottle_daemon::{Listener, Socket};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::proposals::Proposals;
use crate::server::Server;

/// Connections of the bottle at once, each with one request under way; the rest waits.
pub(crate) const CONNECTIONS: usize = 64;

/// The longest body of a request.
const BODY: usize = 1 << 20;

/// Until a request's head is there.
const HEAD: Duration = Duration::from_secs(15);

/// Until an answer begins: a body that is slow to come, and a call that waits without telling how it goes.
const BEGINS: Duration = Duration::from_secs(90);

/// Bytes of a connection that are read ahead.
const BUFFER: usize = 64 << 10;

type Mcp = StreamableHttpService<Server, NeverSessionManager>;
type Answer = Response<BoxBody<Bytes, Infallible>>;

/// Accepts for as long as the process lives. A call waits for a user for as long as `waits`.
pub(crate) async fn listen(proposals: Arc<Proposals>, waits: Duration, listener: Listener) {
    let mcp = service(proposals, waits);
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    while let Some((socket, place)) = listener.accept(&places).await {
        tokio::spawn(connection(mcp.clone(), socket, place));
    }
}

/// The SDK's server. No sessions: what was asked is known by its id, to whoever asks.
fn service(proposals: Arc<Proposals>, waits: Duration) -> Mcp {
    // Without them a page that a browser in the bottle shows could speak to it by another name.
    let names = [SUPERVISE_HOST.to_owned(), format!("{SUPERVISE_HOST}:{SUPERVISE_PORT}")];
    let config = StreamableHttpServerConfig::default()
        .with_allowed_hosts(names)
        .enforce_origin_validation()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_max_request_body_bytes(BODY);
    let server = move || Ok(Server::new(Arc::clone(&proposals), waits));
    StreamableHttpService::new(server, Arc::new(NeverSessionManager::default()), config)
}

async fn connection(mcp: Mcp, socket: Socket, _place: OwnedSemaphorePermit) {
    let service = hyper::service::service_fn(move |request| {
        let mcp = mcp.clone();
        async move { Ok::<_, Infallible>(answer(mcp, request).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(socket), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection of the bottle ended");
    }
}

async fn answer(mcp: Mcp, request: Request<Incoming>) -> Answer {
    if request.uri().path() != "/mcp" {
        return says(StatusCode::NOT_FOUND, "the MCP server is at /mcp\n");
    }
    match tokio::time::timeout(BEGINS, mcp.handle(request)).await {
        Ok(answer) => answer,
        Err(_) => says(StatusCode::REQUEST_TIMEOUT, "the request took too long to come\n"),
    }
}

fn says(status: StatusCode, sentence: &'static str) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from_static(sentence.as_bytes())).boxed());
    *answer.status_mut() = status;
    answer
}
