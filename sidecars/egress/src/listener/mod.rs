//! The bottle's side of the proxy: turns accepted sockets into HTTP requests.
//!
//! ```text
//!           9099 ──HTTP──► serve ──CONNECT──► tunnel ─┬─HTTP──► serve
//! listen ─► 80   ──HTTP──► serve                      ├─TLS───► inspect ─► serve
//!           443  ──TLS───────────────────────────────►┘  └─(inspect: false)─► passthrough
//! ```
//! In network mode, [`bottle_resolver`] runs alongside the listeners and resolves every name to the proxy's address.
//!
//! This module terminates TLS and runs the HTTP servers within fixed bounds. The module opens the tunnels of CONNECT
//! requests, and passes every other request to [`crate::request`] with its [`ConnectionContext`]. Its only own decision
//! is whether to terminate TLS. The module closes a connection whose protocol does not match its port.

mod bridge;
pub(crate) mod early_hints;
pub(crate) mod io;
pub(crate) mod serve;
pub(crate) mod tunnel;

pub(crate) use bridge::bridge;

use bottle_policy::canonical;
use bottle_policy::decide::Ingress;
use bottle_policy::names::{EGRESS_PORT, HTTP_PORT, HTTPS_PORT};

/// Facts about a connection that are known before its first request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConnectionContext {
    /// The connection's number in this process, for the log.
    pub(crate) id: u64,
    /// The port of the listener: [`EGRESS_PORT`] for the explicit proxy, otherwise a port of the transparent proxy.
    port: u16,
    /// The authority of the CONNECT request that opened the tunnel, as received.
    connect: Option<String>,
    /// The server name in the client's TLS handshake, or `None` without SNI.
    pub(crate) sni: Option<String>,
    /// Whether the request arrived over TLS.
    pub(crate) tls: bool,
}

impl ConnectionContext {
    /// Returns the context of a connection without a tunnel or TLS.
    fn direct(id: u64, port: u16) -> Self {
        Self { id, port, connect: None, sni: None, tls: false }
    }

    /// Whether the connection came to the explicit proxy, which accepts absolute URLs and CONNECT.
    pub(crate) fn is_proxy(&self) -> bool {
        self.port == EGRESS_PORT && self.connect.is_none()
    }

    /// Returns the port to which a denied request was addressed. If the request names no port, returns the default port
    /// of its protocol.
    pub(crate) fn port_of(&self, uri: &http::Uri) -> u16 {
        let default = if self.tls { HTTPS_PORT } else { HTTP_PORT };
        let connect = self.connect.as_deref().and_then(|raw| canonical::authority(raw).ok()?.port);
        connect.or(uri.port_u16()).unwrap_or(default)
    }

    /// Describes how the request reached the proxy, in the policy's terms.
    pub(crate) fn ingress(&self) -> Ingress<'_> {
        match &self.connect {
            Some(authority) => Ingress::Connect { authority },
            None if self.port == EGRESS_PORT => Ingress::Absolute,
            None => Ingress::Transparent { port: self.port },
        }
    }
}
