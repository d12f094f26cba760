//! The facts about a request that are known before its body is read. All facts are as received: untrusted and
//! not in canonical form.

use http::HeaderMap;
use http::header::{CONNECTION, UPGRADE};

/// How the request reached the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ingress<'a> {
    /// A request to the explicit proxy in absolute form (`GET http://host/path`).
    Absolute,
    /// A request inside a tunnel that `CONNECT` opened.
    Connect {
        /// The authority after `CONNECT`, as received.
        authority: &'a str,
    },
    /// A request on a port of the transparent proxy.
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
    /// HTTP inside TLS that the proxy intercepts.
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

/// The facts about one request before the decision. The headers are those that the agent sent.
#[derive(Debug, Clone, Copy)]
pub struct RequestFacts<'a> {
    /// How the request reached the proxy.
    pub ingress: Ingress<'a>,
    /// The scheme of the request's URL.
    pub scheme: UrlScheme,
    /// The server name (SNI) in the TLS ClientHello; `None` without TLS or without SNI.
    pub sni: Option<&'a str>,
    /// `:authority`, or the authority of an absolute-form target.
    pub authority: Option<&'a str>,
    /// The method as received. An extended CONNECT of HTTP/2 (a WebSocket) counts as `GET`.
    pub method: &'a str,
    /// Path and query as received.
    pub target: &'a str,
    /// All headers, including every `Host`.
    pub headers: &'a HeaderMap,
    /// Whether the request asks for a WebSocket upgrade; see [`is_websocket_upgrade`].
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
