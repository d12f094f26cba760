//! What the decision is told of a request.

use bottle_contract::decide::{RequestFacts, UrlScheme, is_websocket_upgrade};
use bottle_contract::names::INTROSPECTION_HOST;
use http::request::Parts;
use http::{Method, Version};

use crate::listener::ConnectionContext;

/// The facts of a request that came in by `way`, as received.
pub(super) fn of<'f>(way: &'f ConnectionContext, parts: &'f Parts) -> RequestFacts<'f> {
    RequestFacts {
        ingress: way.way_in(),
        scheme: scheme(way, parts),
        sni: way.sni.as_deref(),
        authority: parts.uri.authority().map(http::uri::Authority::as_str),
        method: parts.method.as_str(),
        target: parts.uri.path_and_query().map_or("", http::uri::PathAndQuery::as_str),
        headers: &parts.headers,
        websocket: parts.version == Version::HTTP_11 && is_websocket_upgrade(&parts.headers),
    }
}

/// Whether the proxy itself is asked: for its own name, in the clear, by either way in.
pub(super) fn asks_the_proxy(way: &ConnectionContext, parts: &Parts) -> bool {
    let named = parts.uri.host().or_else(|| parts.headers.get(http::header::HOST)?.to_str().ok());
    !way.tls && named.is_some_and(|host| host.eq_ignore_ascii_case(INTROSPECTION_HOST))
}

/// Whether it is asked for the routes.
pub(super) fn asks_for_allowlist(parts: &Parts) -> bool {
    matches!(parts.method, Method::GET | Method::HEAD) && parts.uri.path() == "/allowlist"
}

/// Inside TLS everything is https. A client that hands `https://` URLs to the proxy in the clear has
/// its TLS made by the proxy; the way to the proxy never leaves the machine.
fn scheme(way: &ConnectionContext, parts: &Parts) -> UrlScheme {
    let absolute = way.is_proxy() && parts.uri.scheme() == Some(&http::uri::Scheme::HTTPS);
    if way.tls || absolute { UrlScheme::Https } else { UrlScheme::Http }
}
