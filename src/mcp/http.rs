//! The MCP server over HTTP, for clients with a token.

use std::convert::Infallible;
use std::sync::Arc;

use bottle_host::Host;
use bottle_lib::redaction::Redaction;
use bytes::Bytes;
use http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};

use super::server::Server;
use super::tokens::{self, Granted};
use crate::console::loopback::Site;

/// The path in the server's URL.
pub(super) const PATH: &str = "/mcp";

/// The maximum size of a request's body, in bytes. The content of a file, encoded as JSON, fits into it.
const BODY: usize = 8 << 20;

type Mcp = StreamableHttpService<Server, NeverSessionManager>;

/// One MCP server for each token. A token is identified by its digest.
pub(super) struct Servers(Vec<([u8; 32], Mcp)>);

impl Servers {
    /// Creates the servers. `redaction` replaces values in every result. `authority` is the address and port, in the
    /// form that clients use.
    pub(super) fn new(
        host: &Host,
        granted: Vec<Granted>,
        redaction: &Arc<Redaction>,
        authority: &str,
    ) -> Self {
        // The check of the `Host` header prevents DNS rebinding. The check of the `Origin` header refuses pages of
        // other origins.
        let port = authority.rsplit(':').next().unwrap_or_default();
        let names = [authority.to_owned(), format!("localhost:{port}")];
        let all = granted.into_iter().map(|Granted { digest, scope }| {
            let config = StreamableHttpServerConfig::default()
                .with_allowed_hosts(names.clone())
                .with_allowed_origins(names.iter().map(|name| format!("http://{name}")))
                .with_legacy_session_mode(false)
                .with_max_request_body_bytes(BODY);
            let server = Server::new(host.clone(), scope, Arc::clone(redaction));
            let server = move || Ok(server.clone());
            (digest, StreamableHttpService::new(server, Arc::new(NeverSessionManager::default()), config))
        });
        Self(all.collect())
    }

    /// Returns the server for the token of a request.
    fn server(&self, headers: &HeaderMap) -> Option<&Mcp> {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let (Some(value), None) = (values.next(), values.next()) else { return None };
        let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
        // The duration of this comparison of digests reveals nothing about a token.
        let digest = tokens::digest(token.trim());
        let found = self.0.iter().find(|(known, _)| *known == digest);
        found.filter(|_| scheme.eq_ignore_ascii_case("bearer")).map(|(_, server)| server)
    }
}

impl Site for Servers {
    type Body = BoxBody<Bytes, Infallible>;

    async fn respond(self: Arc<Self>, request: Request<Incoming>) -> Response<Self::Body> {
        if request.uri().path() != PATH {
            return refused(StatusCode::NOT_FOUND, "the MCP server is at /mcp\n");
        }
        match self.server(request.headers()) {
            Some(server) => server.handle(request).await,
            None => {
                let mut response = refused(StatusCode::UNAUTHORIZED, "a token of the token file is needed\n");
                response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
                response
            }
        }
    }
}

fn refused(status: StatusCode, message: &'static str) -> Response<BoxBody<Bytes, Infallible>> {
    let mut response = Response::new(Full::new(Bytes::from_static(message.as_bytes())).boxed());
    *response.status_mut() = status;
    response
}
