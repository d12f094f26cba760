//! The facts of a request before its body: as received, untrusted, not canonical.

use http::HeaderMap;
use http::header::{CONNECTION, UPGRADE};

/// How the request reached the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ingress<'a> {
    /// Absolute-form (`GET http://host/path`) on the proxy port.
    Absolute,
    /// Inside a tunnel opened by `CONNECT`.
    Connect {
        /// The authority after `CONNECT`, as received.
        authority: &'a str,
    },
    /// On a transparent port.
    Transparent {
        /// The port that the client connected to.
        port: u16,
    },
}

/// The scheme of the request's URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UrlScheme {
    /// Plain HTTP.
    Http,
    /// HTTP over TLS that the proxy intercepts.
    Https,
}

impl UrlScheme {
    /// The default port of the scheme.
    #[must_use]
    pub fn default_port(self) -> u16 {
        match self {
            Self::Http => crate::names::HTTP_PORT,
            Self::Https => crate::names::HTTPS_PORT,
        }
    }
}

/// One request before the decision. The headers are the agent's, before the proxy removes any.
#[derive(Debug, Clone, Copy)]
pub struct RequestFacts<'a> {
    /// How the request reached the proxy.
    pub ingress: Ingress<'a>,
    /// The scheme of its URL.
    pub scheme: UrlScheme,
    /// Server name (SNI) of the TLS ClientHello.
    pub sni: Option<&'a str>,
    /// `:authority`, or the authority of an absolute-form target.
    pub authority: Option<&'a str>,
    /// The method as received. An extended CONNECT of HTTP/2 (a WebSocket) counts as `GET`.
    pub method: &'a str,
    /// Path and query as received.
    pub target: &'a str,
    /// All headers, including every `Host`.
    pub headers: &'a HeaderMap,
    /// Whether it asks for a WebSocket upgrade; see [`is_websocket_upgrade`].
    pub websocket: bool,
}

/// Whether an HTTP/1.1 request asks for an upgrade to WebSocket.
#[must_use]
pub fn is_websocket_upgrade(headers: &HeaderMap) -> bool {
    let lists = |name, word: &str| {
        let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|item| item.trim().eq_ignore_ascii_case(word))
    };
    lists(UPGRADE, "websocket") && lists(CONNECTION, "upgrade")
}
