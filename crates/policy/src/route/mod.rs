//! Routes: which requests a bottle may send to one host. Contains their parser and renderer.
//!
//! The user's `egress.routes` in a bottle manifest and the routes that are generated for the proxy share one
//! format. The two kinds of routes differ in `auth`, which contains a secret reference in a manifest and a
//! slot in generated routes ([`Form`]).
//!
//! ```text
//! text, message ──▶ RouteSpec ──check(form)──▶ Route ──RouteTable::new──▶ RouteTable
//!   ▲                 (as written, positions)   (values, defaults filled)   (one entry a host, look-up)
//!   └──────────────────── render ◀── RouteSpec ◀── Route ◀──────────────────────┘
//! ```
//! [`RouteSpec`] defines the format for both reading and writing. A [`RouteTable`] contains only routes that
//! satisfy every rule, whatever their source.

#[cfg(test)]
pub(crate) mod arbitrary;
mod check;
pub mod edit;
mod error;
mod follow;
mod host;
mod includes;
mod pattern;
mod render;
mod spec;
mod table;
mod validation;
mod values;

pub use check::{Form, parse_route, parse_routes};
pub use error::{RouteError, RoutesError};
pub use follow::follow;
pub use host::HostPattern;
pub use pattern::{BadPattern, Pattern};
pub use render::{display_value, render_list, render_route, render_routes};
pub use spec::{Narrowing, RouteSpec};
pub use table::{Found, RouteTable};

use serde::{Deserialize, Serialize};

use crate::credential::Scheme;

/// A validated route. The parser fills in defaults, so every field has a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The hosts that the route applies to.
    pub host: HostPattern,
    /// Allowed ports, sorted and without duplicates. The default is `[443]`.
    pub ports: Vec<u16>,
    /// The credential that the proxy injects.
    pub auth: Option<Auth>,
    /// Whether the proxy forwards the agent's own credentials (only without `auth`).
    pub pass_credentials: bool,
    /// The conditions for requests. A request must match at least one of these conditions. An empty list
    /// allows every request to the host.
    pub matches: Vec<RequestMatch>,
    /// Requests that the route denies although `matches` allows them. An entry has no header conditions. An entry
    /// without any condition denies every request, see [`Route::denies_all`].
    pub except: Vec<RequestMatch>,
    /// Whether git clone and fetch over smart HTTP are allowed.
    pub git_fetch: bool,
    /// Whether the proxy intercepts TLS. If false, the proxy decides only by host, port and server name (SNI).
    pub inspect: bool,
    /// Whether the proxy may connect to an address that is otherwise forbidden ([`crate::address`]).
    pub private: bool,
    /// The destination that the proxy dials instead of the host.
    pub connect_to: Option<ConnectTo>,
    /// Whether WebSocket upgrades are allowed.
    pub websocket: WebSocket,
    /// The detectors of the scan, and the action on a match.
    pub dlp: Dlp,
    /// Whether this is a provider route. By default, the proxy redacts outbound matches on a provider route, and asks
    /// the user for approval on other routes.
    pub provider: bool,
}

/// The key `auth`: the credential of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Auth {
    /// The header format.
    pub scheme: Scheme,
    /// The header name, lower case.
    pub header: String,
    /// The source of the credential's value.
    pub source: AuthSource,
}

/// The source of a credential's value: a secret reference in a manifest, a slot in generated routes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthSource {
    /// The key `token_ref`, a secret reference.
    Reference(String),
    /// The key `slot`, in generated routes only.
    Slot(String),
}

/// One entry of `matches`. A request matches if it satisfies all conditions of the entry.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RequestMatch {
    /// The request must have one of these paths. Empty means any path.
    pub paths: Vec<PathMatch>,
    /// The request must have one of these methods (upper case). Empty means any method.
    pub methods: Vec<String>,
    /// The request must satisfy all of these header conditions.
    pub headers: Vec<HeaderMatch>,
}

/// The key `matches[].paths[]`: a path condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathMatch {
    /// A path prefix in whole segments: `/v1` matches `/v1` and `/v1/x`, but not `/v10`.
    Prefix(String),
    /// The complete path.
    Exact(String),
    /// A regular expression that must match the complete path.
    Regex(Pattern),
}

