//! Credentials, each bound to one host and header.
//!
//! The launch fixes the slot, host, scheme and header of each credential. Routes can change at run time, and an agent
//! can propose changes; [`check_moves`] prevents any change from moving a slot to another host. [`strip`] removes the
//! agent's own credentials from requests. [`exempt`] defines where credentials are not reported as findings.

pub mod exempt;
mod header;
pub mod strip;

pub use header::{BadCredential, header_value};

use serde::{Deserialize, Serialize};

use crate::route::{Route, RouteTable};

/// Where a credential is sent. The launch fixes the binding, so that later routes cannot send the credential to another
/// host or in another header.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Binding {
    /// The secret's name in routes. The name itself is not secret.
    pub slot: String,
    /// The route's host pattern in canonical form (`api.example.com` or `*.example.com`).
    pub host: String,
    /// The header format.
    pub scheme: Scheme,
    /// The header name in lower case (`authorization` unless `scheme` is [`Scheme::Header`]).
    pub header: String,
}

/// The key `auth.scheme`: the header format of a credential.
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
    /// The plain value, in the header that `auth.header` names.
    #[serde(rename = "header")]
    Header,
}

/// Why a route must not use a credential.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Moved {
    /// The slot is bound to another host or header.
    #[error(
        "route `{to}` would move the credential `{slot}` from `{from}`; the launch fixes where a credential goes"
    )]
    Elsewhere {
        /// The slot of the credential.
        slot: String,
        /// The route that uses the slot.
        to: String,
        /// The host and header that the slot is bound to.
        from: String,
    },
    /// The bottle has no such slot.
    #[error("route `{to}` names the credential `{slot}`, which this bottle was not started with")]
    Unknown {
        /// The slot of the credential.
        slot: String,
        /// The route that uses the slot.
        to: String,
    },
}

impl std::fmt::Display for Binding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.host, self.header)
    }
}

/// Returns the bindings of `table`: one for each route with `auth`, in order. A slot may serve several
/// routes, each with a separate binding.
#[must_use]
pub fn bindings(table: &RouteTable) -> Vec<Binding> {
    table.routes().iter().filter_map(binding).collect()
}

/// Returns the binding of `route`. In a manifest's routes, the slot is the secret reference.
#[must_use]
pub fn binding(route: &Route) -> Option<Binding> {
    route.auth.as_ref().map(|auth| Binding {
        slot: auth.source.name().to_owned(),
        host: route.host.to_string(),
        scheme: auth.scheme,
        header: auth.header.clone(),
    })
}

/// Checks that the binding of every route with a credential in `table` is one of `fixed`, the bindings of the launch. A
/// route may drop its credential, but may not change it.
///
/// # Errors
/// [`Moved`] for the first route whose binding is not in `fixed`.
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
