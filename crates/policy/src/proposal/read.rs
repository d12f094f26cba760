//! Parses a proposal: a list of routes, or a map with the key `routes`, in JSON or YAML.

use std::fmt;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::{Proposal, ProposalError, ProposedRoute};
use crate::route::{Form, RouteSpec, RoutesError};
use bottle_text::yaml::{self, Spanned};

/// The most routes in a proposal. A longer proposal is rejected, because a user has to read it.
const MAX_PROPOSED: usize = 50;

/// The keys except `host` that an agent may set.
const OPEN_KEYS: [&str; 2] = ["matches", "git"];

/// Parses and validates a proposal. Because JSON is YAML, one parser accepts both.
///
/// # Errors
/// [`ProposalError`], with a message for the agent that has to correct the proposal.
pub fn parse(text: &str) -> Result<Proposal, ProposalError> {
    let Written(specs) = yaml::from_str(text).map_err(RoutesError::from)?;
    if specs.is_empty() {
        return Err(ProposalError::Empty);
    }
    if specs.len() > MAX_PROPOSED {
        return Err(ProposalError::TooMany { most: MAX_PROPOSED, count: specs.len() });
    }
    let routes = specs.iter().map(proposed).collect::<Result<_, _>>()?;
    Ok(Proposal { routes })
}

fn proposed(written: &Spanned<RouteSpec>) -> Result<ProposedRoute, ProposalError> {
    let spec = &written.value;
    if let Some(key) = spec.keys().find(|key| !OPEN_KEYS.contains(key)) {
        let host = spec.host().value.escape_debug().to_string();
        return Err(ProposalError::NotYours { host, key, at: Some(written.at) });
    }
    let route = spec.check(Form::Manifest).map_err(RoutesError::from)?;
    if route.host.spans_owners() {
        return Err(ProposalError::PublicSuffix { host: route.host, at: Some(written.at) });
    }
    Ok(ProposedRoute { host: route.host, matches: route.matches, git_fetch: route.git_fetch })
}

/// The routes of a proposal, written as a list or as a map with the key `routes`. This is a custom type, because an
/// untagged enum would lose the positions.
struct Written(Vec<Spanned<RouteSpec>>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    routes: Vec<Spanned<RouteSpec>>,
}

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EitherForm;
        impl<'de> Visitor<'de> for EitherForm {
            type Value = Written;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of routes, or a map with `routes`")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Written, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(list)).map(Written)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Written, A::Error> {
                Document::deserialize(MapAccessDeserializer::new(map))
                    .map(|document| Written(document.routes))
            }
        }
        deserializer.deserialize_any(EitherForm)
    }
}
