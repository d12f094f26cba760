//! Routes: the requests that a bottle may send to one host. Contains the parser and the renderer.
//!
//! A bottle's `egress.routes` and the generated routes of the proxy share one format, except that `auth` names a
//! secret reference in the first and a slot in the second ([`Form`]).
//!
//! ```text
//! text, message ──▶ RouteSpec ──check(form)──▶ Route ──RouteTable::new──▶ RouteTable
//!   ▲                 (as written, positions)   (values, defaults filled)   (one entry a host, look-up)
//!   └──────────────────── render ◀── RouteSpec ◀── Route ◀──────────────────────┘
//! ```
//! [`RouteSpec`] defines the format once, for reading and writing. A [`RouteTable`] contains only routes that
//! pass every rule, whatever their source.

#[cfg(test)]
pub(crate) mod arbitrary;
mod check;
mod error;
mod host;
mod includes;
mod pattern;
mod render;
mod rules;
mod spec;
mod table;
mod values;

pub use check::{Form, parse_route, parse_routes};
pub use error::{RouteError, RoutesError};
pub use host::HostPattern;
pub use pattern::{BadPattern, Pattern};
pub(crate) use render::render_list;
pub use render::{display_value, render_route, render_routes};
pub use spec::{Narrowing, RouteSpec};
pub use table::{Found, RouteTable};

use serde::{Deserialize, Serialize};

use crate::credential::Scheme;

/// A validated route. The parser fills in defaults, so every field has a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The hosts it applies to.
    pub host: HostPattern,
    /// Allowed ports, sorted, without duplicates. Default `[443]`.
    pub ports: Vec<u16>,
    /// The credential that the proxy injects.
    pub auth: Option<Auth>,
    /// Whether the agent's own credentials pass (only without `auth`).
    pub pass_credentials: bool,
    /// A request must match one of these; empty allows every request to the host.
    pub matches: Vec<RequestMatch>,
    /// Whether git clone and fetch over smart HTTP are allowed.
    pub git_fetch: bool,
    /// Whether the proxy intercepts TLS. If false, the proxy decides by host and SNI only.
    pub inspect: bool,
    /// Whether the name may resolve to a forbidden address ([`crate::address`]).
    pub private: bool,
    /// Dial this address instead of the host.
    pub connect_to: Option<ConnectTo>,
    /// Whether WebSocket upgrades are allowed.
    pub websocket: WebSocket,
    /// Detectors, and the action on a match.
    pub dlp: Dlp,
    /// Whether it is a provider route, whose outbound matches are redacted by default instead of sent for
    /// approval.
    pub provider: bool,
}

/// `auth`: the credential of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Auth {
    /// The header format.
    pub scheme: Scheme,
    /// The header name, lower case.
    pub header: String,
    /// The source of the value.
    pub source: AuthSource,
}

/// The source of a credential's value: a reference in a manifest, a slot at run time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthSource {
    /// `token_ref`, a secret reference.
    Reference(String),
    /// `slot`, in generated routes only.
    Slot(String),
}

/// One entry of `matches`; all its conditions must match.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RequestMatch {
    /// One of these paths; empty means any.
    pub paths: Vec<PathMatch>,
    /// One of these methods, upper case; empty means any.
    pub methods: Vec<String>,
    /// All of these headers.
    pub headers: Vec<HeaderMatch>,
}

/// `matches[].paths[]`: a path condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathMatch {
    /// A prefix by path segment: `/v1` matches `/v1` and `/v1/x`, not `/v10`.
    Prefix(String),
    /// The whole path.
    Exact(String),
    /// A regular expression over the whole path.
    Regex(Pattern),
}

/// `matches[].headers[]`: a header condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderMatch {
    /// The header name, lower case.
    pub name: String,
    /// The condition on its value.
    pub value: HeaderValueMatch,
}

/// The condition on a header's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeaderValueMatch {
    /// This text.
    Exact(String),
    /// A regular expression over the whole value.
    Regex(Pattern),
}

/// The name of the user's machine inside a bottle, and in `connect_to`.
pub const OWN_MACHINE: &str = "host";

/// `connect_to`: `host:port`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectTo {
    /// A name or an address; [`OWN_MACHINE`] means the user's machine.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl std::fmt::Display for ConnectTo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// `websocket`: the policy for WebSocket upgrades.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WebSocket {
    /// Allow upgrades.
    #[default]
    Allow,
    /// Answer upgrades with status 426, so that the client falls back.
    Refuse,
}

/// `dlp`: the detectors that run, and the action on an outbound match. The scanner reads it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Dlp {
    /// `outbound_detectors`: absent means the default set, an empty list none.
    pub outbound_detectors: Option<Vec<OutboundDetector>>,
    /// `inbound_detectors`: the same for responses.
    pub inbound_detectors: Option<Vec<InboundDetector>>,
    /// `outbound_on_match`; absent means `supervise` on a manifest's route and `redact` on a provider's.
    pub outbound_on_match: Option<OnMatch>,
}

/// An entry of `dlp.outbound_detectors`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutboundDetector {
    /// Patterns of known vendors' credentials.
    TokenPatterns,
    /// Values of known secrets, in every encoding.
    KnownSecrets,
    /// Text with high entropy; warns only.
    Entropy,
}

/// An entry of `dlp.inbound_detectors`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InboundDetector {
    /// Values of known secrets that the response echoes.
    KnownSecrets,
    /// Phrases of prompt injections.
    NaiveInjectionDetection,
}

/// `dlp.outbound_on_match`.
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

impl Route {
    /// A route to `host` with all defaults: TLS on 443, inspected, every request, no credential.
    #[must_use]
    pub fn to(host: HostPattern) -> Self {
        Self {
            host,
            ports: vec![crate::names::HTTPS_PORT],
            auth: None,
            pass_credentials: false,
            matches: Vec::new(),
            git_fetch: false,
            inspect: true,
            private: false,
            connect_to: None,
            websocket: WebSocket::Allow,
            dlp: Dlp::default(),
            provider: false,
        }
    }

    /// The action on an outbound match, with the default filled in.
    #[must_use]
    pub fn on_match(&self) -> OnMatch {
        let default = if self.provider { OnMatch::Redact } else { OnMatch::Supervise };
        self.dlp.outbound_on_match.unwrap_or(default)
    }
}

impl AuthSource {
    /// The name of the reference or slot.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Reference(name) | Self::Slot(name) => name,
        }
    }
}

#[cfg(test)]
mod tests;
