//! The head of a request: parsed once, and again only after a redaction has changed it.

use std::sync::Arc;
use std::time::Instant;

use bottle_contract::decide::{
    CanonicalNames, Findings, Refusal, RequestFacts, UrlScheme, Verdict, decide_canonical,
    is_websocket_upgrade,
};
use bottle_contract::names::INTROSPECTION_HOST;
use bottle_contract::route::RouteTable;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Version};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;

use super::headers;
use super::request_body::RequestBody;
use crate::inspect::head::RedactedHead;
use crate::listener::ConnectionContext;
use crate::report::record::RequestInfo;
use crate::vault::Vault;

/// A received request; nothing is decided.
pub(super) struct ReceivedRequest {
    pub(super) head: RequestHead,
    pub(super) body: RequestBody,
    /// The bottle's side of the tunnel that a WebSocket upgrade opens.
    pub(super) upgrade: OnUpgrade,
}

impl ReceivedRequest {
    /// Takes a request that arrived by `connection`.
    pub(super) fn read(connection: Arc<ConnectionContext>, mut request: http::Request<Incoming>) -> Self {
        let upgrade = hyper::upgrade::on(&mut request);
        let (mut parts, body) = request.into_parts();
        let body = RequestBody::new(body, parts.version, &parts.headers);
        headers::remove_connection_listed(&mut parts.headers);
        Self { head: RequestHead::parse(connection, parts), body, upgrade }
    }
}

/// The head of a request and its canonical names.
pub(super) struct RequestHead {
    connection: Arc<ConnectionContext>,
    parts: Parts,
    websocket: bool,
    names: Result<CanonicalNames<'static>, Box<Refusal>>,
    pub(super) started: Instant,
}

/// A denied request, as it is reported, and its denial.
pub(super) struct DeniedRequest {
    pub(super) info: Arc<RequestInfo>,
    pub(super) refusal: Refusal,
}

/// Boxed, because denials are rare and large.
pub(super) type Denied = Box<DeniedRequest>;

impl DeniedRequest {
    pub(super) fn new(info: Arc<RequestInfo>, refusal: Refusal) -> Denied {
        Box::new(Self { info, refusal })
    }
}

impl RequestHead {
    fn parse(connection: Arc<ConnectionContext>, parts: Parts) -> Self {
        let websocket = parts.version == Version::HTTP_11 && is_websocket_upgrade(&parts.headers);
        let names = CanonicalNames::parse(&facts(&connection, &parts, websocket));
        let names = names.map(CanonicalNames::into_owned);
        Self { connection, parts, websocket, names, started: Instant::now() }
    }

    pub(super) fn method(&self) -> &Method {
        &self.parts.method
    }

    pub(super) fn headers(&self) -> &HeaderMap {
        &self.parts.headers
    }

    pub(super) fn websocket(&self) -> bool {
        self.websocket
    }

    /// The method and headers, to be sent.
    pub(super) fn into_method_and_headers(self) -> (Method, HeaderMap) {
        (self.parts.method, self.parts.headers)
    }

    /// Decides the request with the findings so far.
    pub(super) fn decide<'t, 'h>(
        &'h self,
        table: &'t RouteTable,
        vault: &Vault,
        findings: &Findings,
    ) -> Verdict<'t, 'h> {
        self.decide_with(self.headers(), table, vault, findings)
    }

    /// As [`Self::decide`], as if the request had these headers.
    pub(super) fn decide_with<'t, 'h>(
        &'h self,
        headers: &HeaderMap,
        table: &'t RouteTable,
        vault: &Vault,
        findings: &Findings,
    ) -> Verdict<'t, 'h> {
        let names = match &self.names {
            Ok(names) => names,
            Err(refusal) => return Verdict::Deny((**refusal).clone()),
        };
        let facts = RequestFacts { headers, ..facts(&self.connection, &self.parts, self.websocket) };
        decide_canonical(table, &facts, names, &|slot| vault.holds(slot), findings)
    }

    /// The request, denied before a route allowed it: the host as far as it is known, the rest as received.
    pub(super) fn denied(&self, refusal: Refusal) -> Denied {
        let info = RequestInfo {
            host: refusal.host.clone(),
            port: self.connection.port_of(&self.parts.uri),
            method: self.parts.method.as_str().to_owned(),
            path: self.parts.uri.path().to_owned(),
        };
        DeniedRequest::new(Arc::new(info), refusal)
    }

    /// Whether the request is for the proxy itself: plain HTTP for its own name, on any listener.
    pub(super) fn targets_proxy(&self) -> bool {
        let Parts { uri, headers, .. } = &self.parts;
        let named = uri.host().or_else(|| headers.get(http::header::HOST)?.to_str().ok());
        !self.connection.tls && named.is_some_and(|host| host.eq_ignore_ascii_case(INTROSPECTION_HOST))
    }

    /// Whether it requests the routes.
    pub(super) fn requests_allowlist(&self) -> bool {
        matches!(self.parts.method, Method::GET | Method::HEAD) && self.parts.uri.path() == "/allowlist"
    }

    /// Replaces path, query and headers by redacted ones. The method stays.
    pub(super) fn replace(self, redacted: RedactedHead) -> Self {
        let Self { connection, mut parts, started, .. } = self;
        let target = match &redacted.query {
            Some(query) => format!("{}?{query}", redacted.path),
            None => redacted.path,
        };
        let mut uri = parts.uri.clone().into_parts();
        // A target that no longer parses stays unchanged, is found again, and denied.
        if let Ok(target) = target.parse() {
            uri.path_and_query = Some(target);
            if let Ok(uri) = http::Uri::from_parts(uri) {
                parts.uri = uri;
            }
        }
        parts.headers = redacted.headers;
        Self { started, ..Self::parse(connection, parts) }
    }

    /// Sets the headers of a rewritten body: no content coding, and its new length.
    pub(super) fn set_plain_length(&mut self, length: usize) {
        let headers = &mut self.parts.headers;
        headers.remove(CONTENT_ENCODING);
        headers.remove(TRANSFER_ENCODING);
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
}

/// The facts of a request, as received.
fn facts<'f>(connection: &'f ConnectionContext, parts: &'f Parts, websocket: bool) -> RequestFacts<'f> {
    RequestFacts {
        ingress: connection.ingress(),
        scheme: scheme(connection, parts),
        sni: connection.sni.as_deref(),
        authority: parts.uri.authority().map(http::uri::Authority::as_str),
        method: parts.method.as_str(),
        target: parts.uri.path_and_query().map_or("", http::uri::PathAndQuery::as_str),
        headers: &parts.headers,
        websocket,
    }
}

/// Inside TLS the scheme is https. A client that sends `https://` URLs to the explicit proxy in plain text leaves TLS
/// to the proxy; the plain text never leaves the machine.
fn scheme(connection: &ConnectionContext, parts: &Parts) -> UrlScheme {
    let absolute = connection.is_proxy() && parts.uri.scheme() == Some(&http::uri::Scheme::HTTPS);
    if connection.tls || absolute { UrlScheme::Https } else { UrlScheme::Http }
}