/// The key `matches[].headers[]`: a header condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderMatch {
    /// The header name, lower case.
    pub name: String,
    /// The condition on the header's value.
    pub value: HeaderValueMatch,
}

/// The condition on a header's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeaderValueMatch {
    /// Exactly this text.
    Exact(String),
    /// A regular expression that must match the complete value.
    Regex(Pattern),
}

/// The host name of the user's machine inside a bottle and in `connect_to`.
pub const OWN_MACHINE: &str = "host";

/// The value of the key `connect_to`: `host:port`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectTo {
    /// A host name or an address. [`OWN_MACHINE`] means the user's machine.
    pub host: String,
    /// The port to connect to.
    pub port: u16,
}

impl std::fmt::Display for ConnectTo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// The key `websocket`: the policy for WebSocket upgrades.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WebSocket {
    /// Allow upgrades.
    #[default]
    Allow,
    /// Respond to upgrades with status 426, so that the client falls back to plain HTTP.
    Refuse,
}

/// The key `dlp`: the detectors that run, and the action on an outbound match.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Dlp {
    /// The key `outbound_detectors`. If absent, the default detectors run; an empty list disables all of them.
    pub outbound_detectors: Option<Vec<OutboundDetector>>,
    /// The key `inbound_detectors`: like `outbound_detectors`, for responses.
    pub inbound_detectors: Option<Vec<InboundDetector>>,
    /// The key `outbound_on_match`. If absent, the action is `supervise` on a manifest's route and `redact` on a
    /// provider route.
    pub outbound_on_match: Option<OnMatch>,
    /// The key `inbound_on_match`. If absent, the action is `warn` for pages and `block` for all other responses.
    pub inbound_on_match: Option<InboundOnMatch>,
}

/// An entry of `dlp.outbound_detectors`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutboundDetector {
    /// Patterns of well-known vendors' credentials.
    TokenPatterns,
    /// Values of known secrets, in plain form and in common encodings.
    KnownSecrets,
    /// Text with high entropy. Only causes a warning.
    Entropy,
}

/// An entry of `dlp.inbound_detectors`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InboundDetector {
    /// The credential that the proxy injected, if the response echoes it.
    KnownSecrets,
    /// Phrases that are typical of prompt injections.
    NaiveInjectionDetection,
}

/// The key `dlp.outbound_on_match`: the action on a finding in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnMatch {
    /// Ask the user for approval.
    Supervise,
    /// Redact the match and decide again.
    Redact,
    /// Block the request.
    Block,
}

/// The key `dlp.inbound_on_match`: the action on an injected instruction in a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InboundOnMatch {
    /// Forward the response, with a marked frame around its content if the content is text.
    Warn,
    /// Deny the response, or cut it if a part was already forwarded.
    Block,
}

impl Route {
    /// Creates a route to `host` with all defaults: TLS on port 443, inspected, every request, no credential.
    #[must_use]
    pub fn to(host: HostPattern) -> Self {
        Self {
            host,
            ports: vec![crate::names::HTTPS_PORT],
            auth: None,
            pass_credentials: false,
            matches: Vec::new(),
            except: Vec::new(),
            git_fetch: false,
            inspect: true,
            private: false,
            connect_to: None,
            websocket: WebSocket::Allow,
            dlp: Dlp::default(),
            provider: false,
        }
    }

    /// Whether neither `matches` nor `except` restricts the requests.
    #[must_use]
    pub fn is_unrestricted(&self) -> bool {
        self.matches.is_empty() && self.except.is_empty()
    }

    /// Whether the route denies every request. Such a route excludes its hosts from the route of a wildcard.
    #[must_use]
    pub fn denies_all(&self) -> bool {
        self.except.iter().any(|entry| *entry == RequestMatch::default())
    }

    /// Returns the action on an outbound match, or the default action if the route sets no action.
    #[must_use]
    pub fn on_match(&self) -> OnMatch {
        let default = if self.provider { OnMatch::Redact } else { OnMatch::Supervise };
        self.dlp.outbound_on_match.unwrap_or(default)
    }
}

impl AuthSource {
    /// Returns the name of the secret reference or slot.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Reference(name) | Self::Slot(name) => name,
        }
    }
}

#[cfg(test)]
mod tests;
