//! A fake upstream web site on loopback.
//!
//! | path | answer |
//! |---|---|
//! | `/ws` | a WebSocket that sends every message back |
//! | `/status/N` | status N with a short text |
//! | `/bytes/N` | N bytes |
//! | `/wait/MS` | an answer after MS milliseconds |
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

/// The properties of a fake site.
#[derive(Debug, Clone)]
pub struct Site {
    /// The names for which the certificate is valid.
    pub names: Vec<String>,
    /// The defect of the certificate, if any.
    pub leaf: Leaf,
    /// The protocols that the site offers.
    pub alpn: Alpn,
    /// Whether the site uses TLS.
    pub tls: bool,
}

impl Site {
    /// Describes a site without defects for these host names.
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
    /// The method, in upper case.
    pub method: String,
    /// The path, with the query.
    pub path: String,
    /// The header `Host` or `:authority`.
    pub host: String,
    /// The protocol: `HTTP/1.1` or `HTTP/2.0`.
    pub protocol: String,
    /// All headers, with names in lower case.
    pub headers: Vec<(String, String)>,
}

impl Visit {
    /// Returns the first value of a header.
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
    /// Starts a site without defects for these host names. It uses TLS, with a certificate of a new
    /// authority.
    ///
    /// # Errors
    /// Returns an error if no port is free, or a name is invalid.
    pub fn start(names: &[&str]) -> Result<Self> {
        Self::start_site(&Site::named(names))
    }

    /// Starts a site with these properties.
    ///
    /// # Errors
    /// Returns an error if no port is free, or a name is invalid.
    pub fn start_site(site: &Site) -> Result<Self> {
        let authority = Authority::new("fake upstream")?;
        let names: Vec<&str> = site.names.iter().map(String::as_str).collect();
        let tls = if site.tls { Some(authority.server_config(&names, site.leaf, site.alpn)?) } else { None };
        let visits = Arc::new(Mutex::default());
        let server = Server::start(0, tls, handler(Arc::clone(&visits), route::answer))?;
        Ok(Self { authority, server, visits })
    }

    /// Returns the address on which the site listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Returns the certificate of the authority, which clients must trust.
    #[must_use]
    pub fn ca_pem(&self) -> &str {
        self.authority.pem()
    }

    /// Writes [`Upstream::ca_pem`] to `path`.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn write_ca(&self, path: &Path) -> Result<()> {
        self.authority.write_pem(path)
    }

    /// Returns all requests so far.
    #[must_use]
    pub fn visits(&self) -> Vec<Visit> {
        self.visits.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
