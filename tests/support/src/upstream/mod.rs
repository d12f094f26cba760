//! A fake upstream web site on loopback.
//!
//! | path | answer |
//! |---|---|
//! | `/ws` | a WebSocket that sends every message back |
//! | `/status/N` | status N with a short text |
//! | `/bytes/N` | N bytes |
//! | `/wait/MS` | an answer after so many milliseconds |
//! | `/drip/N/MS` | N lines, one every MS milliseconds |
//! | `/sse/N/MS` | N server-sent events, one every MS milliseconds |
//! | `/cut/N` | N chunks, then the connection breaks |
//! | `/close` | the connection is closed without an answer |
//! | anything else | the request itself, as JSON |

mod route;
mod websocket;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;

use crate::authority::Authority;
pub use crate::authority::{Alpn, Leaf};
use crate::server::{Server, handler};

/// How a fake site presents itself.
#[derive(Debug, Clone)]
pub struct Site {
    /// Names in its certificate.
    pub names: Vec<String>,
    /// The defect of the certificate.
    pub leaf: Leaf,
    /// The protocols it offers.
    pub alpn: Alpn,
    /// Whether it speaks TLS at all.
    pub tls: bool,
}

impl Site {
    /// A sound site for these host names.
    #[must_use]
    pub fn named(names: &[&str]) -> Self {
        Self {
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            leaf: Leaf::Valid,
            alpn: Alpn::Both,
            tls: true,
        }
    }
}

/// A received request, without its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Visit {
    /// Upper case.
    pub method: String,
    /// Path with query.
    pub path: String,
    /// `Host` or `:authority`.
    pub host: String,
    /// `HTTP/1.1` or `HTTP/2.0`.
    pub protocol: String,
    /// Every header, names in lower case.
    pub headers: Vec<(String, String)>,
}

impl Visit {
    /// The first value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }
}

/// A running fake site.
pub struct Upstream {
    authority: Authority,
    server: Server,
    visits: Arc<Mutex<Vec<Visit>>>,
}

impl Upstream {
    /// Starts a sound site for these host names, over TLS, under an authority of its own.
    ///
    /// # Errors
    /// When no port is free or a name is none.
    pub fn start(names: &[&str]) -> Result<Self> {
        Self::start_site(&Site::named(names))
    }

    /// Starts a site as described.
    ///
    /// # Errors
    /// When no port is free or a name is none.
    pub fn start_site(site: &Site) -> Result<Self> {
        let authority = Authority::new("fake upstream")?;
        let names: Vec<&str> = site.names.iter().map(String::as_str).collect();
        let tls = if site.tls { Some(authority.server_config(&names, site.leaf, site.alpn)?) } else { None };
        let visits = Arc::new(Mutex::default());
        let server = Server::start(0, tls, handler(Arc::clone(&visits), route::answer))?;
        Ok(Self { authority, server, visits })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// The certificate authority that clients must trust.
    #[must_use]
    pub fn ca_pem(&self) -> &str {
        self.authority.pem()
    }

    /// Writes [`Upstream::ca_pem`] to `path`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_ca(&self, path: &Path) -> Result<()> {
        self.authority.write_pem(path)
    }

    /// Every request so far.
    #[must_use]
    pub fn visits(&self) -> Vec<Visit> {
        self.visits.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
