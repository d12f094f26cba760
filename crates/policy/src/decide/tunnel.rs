//! Decides whether the proxy intercepts TLS in a tunnel, passes TLS through, or closes the tunnel. In a
//! tunnel with interception, the proxy later decides on each request.

use super::names::agreed_host;
use super::{Ingress, Refusal, RequestFacts, UrlScheme};
use crate::canonical;
use crate::route::{Found, Route, RouteTable};

/// The decision on a tunnel.
#[derive(Debug, PartialEq, Eq)]
pub enum Tunnel<'t> {
    /// Intercept TLS. The proxy decides separately on each request in the tunnel. The proxy sends denials inside the
    /// tunnel, because clients show only such denials to the user.
    Inspect,
    /// Forward the bytes to this host without intercepting TLS.
    Passthrough(Passthrough<'t>),
    /// Close the tunnel.
    Deny(Refusal),
}

/// A host with TLS passthrough.
#[derive(Debug, PartialEq, Eq)]
pub struct Passthrough<'t> {
    /// The host's route, which has `inspect: false`.
    pub route: &'t Route,
    /// The canonical host.
    pub host: String,
    /// The port to connect to.
    pub port: u16,
}

/// Decides on a `CONNECT` by its target. A later TLS ClientHello is checked too, whatever the decision on the
/// `CONNECT` is.
#[must_use]
pub fn decide_connect<'t>(table: &'t RouteTable, authority: &str) -> Tunnel<'t> {
    match canonical::authority(authority) {
        Ok(canonical::Authority { host, port: Some(port) }) => for_host(table, &host, port),
        Ok(_) => Tunnel::Deny(Refusal::authority(authority, "the CONNECT target names no port")),
        Err(error) => Tunnel::Deny(Refusal::authority(authority, error.why)),
    }
}

/// Decides on a TLS ClientHello by its server name and the ingress. For a host with TLS passthrough, the
/// ClientHello must contain the server name (unless the host is an address). The server name must agree with
/// the `CONNECT`.
#[must_use]
pub fn decide_hello<'t>(table: &'t RouteTable, ingress: Ingress<'_>, sni: Option<&str>) -> Tunnel<'t> {
    let no_headers = http::HeaderMap::new();
    let facts = RequestFacts {
        ingress,
        scheme: UrlScheme::Https,
        sni,
        authority: None,
        method: "",
        target: "",
        headers: &no_headers,
        websocket: false,
    };
    match agreed_host(&facts) {
        Ok((host, port)) => match for_host(table, &host, port) {
            Tunnel::Passthrough(_) if sni.is_none() && !canonical::is_ip_literal(&host) => {
                Tunnel::Deny(Refusal::authority(&host, "the TLS ClientHello names no server"))
            }
            decided => decided,
        },
        // The tunnel is intercepted, because the proxy can explain the mismatch only inside an intercepted tunnel.
        Err(_) if matches!(ingress, Ingress::Connect { authority } if decide_connect(table, authority) == Tunnel::Inspect) => {
            Tunnel::Inspect
        }
        Err(refusal) => Tunnel::Deny(*refusal),
    }
}

fn for_host<'t>(table: &'t RouteTable, host: &str, port: u16) -> Tunnel<'t> {
    match table.find(host, port) {
        Found::Route(route) if !route.inspect => {
            Tunnel::Passthrough(Passthrough { route, host: host.to_owned(), port })
        }
        _ => Tunnel::Inspect,
    }
}
