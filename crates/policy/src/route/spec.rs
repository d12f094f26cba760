//! The serialized form of a route, for reading and writing.

use std::fmt;

use serde::de::value::SeqAccessDeserializer;
use serde::de::{Error, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{InboundDetector, InboundOnMatch, OnMatch, OutboundDetector, WebSocket};
use crate::credential::Scheme;
use bottle_text::yaml::Spanned;

/// One entry of `egress.routes` or of generated routes, as written. Each value has its position. An absent
/// key is `None`. [`RouteSpec::check`] converts the entry to a [`super::Route`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteSpec {
    pub(super) host: Spanned<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ports: Option<Spanned<Vec<u16>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) auth: Option<Spanned<AuthSpec>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pass_credentials: Option<Spanned<bool>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) matches: Option<Spanned<Vec<Spanned<MatchSpec>>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) except: Option<Spanned<Vec<Spanned<MatchSpec>>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) git: Option<Spanned<GitSpec>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) inspect: Option<Spanned<bool>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) private: Option<Spanned<bool>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) connect_to: Option<Spanned<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) websocket: Option<Spanned<WebSocket>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) dlp: Option<Spanned<DlpSpec>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) provider: Option<Spanned<bool>>,
    #[serde(skip_serializing)]
    pub(super) role: Option<Spanned<IgnoredAny>>,
}

/// The key `agent_provider.route`: how a bottle manifest narrows or extends the provider route. The key sets which
/// requests are allowed, how they are scanned, and where they are sent.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Narrowing {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) extend: Option<Spanned<bool>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) matches: Option<Spanned<Vec<Spanned<MatchSpec>>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) connect_to: Option<Spanned<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) dlp: Option<Spanned<DlpSpec>>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AuthSpec {
    pub(super) scheme: Scheme,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) header: Option<Spanned<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) token_ref: Option<Spanned<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) slot: Option<Spanned<String>>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MatchSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) paths: Option<Spanned<Vec<Spanned<PathSpec>>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) methods: Option<Spanned<Vec<Spanned<String>>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) headers: Option<Spanned<Vec<Spanned<HeaderSpec>>>>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PathSpec {
    /// The kind of the path condition. The default is prefix.
    #[serde(rename = "type", default)]
    pub(super) kind: PathKind,
    pub(super) value: Spanned<String>,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum PathKind {
    #[default]
    Prefix,
    Exact,
    Regex,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HeaderSpec {
    pub(super) name: Spanned<String>,
    /// The kind of the header condition. The default is exact, as in the Kubernetes Gateway API.
    #[serde(rename = "type", default)]
    pub(super) kind: HeaderKind,
    pub(super) value: Spanned<String>,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum HeaderKind {
    #[default]
    Exact,
    Regex,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GitSpec {
    pub(super) fetch: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DlpSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) outbound_detectors: Option<Detectors<OutboundDetector>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) inbound_detectors: Option<Detectors<InboundDetector>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) outbound_on_match: Option<OnMatch>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) inbound_on_match: Option<InboundOnMatch>,
}

/// `false`, or a list of detectors. An empty list means the same as `false`.
#[derive(Debug, Clone)]
pub(super) struct Detectors<T>(pub(super) Vec<T>);

impl<T: Serialize> Serialize for Detectors<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_empty() { serializer.serialize_bool(false) } else { self.0.serialize(serializer) }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Detectors<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Choice<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Choice<T> {
            type Value = Vec<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`false` or a list of detectors")
            }

            fn visit_bool<E: Error>(self, on: bool) -> Result<Vec<T>, E> {
                if on { Err(E::custom("write `false` or a list of detectors")) } else { Ok(Vec::new()) }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Vec<T>, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(list))
            }
        }
        deserializer.deserialize_any(Choice(std::marker::PhantomData)).map(Self)
    }
}
