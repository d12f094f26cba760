//! Credentials bound to a host and header.
//!
//! Launch fixes the tuple of slot, host, scheme and header. Routes may change at run time, and an agent may
//! propose changes; [`check_moves`] prevents any of them from moving a slot to another host. [`strip`]
//! removes the agent's own credentials from requests.

mod header;
pub mod strip;

pub use header::{BadCredential, header_value};

use serde::{Deserialize, Serialize};

use crate::route::{Route, RouteTable};

/// The destination of a credential. It is fixed at launch, so that later routes cannot move a slot to another
/// host or header.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Binding {
    /// The name of the secret in routes. Not secret.
    pub slot: String,
    /// The route's host pattern, canonical (`api.example.com` or `*.example.com`).
    pub host: String,
    /// The header format.
    pub scheme: Scheme,
    /// The header name, lower case (`authorization` unless `scheme` is [`Scheme::Header`]).
    pub header: String,
}

/// `auth.scheme`: the header format of a credential.
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

/// A route that would send a credential elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Moved {
    /// The slot is bound to another host or header.
    #[error(
        "route `{to}` would move the credential `{slot}` from `{from}`; the launch fixes where a credential goes"
    )]
    Elsewhere {
        /// The slot.
        slot: String,
        /// The route that names it.
        to: String,
        /// The bound host and header.
        from: String,
    },
    /// No such slot is bound.
    #[error("route `{to}` names the credential `{slot}`, which this bottle was not started with")]
    Unknown {
        /// The slot.
        slot: String,
        /// The route that names it.
        to: String,
    },
}

impl std::fmt::Display for Binding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.host, self.header)
    }
}

/// The bindings of `table`: one for each route with `auth`, in order. A slot may serve several routes; each
/// has its own binding.
#[must_use]
pub fn bindings(table: &RouteTable) -> Vec<Binding> {
    table.routes().iter().filter_map(binding).collect()
}

/// The binding of `route`. In a manifest's form the slot is the secret reference.
#[must_use]
pub fn binding(route: &Route) -> Option<Binding> {
    route.auth.as_ref().map(|auth| Binding {
        slot: auth.source.name().to_owned(),
        host: route.host.to_string(),
        scheme: auth.scheme,
        header: auth.header.clone(),
    })
}

/// Checks that `table` sends every slot only to its binding in `fixed`. A route may drop its credential but
/// not change it.
///
/// # Errors
/// [`Moved`] for the first route that breaks this.
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
