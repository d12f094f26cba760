//! Upstream connections. Each request uses one verified connection, which the pool keeps for later requests.
//!
//! ```text
//! Target ─► pool ──(none pooled)──► dial ─► names ─► forbidden? ─► TCP ─► trust (TLS) ─► HTTP
//!              └─(pooled)─► reuses the connection
//! ```
//! This module resolves names, checks for forbidden addresses, applies `connect_to`, connects through the corporate
//! proxy and verifies certificates. The module knows nothing of the routes except the [`Target`].

pub(crate) mod corporate_proxy;
pub(crate) mod dial;
pub(crate) mod dns_lookup;
mod error;
mod exchange;
mod http2_connection;
mod interim_limit;
pub(crate) mod pool;
mod replay;
mod tls_stream;
mod tls_words;
pub(crate) mod trust;

pub(crate) use error::{Unreachable, UpstreamError, chain};
pub(crate) use exchange::OnEarlyHints;

/// The destination of a request. Two requests share a connection only if their targets are equal in every field.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Target {
    /// The host that the policy decided on, in canonical form (IPv6 in brackets). The host is also the server name in
    /// TLS.
    pub(crate) host: String,
    /// The port to connect to.
    pub(crate) port: u16,
    /// Whether to use TLS (true) or plain HTTP (false).
    pub(crate) tls: bool,
    /// Whether the route permits addresses that are otherwise forbidden.
    pub(crate) private: bool,
    /// The host and port from the route's `connect_to`, to dial instead of `host` and `port`.
    pub(crate) connect_to: Option<(String, u16)>,
}

impl Target {
    /// Returns host and port as in a `Host` header, without the default port.
    pub(crate) fn authority(&self) -> String {
        let Self { host, port, tls, .. } = self;
        match (tls, port) {
            (true, 443) | (false, 80) => host.clone(),
            _ => format!("{host}:{port}"),
        }
    }
}
