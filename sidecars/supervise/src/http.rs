//! Serves HTTP connections from the bottle. The only endpoint is `/mcp`. The number of connections, the size
//! of requests and the time until a response are limited.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bottle_daemon::{Listener, Socket};
use bottle_policy::names::{SUPERVISE_HOST, SUPERVISE_PORT};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::mcp_server::Server;

/// The maximum number of concurrent connections from the bottle. A connection carries one request at a time. Further
/// connections wait.
pub(crate) const CONNECTIONS: usize = 64;

/// The maximum size of a request body, in bytes. The SDK refuses a larger request.
const BODY: usize = 1 << 20;

/// The time limit for a client to send a request's head. When the limit is reached, the connection is closed.
const HEAD: Duration = Duration::from_secs(15);

/// The time limit until a response begins. When the limit is reached, the response has the status 408. The limit
/// applies to request bodies that arrive slowly. It also applies to calls that wait for a decision without progress
/// notifications.
pub(crate) const RESPONSE_WITHIN: Duration = Duration::from_secs(90);

/// The size of a connection's read buffer, in bytes. A request's head must fit into this buffer.
const BUFFER: usize = 64 << 10;

type Mcp = StreamableHttpService<Server, NeverSessionManager>;
type HttpResponse = Response<BoxBody<Bytes, Infallible>>;

/// Accepts connections until the process exits.
pub(crate) async fn accept(server: Server, listener: Listener) {
    let mcp = service(server);
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    while let Some((socket, permit)) = listener.accept(&permits).await {
        tokio::spawn(connection(mcp.clone(), socket, permit));
    }
}

/// Creates the MCP server of the SDK. The server has no sessions, so any client in the bottle can check a proposal by
/// its id.
fn service(server: Server) -> Mcp {
    // The check of the `Host` header prevents DNS rebinding attacks. Without this check, a web page in a browser in the
    // bottle could call the server under another host name.
    let names = [SUPERVISE_HOST.to_owned(), format!("{SUPERVISE_HOST}:{SUPERVISE_PORT}")];
    let config = StreamableHttpServerConfig::default()
        .with_allowed_hosts(names)
        .enforce_origin_validation()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_max_request_body_bytes(BODY);
    StreamableHttpService::new(move || Ok(server.clone()), Arc::new(NeverSessionManager::default()), config)
}

async fn connection(mcp: Mcp, socket: Socket, _permit: OwnedSemaphorePermit) {
    let service = hyper::service::service_fn(move |request| {
        let mcp = mcp.clone();
        async move { Ok::<_, Infallible>(respond(mcp, request).await) }
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

async fn respond(mcp: Mcp, request: Request<Incoming>) -> HttpResponse {
    if request.uri().path() != "/mcp" {
        return text_response(StatusCode::NOT_FOUND, "the MCP server is at /mcp\n");
    }
    match tokio::time::timeout(RESPONSE_WITHIN, mcp.handle(request)).await {
        Ok(response) => response,
        Err(_) => text_response(StatusCode::REQUEST_TIMEOUT, "the request took too long\n"),
    }
}

fn text_response(status: StatusCode, message: &'static str) -> HttpResponse {
    let mut response = Response::new(Full::new(Bytes::from_static(message.as_bytes())).boxed());
    *response.status_mut() = status;
    response
}
