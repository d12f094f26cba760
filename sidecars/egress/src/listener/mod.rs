//! The bottle's side of the proxy: from an accepted socket to requests.
//!
//! ```text
//!           9099 ──HTTP──► serve ──CONNECT──► tunnel ─┬─HTTP──► serve
//! listen ─► 80   ──HTTP──► serve                      ├─TLS───► opened ─► serve
//!           443  ──TLS───────────────────────────────►┘  └─(inspect: false)─► unopened
//! ```
//! By network, [`bottle_resolver`] listens beside them and gives every name this address.
//!
//! Owns TLS and the HTTP servers with their bounds. Every request ends up in
//! [`crate::request`] together with its [`ConnectionContext`]; nothing is decided here but whether TLS is opened.
//! What is neither TLS nor HTTP is closed.

mod bridge;
pub(crate) mod io;
pub(crate) mod serve;
pub(crate) mod tunnel;

pub(crate) use bridge::bridge;

use bottle_contract::canonical;
use bottle_contract::decide::Ingress;
use bottle_contract::names::{EGRESS_PORT, HTTP_PORT, HTTPS_PORT};

/// How a request came in: all that its connection said before the request itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConnectionContext {
    /// The port of the proxy: [`EGRESS_PORT`] for the proxy, else the transparent way.
    port: u16,
    /// What the CONNECT around it named, as received.
    connect: Option<String>,
    /// The server name of the TLS around it; absent when the hello had none.
    pub(crate) sni: Option<String>,
    /// Whether there was TLS around it.
    pub(crate) tls: bool,
}

impl ConnectionContext {
    /// Straight into one of the proxy's ports.
    fn straight(port: u16) -> Self {
        Self { port, connect: None, sni: None, tls: false }
    }

    /// Whether it came to the proxy itself, where absolute URLs and CONNECT are spoken.
    pub(crate) fn is_proxy(&self) -> bool {
        self.port == EGRESS_PORT && self.connect.is_none()
    }

    /// The port that a refused request was for, as far as it said.
    pub(crate) fn port_of(&self, uri: &http::Uri) -> u16 {
        let default = if self.tls { HTTPS_PORT } else { HTTP_PORT };
        let connect = self.connect.as_deref().and_then(|raw| canonical::authority(raw).ok()?.port);
        connect.or(uri.port_u16()).unwrap_or(default)
    }

    /// The same in the decision's words.
    pub(crate) fn way_in(&self) -> Ingress<'_> {
        match &self.connect {
            Some(authority) => Ingress::Connect { authority },
            None if self.port == EGRESS_PORT => Ingress::Absolute,
            None => Ingress::Transparent { port: self.port },
        }
    }
}
