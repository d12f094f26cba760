//! Route proposals of an agent, and how an approved proposal is merged into the live routes.
//!
//! An agent may propose hosts, `matches` and `git.fetch`. Only the user can change credentials, ports,
//! scanning, private addresses, or widen a route that carries a credential or belongs to a provider.
//! [`parse`] checks this, and [`merge`] guarantees it by construction: a merged route takes everything else
//! from the route that its hosts had before.

mod read;

pub use read::parse;

use crate::route::{HostPattern, RequestMatch, Route, RouteError, RouteTable, RoutesError, render_list};
use crate::yaml::Position;

/// The validated routes that an agent asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal {
    routes: Vec<ProposedRoute>,
}

/// One proposed route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProposedRoute {
    /// The hosts.
    pub host: HostPattern,
    /// The requests; empty asks for every request.
    pub matches: Vec<RequestMatch>,
    /// Whether it asks for git clone and fetch.
    pub git_fetch: bool,
}

/// An invalid proposal. The message goes back to the agent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProposalError {
    /// It is not a valid list of routes.
    #[error(transparent)]
    Routes(#[from] RoutesError),
    /// It sets a key that only the user may set.
    #[error("route `{host}`: an agent may propose `host`, `matches` and `git.fetch` only; take out `{key}`")]
    NotYours {
        /// The route's host, as written.
        host: String,
        /// The key.
        key: &'static str,
        /// The key's position.
        at: Option<Position>,
    },
    /// It has no routes.
    #[error("the proposal names no route; write `routes: [{{host: example.com}}]`")]
    Empty,
    /// It has too many routes.
    #[error("a proposal has at most {most} routes; this one has {count}")]
    TooMany {
        /// The limit.
        most: usize,
        /// The number of its routes.
        count: usize,
    },
    /// It would widen a route that carries a credential.
    #[error(
        "route `{host}`: the route `{own}` carries a credential; only the user can widen it, in the manifest"
    )]
    Credentialed {
        /// The proposed host.
        host: HostPattern,
        /// The current route of these hosts.
        own: HostPattern,
    },
    /// It would widen a provider route.
    #[error("route `{host}`: the route `{own}` belongs to the agent's provider; only the user can widen it")]
    ProviderOwned {
        /// The proposed host.
        host: HostPattern,
        /// The current route of these hosts.
        own: HostPattern,
    },
    /// The merged routes would violate a rule.
    #[error(transparent)]
    Broken(#[from] RouteError),
}

impl Proposal {
    /// Renders it in canonical form, which [`parse`] reads back.
    #[must_use]
    pub fn render(&self) -> String {
        render_list(&self.routes.iter().map(ProposedRoute::to_route).collect::<Vec<_>>())
    }

    /// The hosts with non-ASCII letters, in wire form (`xn--…`, RFC 5891). Such a name may look like another
    /// one.
    #[must_use]
    pub fn international_hosts(&self) -> Vec<String> {
        let names = self.routes.iter().map(|route| route.host.to_string());
        names.filter(|name| name.split('.').any(|label| label.starts_with("xn--"))).collect()
    }

    /// The proposed routes.
    #[must_use]
    pub fn routes(&self) -> &[ProposedRoute] {
        &self.routes
    }
}

/// Merges `proposal` into `table`. It only adds permissions: allowed requests stay allowed, and a proposal
/// that adds nothing changes nothing.
///
/// # Errors
/// [`ProposalError`] if it would widen a route that only the user may widen, or violate a rule.
pub fn merge(table: &RouteTable, proposal: &Proposal) -> Result<RouteTable, ProposalError> {
    let mut merged = table.clone();
    for proposed in &proposal.routes {
        if let Some(route) = widened(&merged, proposed)? {
            merged = with(&merged, route)?;
        }
    }
    Ok(merged)
}

/// The route that grants `proposed` to its hosts, or `None` if they have it already.
fn widened(table: &RouteTable, proposed: &ProposedRoute) -> Result<Option<Route>, ProposalError> {
    let Some(own) = table.effective(&proposed.host) else {
        return Ok(Some(proposed.to_route()));
    };
    if proposed.within(own) {
        return Ok(None);
    }
    let (host, own_host) = (proposed.host.clone(), own.host.clone());
    if own.auth.is_some() {
        return Err(ProposalError::Credentialed { host, own: own_host });
    }
    if own.provider {
        return Err(ProposalError::ProviderOwned { host, own: own_host });
    }
    // A host under a wildcard gets an entry of its own, which hides the wildcard's. The entry starts from all
    // settings of the wildcard (scanning, ports, addresses) and only widens it.
    let mut route = Route { host, git_fetch: own.git_fetch || proposed.git_fetch, ..own.clone() };
    if proposed.matches.is_empty() {
        route.matches.clear();
    } else if !route.matches.is_empty() {
        for entry in &proposed.matches {
            if !route.matches.iter().any(|own| own.includes(entry)) {
                route.matches.push(entry.clone());
            }
        }
    }
    Ok(Some(route))
}

impl ProposedRoute {
    /// The route for hosts without a current route.
    #[must_use]
    pub fn to_route(&self) -> Route {
        let mut route = Route::to(self.host.clone());
        route.matches.clone_from(&self.matches);
        route.git_fetch = self.git_fetch;
        route
    }

    /// Whether `own` already allows all of it.
    fn within(&self, own: &Route) -> bool {
        let requests = own.matches.is_empty()
            || (!self.matches.is_empty()
                && self.matches.iter().all(|entry| own.matches.iter().any(|known| known.includes(entry))));
        !own.inspect || (requests && (own.git_fetch || !self.git_fetch))
    }
}

fn with(table: &RouteTable, route: Route) -> Result<RouteTable, RouteError> {
    let mut routes = table.routes().to_vec();
    match routes.iter_mut().find(|known| known.host == route.host) {
        Some(known) => *known = route,
        None => routes.push(route),
    }
    table.with_routes(routes)
}

#[cfg(test)]
mod tests;
