//! One host and what may be asked of it: the route vocabulary, its parser and its renderer.
//!
//! The same words stand in a bottle's `egress.routes` and in the generated `routes.yaml`, except that
//! `auth` names a secret reference in the first and a slot in the second ([`Form`]).
//!
//! ```text
//! text ──yaml──▶ RouteSpec ──check(form)──▶ Route ──RouteTable::new──▶ RouteTable
//!   ▲              (words and positions)     (values, defaults filled)   (one entry a host, look-up)
//!   └───────────────── render ◀── RouteSpec ◀── Route ◀──────────────────────┘
//! ```
//! The words stand once, in [`RouteSpec`], and go both ways. A [`RouteTable`] holds only routes that
//! keep every rule, wherever they came from.

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
pub use render::{render_route, render_routes, shown};
pub use spec::{Narrowing, RouteSpec};
pub use table::{Found, RouteTable};

use serde::{Deserialize, Serialize};

use crate::credential::Scheme;

/// A checked route. Every field has its value; defaults are filled in by the parser.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Which hosts.
    pub host: HostPattern,
    /// Which ports, sorted, without repeats. Default `[443]`.
    pub ports: Vec<u16>,
    /// The credential that the proxy adds.
    pub auth: Option<Auth>,
    /// Whether the agent's own credentials pass (only without `auth`).
    pub pass_credentials: bool,
    /// A request must satisfy one of these; empty means every request of the host.
    pub matches: Vec<RequestMatch>,
    /// Whether smart-HTTP clone and fetch pass.
    pub git_fetch: bool,
    /// Whether TLS is opened; false decides host and SNI only.
    pub inspect: bool,
    /// Whether the name may resolve to a forbidden address.
    pub private: bool,
    /// Dial this instead.
    pub connect_to: Option<ConnectTo>,
    /// Whether a WebSocket upgrade passes.
    pub websocket: WebSocket,
    /// Detectors and what a match does.
    pub dlp: Dlp,
    /// Whether a provider owns it (its conversations are redacted rather than asked about).
    pub provider: bool,
}

/// `auth`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Auth {
    /// How it is put into the header.
    pub scheme: Scheme,
    /// The header, lower case.
    pub header: String,
    /// Where the value comes from.
    pub source: AuthSource,
}

/// Where a credential's value comes from: a reference in a manifest, a slot at run time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthSource {
    /// `token_ref`, a secret reference.
    Reference(String),
    /// `slot`, in `routes.yaml` only.
    Slot(String),
}

/// One entry of `matches`; all its parts must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RequestMatch {
    /// One of these paths; empty means any.
    pub paths: Vec<PathMatch>,
    /// One of these methods, upper case; empty means any.
    pub methods: Vec<String>,
    /// All of these headers.
    pub headers: Vec<HeaderMatch>,
}

/// `matches[].paths[]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathMatch {
    /// By path segment: `/v1` matches `/v1` and `/v1/x`, not `/v10`.
    Prefix(String),
    /// The whole path.
    Exact(String),
    /// A regular expression over the whole path.
    Regex(Pattern),
}

/// `matches[].headers[]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderMatch {
    /// Lower case.
    pub name: String,
    /// What its value must be.
    pub value: HeaderValueMatch,
}

/// What a header's value must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeaderValueMatch {
    /// This text.
    Exact(String),
    /// A regular expression over the whole value.
    Regex(Pattern),
}

/// The name of the user's own machine inside a bottle, and in `connect_to`.
pub const OWN_MACHINE: &str = "host";

/// `connect_to`: `host:port`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectTo {
    /// A name or an address; [`OWN_MACHINE`] is the user's own.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl std::fmt::Display for ConnectTo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// `websocket`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WebSocket {
    /// An upgrade passes.
    #[default]
    Allow,
    /// An upgrade is answered 426, so that the client falls back.
    Refuse,
}

/// `dlp`: which detectors run, and what an outbound match does. The scanner reads it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Dlp {
    /// `outbound_detectors`: absent means the default set, an empty list none.
    pub outbound_detectors: Option<Vec<OutboundDetector>>,
    /// `inbound_detectors`: the same for what comes back.
    pub inbound_detectors: Option<Vec<InboundDetector>>,
    /// `outbound_on_match`; absent means `supervise` on a manifest's route and `redact` on a provider's.
    pub outbound_on_match: Option<OnMatch>,
}

/// An entry of `dlp.outbound_detectors`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutboundDetector {
    /// Shapes of known vendors' credentials.
    TokenPatterns,
    /// Values that are known here, in every encoding.
    KnownSecrets,
    /// Text too random to be text; warns only.
    Entropy,
}

/// An entry of `dlp.inbound_detectors`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InboundDetector {
    /// Values that are known here, echoed.
    KnownSecrets,
    /// Phrases that try to take over the agent.
    NaiveInjectionDetection,
}

/// `dlp.outbound_on_match`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnMatch {
    /// Ask a user.
    Supervise,
    /// Rewrite and decide again.
    Redact,
    /// Refuse.
    Block,
}

impl Route {
    /// A route to `host` with every default: TLS on 443, inspected, every request, no credential.
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

    /// What an outbound match does on this route, its default filled in.
    #[must_use]
    pub fn on_match(&self) -> OnMatch {
        let default = if self.provider { OnMatch::Redact } else { OnMatch::Supervise };
        self.dlp.outbound_on_match.unwrap_or(default)
    }
}

impl AuthSource {
    /// The reference or the slot.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Reference(name) | Self::Slot(name) => name,
        }
    }
}

#[cfg(test)]
mod tests;
