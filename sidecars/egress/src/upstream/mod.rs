//! The world's side of the proxy: one verified connection for each request, kept while it lasts.
//!
//! ```text
//! Target ─► pool ──(nothing kept)──► dial ─► names ─► forbidden? ─► TCP ─► trust (TLS) ─► HTTP
//!              └─(kept)─► the same connection again
//! ```
//! Owns name look-up, the refusal of forbidden addresses, `connect_to`, the company's proxy and the
//! verification of certificates. Knows nothing of routes beyond what a [`Target`] says.

pub(crate) mod corporate_proxy;
pub(crate) mod dial;
mod exchange;
pub(crate) mod names;
pub(crate) mod pool;
pub(crate) mod trust;

use std::net::IpAddr;

use bottle_contract::decide::{Reason, Refusal};

/// Where a request goes. Two requests share a connection only when all of this is equal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Target {
    /// The host that was decided on, canonical (IPv6 in brackets); also the name in TLS.
    pub(crate) host: String,
    /// Its port.
    pub(crate) port: u16,
    /// TLS, or plain.
    pub(crate) tls: bool,
    /// The route allows forbidden addresses.
    pub(crate) private: bool,
    /// The route says to dial this instead.
    pub(crate) connect_to: Option<(String, u16)>,
}

impl Target {
    /// Host and port as they stand in a request: the default port is left out.
    pub(crate) fn authority(&self) -> String {
        let Self { host, port, tls, .. } = self;
        match (tls, port) {
            (true, 443) | (false, 80) => host.clone(),
            _ => format!("{host}:{port}"),
        }
    }
}

/// Upstream could not be reached as the route asks.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpstreamError {
    /// The name leads to an address that no route but a `private` one may reach.
    #[error("{host} leads to {address}, {why}")]
    Forbidden {
        /// The host asked for.
        host: String,
        /// The address it led to.
        address: IpAddr,
        /// What the address is.
        why: &'static str,
    },
    /// No connection, no answer, or a broken one.
    #[error("{host} cannot be reached: {why}")]
    Unreachable {
        /// The host asked for.
        host: String,
        /// What went wrong.
        why: String,
    },
    /// Its certificate does not hold.
    #[error("the certificate of {host} does not hold: {why}")]
    Untrusted {
        /// The host asked for.
        host: String,
        /// What is wrong with it.
        why: String,
    },
}

impl UpstreamError {
    /// The answer that says so.
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
