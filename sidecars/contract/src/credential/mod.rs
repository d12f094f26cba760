//! A secret bound to its place.
//!
//! The tuple of slot, host, scheme and header is fixed at launch. Routes may change while a bottle runs,
//! and an agent may propose such changes; [`check_moves`] is what keeps any of them from carrying a slot
//! to another host. What the agent itself sends as a credential is taken out on the way ([`strip`]).

mod header;
pub mod strip;

pub use header::{BadCredential, header_value};

use serde::{Deserialize, Serialize};

use crate::route::{Route, RouteTable};

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

/// A route that would carry a credential elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Moved {
    /// The slot belongs to another place.
    #[error(
        "route `{to}` would take the credential `{slot}` away from `{from}`; a credential stays where the launch put it"
    )]
    Elsewhere {
        /// Which credential.
        slot: String,
        /// The route that wants it.
        to: String,
        /// Where it belongs, with its header.
        from: String,
    },
    /// Nobody bound such a slot.
    #[error("route `{to}` names the credential `{slot}`, which this bottle was not started with")]
    Unknown {
        /// Which credential.
        slot: String,
        /// The route that wants it.
        to: String,
    },
}

impl std::fmt::Display for Binding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.host, self.header)
    }
}

/// Where the credentials of `table` go: one binding for each route with `auth`, in their order. A slot
/// may serve several routes; each is a binding of its own.
#[must_use]
pub fn bindings(table: &RouteTable) -> Vec<Binding> {
    table.routes().iter().filter_map(binding).collect()
}

/// Where the credential of `route` goes. Of a route in a manifest's form the slot is its reference.
#[must_use]
pub fn binding(route: &Route) -> Option<Binding> {
    route.auth.as_ref().map(|auth| Binding {
        slot: auth.source.name().to_owned(),
        host: route.host.to_string(),
        scheme: auth.scheme,
        header: auth.header.clone(),
    })
}

/// Checks that `table` sends every slot where `fixed` says, and no slot anywhere else. A route may drop
/// its credential; it may not have another.
///
/// # Errors
/// [`Moved`] for the first route that would.
pub fn check_moves(fixed: &[Binding], table: &RouteTable) -> Result<(), Moved> {
    for wanted in bindings(table) {
        if fixed.contains(&wanted) {
            continue;
        }
        let Binding { slot, host: to, .. } = wanted;
        return Err(match fixed.iter().find(|binding| binding.slot == slot) {
            Some(binding) => Moved::Elsewhere { slot, to, from: binding.to_string() },
            None => Moved::Unknown { slot, to },
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
