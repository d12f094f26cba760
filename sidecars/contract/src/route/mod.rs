//! One host and what may be asked of it: the route vocabulary, its parser and its renderer.
//!
//! The same words stand in a bottle's `egress.routes` and in the generated `routes.yaml`, except that
//! `auth` names a secret reference in the first and a slot in the second.

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

/// `host`: exact, or any subdomain.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HostPattern {
    /// This host, canonical.
    Exact(String),
    /// Any subdomain of this canonical name, not the name itself.
    Wildcard(String),
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
    Regex(String),
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
    Regex(String),
}

/// `connect_to`: `host:port`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectTo {
    /// A name or an address; the word `host` is the person's own machine.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// `websocket`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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
    pub outbound_detectors: Option<Vec<String>>,
    /// `inbound_detectors`: the same for what comes back.
    pub inbound_detectors: Option<Vec<String>>,
    /// `outbound_on_match`; absent means `supervise` on a manifest's route and `redact` on a provider's.
    pub outbound_on_match: Option<OnMatch>,
}

/// `dlp.outbound_on_match`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnMatch {
    /// Ask a person.
    Supervise,
    /// Rewrite and decide again.
    Redact,
    /// Refuse.
    Block,
}
