//! Errors of upstream connections and responses.

use std::io;
use std::net::{IpAddr, SocketAddr};

use bottle_policy::decide::{Reason, Refusal};
use rustls::CertificateError;
use rustls::pki_types::InvalidDnsNameError;

use super::corporate_proxy::ProxyError;
use super::dns_lookup::ResolveError;
use super::tls_words;

/// Why an upstream connection or response failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpstreamError {
    /// The host resolves to an address that only a route with `private: true` may connect to.
    #[error("cannot connect to {host}: it resolves to {address}, {why}")]
    Forbidden {
        /// The requested host.
        host: String,
        /// The forbidden address.
        address: IpAddr,
        /// The kind of the forbidden address, as a noun phrase.
        why: &'static str,
    },
    /// The proxy could not connect, received no response, or lost the connection.
    #[error("cannot reach {host}")]
    Unreachable {
        /// The requested host.
        host: String,
        /// The failed step.
        source: Unreachable,
    },
    /// The certificate is not trusted.
    #[error("cannot verify the certificate of {host}: {why}")]
    Untrusted {
        /// The requested host.
        host: String,
        /// The defect of the certificate.
        why: CertificateError,
    },
}

/// The step of a request that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreachable {
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    #[error("the name has no address")]
    NoAddress,
    #[error("{} port {}", .0.ip(), .0.port())]
    Connect(SocketAddr, #[source] io::Error),
    #[error("{} port {}: no connection in time", .0.ip(), .0.port())]
    ConnectTimeout(SocketAddr),
    #[error(transparent)]
    Proxy(#[from] ProxyError),
    #[error(transparent)]
    ServerName(#[from] InvalidDnsNameError),
    #[error(transparent)]
    Handshake(io::Error),
    #[error("no TLS handshake in time")]
    HandshakeTimeout,
    #[error(transparent)]
    Request(#[from] http::Error),
    #[error(transparent)]
    Http(#[from] hyper::Error),
    #[error("no answer in time")]
    ResponseTimeout,
    #[error("it sends interim responses without an end")]
    InterimFlood,
    #[error("it chose a WebSocket extension that was not offered")]
    WebSocketExtension,
    #[error("it switched to a protocol that the request did not ask for")]
    UnrequestedUpgrade,
    #[error("no free stream in time")]
    StreamTimeout,
    #[error("it closes every connection")]
    ClosesConnections,
}

impl Unreachable {
    /// Converts the failed step to an error about `host`.
    pub(crate) fn at(self, host: &str) -> UpstreamError {
        UpstreamError::Unreachable { host: host.to_owned(), source: self }
    }

    /// Describes the failed step in one line, for the agent and the user.
    fn words(&self) -> String {
        let of_io = |error: &io::Error| error.get_ref()?.downcast_ref().and_then(tls_words::handshake);
        let tls = match self {
            Self::Handshake(error) => of_io(error),
            // With TLS 1.3, a server may refuse the connection after the handshake, so a later step can fail with a TLS
            // error.
            _ => anyhow::Chain::new(self).find_map(|cause| of_io(cause.downcast_ref()?)),
        };
        match (tls, self) {
            (Some(words), _) => words.to_owned(),
            (None, Self::Handshake(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                "it closed the connection during the TLS handshake".to_owned()
            }
            (None, _) => chain(self),
        }
    }
}

impl UpstreamError {
    /// Returns the denial that the client receives.
    pub(crate) fn refusal(&self) -> Refusal {
        match self {
            Self::Forbidden { host, address, why } => {
                let detail = format!("{address}, {why}");
                Refusal::later(Reason::AddressForbidden, host, &detail)
            }
            Self::Unreachable { host, source } => {
                Refusal::later(Reason::UpstreamUnreachable, host, &source.words())
            }
            Self::Untrusted { host, why } => {
                Refusal::later(Reason::UpstreamUntrusted, host, &tls_words::certificate(why))
            }
        }
    }
}

/// Formats an error and its causes in one line.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes: Vec<String> = anyhow::Chain::new(error).map(ToString::to_string).collect();
    causes.join(": ")
}
