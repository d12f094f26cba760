//! What can be decided before a request is readable: only hosts that are passed through unopened.

use super::names::agreed;
use super::{Ingress, Refusal, RequestFacts, UrlScheme};
use crate::canonical;
use crate::route::{Found, Route, RouteTable};

/// What becomes of a tunnel.
#[derive(Debug, PartialEq, Eq)]
pub enum Tunnel<'t> {
    /// Open it; each request inside is decided by itself, and refusals are given inside, where clients
    /// show them.
    Inspect,
    /// Copy bytes to this host without opening TLS.
    Pass(Passed<'t>),
    /// Close it.
    Deny(Refusal),
}

/// A host that is passed through unopened.
#[derive(Debug, PartialEq, Eq)]
pub struct Passed<'t> {
    /// Its route, which has `inspect: false`.
    pub route: &'t Route,
    /// Canonical.
    pub host: String,
    /// Port.
    pub port: u16,
}

/// Decides a `CONNECT` by its target alone. Whatever comes of it, the hello is decided too.
#[must_use]
pub fn decide_connect<'t>(table: &'t RouteTable, authority: &str) -> Tunnel<'t> {
    match canonical::authority(authority) {
        Ok(canonical::Authority { host, port: Some(port) }) => passed(table, &host, port),
        Ok(_) => Tunnel::Deny(Refusal::authority(authority, "the CONNECT target names no port")),
        Err(error) => Tunnel::Deny(Refusal::authority(authority, error.why)),
    }
}

/// Decides a TLS hello by the name in it and the way it came. A host that is passed through must be
/// named by the hello (an address cannot be), and by the `CONNECT` in the same way.
#[must_use]
pub fn decide_hello<'t>(table: &'t RouteTable, way: Ingress<'_>, sni: Option<&str>) -> Tunnel<'t> {
    let no_headers = http::HeaderMap::new();
    let facts = RequestFacts {
        way,
        scheme: UrlScheme::Https,
        sni,
        authority: None,
        method: "",
        target: "",
        headers: &no_headers,
        websocket: false,
    };
    match agreed(&facts) {
        Ok((host, port)) => match passed(table, &host, port) {
            Tunnel::Pass(_) if sni.is_none() && !canonical::is_ip_literal(&host) => {
                Tunnel::Deny(Refusal::authority(&host, "the TLS hello names no server"))
            }
            decided => decided,
        },
        // Inside a tunnel that is opened anyway the mismatch can be explained.
        Err(_) if matches!(way, Ingress::Connect { authority } if decide_connect(table, authority) == Tunnel::Inspect) => {
            Tunnel::Inspect
        }
        Err(refusal) => Tunnel::Deny(*refusal),
    }
}

fn passed<'t>(table: &'t RouteTable, host: &str, port: u16) -> Tunnel<'t> {
    match table.find(host, port) {
        Found::Route(route) if !route.inspect => Tunnel::Pass(Passed { route, host: host.to_owned(), port }),
        _ => Tunnel::Inspect,
    }
}
