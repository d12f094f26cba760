//! Upstream connections: one verified connection for each request, pooled for the next ones.
//!
//! ```text
//! Target ─► pool ──(none pooled)──► dial ─► names ─► forbidden? ─► TCP ─► trust (TLS) ─► HTTP
//!              └─(pooled)─► the same connection again
//! ```
//! Owns name look-up, the check for forbidden addresses, `connect_to`, the corporate proxy and certificate
//! verification. Sees nothing of the routes but the [`Target`].

pub(crate) mod corporate_proxy;
pub(crate) mod dial;
mod error;
mod exchange;
pub(crate) mod pool;
pub(crate) mod resolver;
pub(crate) mod trust;

pub(crate) use error::{Unreachable, UpstreamError, chain};

/// The destination of a request. Two requests share a connection only if all of it is equal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Target {
    /// The host that was decided on, canonical (IPv6 in brackets); also the server name in TLS.
    pub(crate) host: String,
    /// Port.
    pub(crate) port: u16,
    /// TLS, or plain HTTP.
    pub(crate) tls: bool,
    /// The route allows forbidden addresses.
    pub(crate) private: bool,
    /// The address to dial instead, from the route.
    pub(crate) connect_to: Option<(String, u16)>,
}

impl Target {
    /// Host and port as a request spells them, without the default port.
    pub(crate) fn authority(&self) -> String {
        let Self { host, port, tls, .. } = self;
        match (tls, port) {
            (true, 443) | (false, 80) => host.clone(),
            _ => format!("{host}:{port}"),
        }
    }
}
