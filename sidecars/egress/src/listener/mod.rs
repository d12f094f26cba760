//! The bottle's side of the proxy: turns accepted sockets into HTTP requests.
//!
//! ```text
//!           9099 ──HTTP──► serve ──CONNECT──► tunnel ─┬─HTTP──► serve
//! listen ─► 80   ──HTTP──► serve                      ├─TLS───► inspect ─► serve
//!           443  ──TLS───────────────────────────────►┘  └─(inspect: false)─► passthrough
//! ```
//! In network mode [`bottle_resolver`] runs beside the listeners and resolves every name to this address.
//!
//! Owns TLS termination and the bounded HTTP servers. Every request goes to [`crate::request`] with its
//! [`ConnectionContext`]; the only decision here is whether to terminate TLS. Connections that are neither TLS nor
//! HTTP are closed.

mod bridge;
pub(crate) mod io;
pub(crate) mod serve;
pub(crate) mod tunnel;

pub(crate) use bridge::bridge;

use bottle_contract::canonical;
use bottle_contract::decide::Ingress;
use bottle_contract::names::{EGRESS_PORT, HTTP_PORT, HTTPS_PORT};

/// What is known about a request's connection before the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConnectionContext {
    /// Counts the connections of this process, for its log.
    pub(crate) id: u64,
    /// The listener's port: [`EGRESS_PORT`] for the explicit proxy, else a transparent one.
    port: u16,
    /// The authority of the enclosing CONNECT, as received.
    connect: Option<String>,
    /// The server name of the enclosing TLS; `None` without SNI.
    pub(crate) sni: Option<String>,
    /// Whether the request is inside TLS.
    pub(crate) tls: bool,
}

impl ConnectionContext {
    /// A connection without tunnel or TLS.
    fn direct(id: u64, port: u16) -> Self {
        Self { id, port, connect: None, sni: None, tls: false }
    }

    /// Whether it came to the explicit proxy, which accepts absolute URLs and CONNECT.
    pub(crate) fn is_proxy(&self) -> bool {
        self.port == EGRESS_PORT && self.connect.is_none()
    }

    /// The port that a denied request was for, as far as it named one.
    pub(crate) fn port_of(&self, uri: &http::Uri) -> u16 {
        let default = if self.tls { HTTPS_PORT } else { HTTP_PORT };
        let connect = self.connect.as_deref().and_then(|raw| canonical::authority(raw).ok()?.port);
        connect.or(uri.port_u16()).unwrap_or(default)
    }

    /// The ingress, in the policy's terms.
    pub(crate) fn ingress(&self) -> Ingress<'_> {
        match &self.connect {
            Some(authority) => Ingress::Connect { authority },
            None if self.port == EGRESS_PORT => Ingress::Absolute,
            None => Ingress::Transparent { port: self.port },
        }
    }
}
