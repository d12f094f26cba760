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
mod exchange;
pub(crate) mod pool;
pub(crate) mod resolver;
pub(crate) mod trust;

use std::net::IpAddr;

use bottle_contract::decide::{Reason, Refusal};

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

/// The upstream connection or response failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpstreamError {
    /// The name resolves to an address that only a `private` route may reach.
    #[error("cannot connect to {host}: it resolves to {address}, {why}")]
    Forbidden {
        /// The requested host.
        host: String,
        /// The address it resolves to.
        address: IpAddr,
        /// The kind of address.
        why: &'static str,
    },
    /// No connection, no response, or a broken one.
    #[error("cannot reach {host}: {why}")]
    Unreachable {
        /// The requested host.
        host: String,
        /// The cause.
        why: String,
    },
    /// The certificate is not trusted.
    #[error("cannot verify the certificate of {host}: {why}")]
    Untrusted {
        /// The requested host.
        host: String,
        /// The cause.
        why: String,
    },
}

impl UpstreamError {
    /// The denial that the client receives.
    pub(crate) fn refusal(&self) -> Refusal {
        match self {
            Self::Forbidden { host, address, why } => {
                let detail = format!("{address}, {why}");
                Refusal::later(Reason::AddressForbidden, host, &detail)
            }
            Self::Unreachable { host, why } => Refusal::later(Reason::UpstreamUnreachable, host, why),
            Self::Untrusted { host, why } => Refusal::later(Reason::UpstreamUntrusted, host, why),
        }
    }

    /// [`Self::Unreachable`] for `host`.
    pub(crate) fn unreachable(host: &str, why: impl ToString) -> Self {
        Self::Unreachable { host: host.to_owned(), why: why.to_string() }
    }
}
