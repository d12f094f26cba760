//! Decides tunnels before a request is readable: only TLS passthrough hosts.

use super::names::agreed_host;
use super::{Ingress, Refusal, RequestFacts, UrlScheme};
use crate::canonical;
use crate::route::{Found, Route, RouteTable};

/// The decision on a tunnel.
#[derive(Debug, PartialEq, Eq)]
pub enum Tunnel<'t> {
    /// Intercept TLS. Each request inside is decided separately, and denials are sent inside the tunnel,
    /// where clients show them.
    Inspect,
    /// Copy bytes to this host without intercepting TLS.
    Passthrough(Passthrough<'t>),
    /// Close it.
    Deny(Refusal),
}

/// A TLS passthrough host.
#[derive(Debug, PartialEq, Eq)]
pub struct Passthrough<'t> {
    /// The host's route, which has `inspect: false`.
    pub route: &'t Route,
    /// The canonical host.
    pub host: String,
    /// Port.
    pub port: u16,
}

/// Decides a `CONNECT` by its target. The ClientHello is decided too, whatever the result.
#[must_use]
pub fn decide_connect<'t>(table: &'t RouteTable, authority: &str) -> Tunnel<'t> {
    match canonical::authority(authority) {
        Ok(canonical::Authority { host, port: Some(port) }) => for_host(table, &host, port),
        Ok(_) => Tunnel::Deny(Refusal::authority(authority, "the CONNECT target names no port")),
        Err(error) => Tunnel::Deny(Refusal::authority(authority, error.why)),
    }
}

/// Decides a TLS ClientHello by its server name and the ingress. The ClientHello must name a passthrough host
/// (unless it is an address), and agree with the `CONNECT`.
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
        // Inside an intercepted tunnel the proxy can explain the mismatch.
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
