//! Collects the facts that a request is decided on.

use bottle_contract::decide::{RequestFacts, UrlScheme, is_websocket_upgrade};
use bottle_contract::names::INTROSPECTION_HOST;
use http::request::Parts;
use http::{Method, Version};

use crate::listener::ConnectionContext;

/// The facts of a request that arrived by `connection`, as received.
pub(super) fn collect<'f>(connection: &'f ConnectionContext, parts: &'f Parts) -> RequestFacts<'f> {
    RequestFacts {
        ingress: connection.ingress(),
        scheme: scheme(connection, parts),
        sni: connection.sni.as_deref(),
        authority: parts.uri.authority().map(http::uri::Authority::as_str),
        method: parts.method.as_str(),
        target: parts.uri.path_and_query().map_or("", http::uri::PathAndQuery::as_str),
        headers: &parts.headers,
        websocket: parts.version == Version::HTTP_11 && is_websocket_upgrade(&parts.headers),
    }
}

/// Whether the request is for the proxy itself: plain HTTP for its own name, on any listener.
pub(super) fn targets_proxy(connection: &ConnectionContext, parts: &Parts) -> bool {
    let named = parts.uri.host().or_else(|| parts.headers.get(http::header::HOST)?.to_str().ok());
    !connection.tls && named.is_some_and(|host| host.eq_ignore_ascii_case(INTROSPECTION_HOST))
}

/// Whether it requests the routes.
pub(super) fn requests_allowlist(parts: &Parts) -> bool {
    matches!(parts.method, Method::GET | Method::HEAD) && parts.uri.path() == "/allowlist"
}

/// Inside TLS the scheme is https. A client that sends `https://` URLs to the explicit proxy in plain text leaves TLS
/// to the proxy; the plain text never leaves the machine.
fn scheme(connection: &ConnectionContext, parts: &Parts) -> UrlScheme {
    let absolute = connection.is_proxy() && parts.uri.scheme() == Some(&http::uri::Scheme::HTTPS);
    if connection.tls || absolute { UrlScheme::Https } else { UrlScheme::Http }
}
