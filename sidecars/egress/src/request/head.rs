//! The head of a request. The head is parsed once, and again only after a redaction.

use std::sync::Arc;
use std::time::Instant;

use bottle_policy::decide::{
    CanonicalNames, Findings, Refusal, RequestFacts, UrlScheme, Verdict, decide_canonical,
    is_websocket_upgrade,
};
use bottle_policy::names::INTROSPECTION_HOST;
use bottle_policy::route::RouteTable;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Version};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;

use super::headers;
use super::request_body::RequestBody;
use crate::credential_store::CredentialStore;
use crate::inspect::head::RedactedHead;
use crate::listener::ConnectionContext;
use crate::listener::early_hints::EarlyHints;
use crate::report::record::RequestInfo;

/// A received request, before any decision.
pub(super) struct ReceivedRequest {
    pub(super) head: RequestHead,
    pub(super) body: RequestBody,
    /// The bottle's side of the connection after a WebSocket upgrade.
    pub(super) upgrade: OnUpgrade,
}

impl ReceivedRequest {
    /// Parses the head of a request that arrived on `connection`.
    pub(super) fn read(connection: Arc<ConnectionContext>, mut request: http::Request<Incoming>) -> Self {
        let upgrade = hyper::upgrade::on(&mut request);
        let (mut parts, body) = request.into_parts();
        let body = RequestBody::new(body, &parts.headers);
        headers::remove_connection_listed(&mut parts.headers);
        Self { head: RequestHead::parse(connection, parts), body, upgrade }
    }
}

/// The head of a request, with its host, path and query in canonical form.
pub(super) struct RequestHead {
    connection: Arc<ConnectionContext>,
    parts: Parts,
    websocket: bool,
    names: Result<CanonicalNames<'static>, Box<Refusal>>,
    pub(super) started: Instant,
}

/// A denial, and the facts about the denied request for reports.
pub(super) struct DeniedRequest {
    pub(super) info: Arc<RequestInfo>,
    pub(super) refusal: Refusal,
}

/// A denied request. The value is boxed because denials are rare and large.
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

    /// The early hints for the client, or `None` if the client cannot receive early hints.
    pub(super) fn early_hints(&self) -> Option<&EarlyHints> {
        self.parts.extensions.get()
    }

    /// Returns the method and headers for sending.
    pub(super) fn into_method_and_headers(self) -> (Method, HeaderMap) {
        (self.parts.method, self.parts.headers)
    }

    /// Decides on the request, given the findings so far.
    pub(super) fn decide<'t, 'h>(
        &'h self,
        table: &'t RouteTable,
        credential_store: &CredentialStore,
        findings: &Findings,
    ) -> Verdict<'t, 'h> {
        self.decide_with(self.headers(), table, credential_store, findings)
    }

    /// Like [`Self::decide`], but with `headers` instead of the request's headers.
    pub(super) fn decide_with<'t, 'h>(
        &'h self,
        headers: &HeaderMap,
        table: &'t RouteTable,
        credential_store: &CredentialStore,
        findings: &Findings,
    ) -> Verdict<'t, 'h> {
        let names = match &self.names {
            Ok(names) => names,
            Err(refusal) => return Verdict::Deny((**refusal).clone()),
        };
        let facts = RequestFacts { headers, ..facts(&self.connection, &self.parts, self.websocket) };
        decide_canonical(table, &facts, names, &|slot| credential_store.holds(slot), findings)
    }

    /// Returns the denial of a request that no route has allowed yet. The facts for reports contain the host if the
    /// host is known. The port, method and path are as received.
    pub(super) fn denied(&self, refusal: Refusal) -> Denied {
        let info = RequestInfo {
            host: refusal.host.clone(),
            port: self.connection.port_of(&self.parts.uri),
            method: self.parts.method.as_str().to_owned(),
            path: self.parts.uri.path().to_owned(),
        };
        DeniedRequest::new(Arc::new(info), refusal)
    }

    /// Whether the request is for the proxy itself: plain HTTP to the proxy's status host name, on any listener.
    pub(super) fn targets_proxy(&self) -> bool {
        let Parts { uri, headers, .. } = &self.parts;
        let named = uri.host().or_else(|| headers.get(http::header::HOST)?.to_str().ok());
        !self.connection.tls && named.is_some_and(|host| host.eq_ignore_ascii_case(INTROSPECTION_HOST))
    }

    /// Whether the request asks for the routes.
    pub(super) fn requests_allowlist(&self) -> bool {
        matches!(self.parts.method, Method::GET | Method::HEAD) && self.parts.uri.path() == "/allowlist"
    }

    /// Replaces path, query and headers with their redacted forms. The method is kept.
    pub(super) fn replace(self, redacted: RedactedHead) -> Self {
        let Self { connection, mut parts, started, .. } = self;
        let target = match &redacted.query {
            Some(query) => format!("{}?{query}", redacted.path),
            None => redacted.path,
        };
        let mut uri = parts.uri.clone().into_parts();
        // If the redacted target cannot be parsed, the target stays unchanged. The next scan finds the secret again,
        // and the request is denied.
        if let Ok(target) = target.parse() {
            uri.path_and_query = Some(target);
            if let Ok(uri) = http::Uri::from_parts(uri) {
                parts.uri = uri;
            }
        }
        parts.headers = redacted.headers;
        Self { started, ..Self::parse(connection, parts) }
    }

    /// Sets the headers for a redacted body: no content coding, and the new length.
    pub(super) fn set_plain_length(&mut self, length: usize) {
        let headers = &mut self.parts.headers;
        headers.remove(CONTENT_ENCODING);
        headers.remove(TRANSFER_ENCODING);
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
}

/// Returns the facts about a request as received.
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

/// Returns the scheme of a request. Inside TLS, the scheme is https. If a client sends a plain-text request for an
/// `https://` URL to the explicit proxy, the client expects the proxy to use TLS. The plain text never leaves the
/// machine.
fn scheme(connection: &ConnectionContext, parts: &Parts) -> UrlScheme {
    let absolute = connection.is_proxy() && parts.uri.scheme() == Some(&http::uri::Scheme::HTTPS);
    if connection.tls || absolute { UrlScheme::Https } else { UrlScheme::Http }
}
