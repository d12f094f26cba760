//! A secret bound to its place.

use serde::{Deserialize, Serialize};

/// Where a credential may go: fixed at launch, so that no later routes can move a slot to another host
/// or another header.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Binding {
    /// The name that routes use for the secret. Not secret.
    pub slot: String,
    /// The route's host pattern, canonical (`api.example.com` or `*.example.com`).
    pub host: String,
    /// How it is put into the header.
    pub scheme: Scheme,
    /// The header it goes into, lower case (`authorization` unless `scheme` is [`Scheme::Header`]).
    pub header: String,
}

/// `auth.scheme`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Scheme {
    /// `Authorization: Bearer VALUE`.
    Bearer,
    /// `Authorization: token VALUE`.
    #[serde(rename = "token")]
    Token,
    /// `Authorization: Basic base64(VALUE)`; the value is `user:password`.
    #[serde(rename = "basic")]
    Basic,
    /// The value alone, in the header that `auth.header` names.
    #[serde(rename = "header")]
    Header,
}
