//! What is known of a request before its body: as received, nothing trusted, nothing canonical yet.

use http::HeaderMap;
use http::header::{CONNECTION, UPGRADE};

/// How the request came to the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ingress<'a> {
    /// Absolute-form (`GET http://host/path`) on the proxy port.
    Absolute,
    /// Inside a tunnel that was opened with this authority.
    Connect {
        /// As written after `CONNECT`.
        authority: &'a str,
    },
    /// On a port that pretends to be the server's.
    Transparent {
        /// Which one.
        port: u16,
    },
}

/// Of the request's URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UrlScheme {
    /// Plain.
    Http,
    /// Over TLS, which the proxy has opened.
    Https,
}

impl UrlScheme {
    /// The port that no port stands for.
    #[must_use]
    pub fn default_port(self) -> u16 {
        match self {
            Self::Http => crate::names::HTTP_PORT,
            Self::Https => crate::names::HTTPS_PORT,
        }
    }
}

/// One request, as the decision sees it. The headers are the agent's, before anything is removed.
#[derive(Debug, Clone, Copy)]
pub struct RequestFacts<'a> {
    /// How it came in.
    pub way: Ingress<'a>,
    /// Of its URL.
    pub scheme: UrlScheme,
    /// Server name of the TLS hello it came under.
    pub sni: Option<&'a str>,
    /// `:authority`, or the authority of an absolute-form target.
    pub authority: Option<&'a str>,
    /// As received. An extended CONNECT of HTTP/2 (a WebSocket) counts as `GET`.
    pub method: &'a str,
    /// Path and query as received.
    pub target: &'a str,
    /// All headers, every `Host` among them.
    pub headers: &'a HeaderMap,
    /// Whether it asks to become a WebSocket; see [`is_websocket_upgrade`].
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
