//! What an agent may propose, and how an approved proposal is laid over the live routes.
//!
//! An agent may name hosts, `matches` and `git.fetch`. Credentials, ports, scanning, private addresses,
//! and any loosening of a route that carries a credential or belongs to a provider stay the user's.
//! That is checked when the proposal is read ([`parse`]) and held by construction when it is merged
//! ([`merge`]): everything a merged route does not take from the proposal it keeps from the route that
//! its hosts had before.

mod read;

pub use read::parse;

use crate::route::{HostPattern, RequestMatch, Route, RouteError, RouteTable, RoutesError, render_list};
use crate::yaml::Position;

/// Routes that an agent asks for. Everything in it was checked; nothing but these three can be in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal {
    routes: Vec<ProposedRoute>,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProposedRoute {
    /// Which hosts.
    pub host: HostPattern,
    /// Which requests; empty asks for every one.
    pub matches: Vec<RequestMatch>,
    /// Whether git clone and fetch are asked for.
    pub git_fetch: bool,
}

/// A proposal that cannot be made. The message goes back to the agent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProposalError {
    /// It is not in the vocabulary of routes.
    #[error(transparent)]
    Routes(#[from] RoutesError),
    /// It says something that only a user may say.
    #[error("route `{host}`: an agent may propose `host`, `matches` and `git.fetch` only; take out `{key}`")]
    NotYours {
        /// The route, as written.
        host: String,
        /// The key.
        key: &'static str,
        /// Where it stands.
        at: Option<Position>,
    },
    /// It asks for nothing.
    #[error("the proposal names no route; write `routes: [{{host: example.com}}]`")]
    Empty,
    /// It asks for too much at once.
    #[error("a proposal has at most {most} routes; this one has {count}")]
    TooMany {
        /// How many are allowed.
        most: usize,
        /// How many it has.
        count: usize,
    },
    /// It would loosen a route that carries a credential.
    #[error(
        "route `{host}`: the route `{own}` carries a credential; only the user can widen it, in the manifest"
    )]
    Credentialed {
        /// What was asked for.
        host: HostPattern,
        /// The route that has these hosts now.
        own: HostPattern,
    },
    /// It would loosen a provider's own route.
    #[error("route `{host}`: the route `{own}` belongs to the agent's provider; only the user can widen it")]
    ProviderOwned {
        /// What was asked for.
        host: HostPattern,
        /// The route that has these hosts now.
        own: HostPattern,
    },
    /// The routes it would lead to break a rule.
    #[error(transparent)]
    Broken(#[from] RouteError),
}

impl Proposal {
    /// The same in canonical words, which [`parse`] reads back.
    #[must_use]
    pub fn render(&self) -> String {
        render_list(&self.routes.iter().map(ProposedRoute::alone).collect::<Vec<_>>())
    }

    /// Hosts whose names have letters outside ASCII, as they are sent (`xn--…`, RFC 5891): such a name may look like
    /// another, however it is written.
    #[must_use]
    pub fn disguised(&self) -> Vec<String> {
        let names = self.routes.iter().map(|route| route.host.to_string());
        names.filter(|name| name.split('.').any(|label| label.starts_with("xn--"))).collect()
    }

    /// The routes asked for.
    #[must_use]
    pub fn routes(&self) -> &[ProposedRoute] {
        &self.routes
    }
}

/// `table` with what `proposal` asks for. Nothing is taken away from anyone: what is allowed already
/// stays as it is, and a proposal that asks for nothing new changes nothing.
///
/// # Errors
/// [`ProposalError`] when it would loosen a route that is the user's to loosen, or break a rule.
pub fn merge(table: &RouteTable, proposal: &Proposal) -> Result<RouteTable, ProposalError> {
    let mut merged = table.clone();
    for proposed in &proposal.routes {
        if let Some(route) = widened(&merged, proposed)? {
            merged = with(&merged, route)?;
        }
    }
    Ok(merged)
}

/// The route that gives `proposed` to its hosts, or `None` when they have it already.
fn widened(table: &RouteTable, proposed: &ProposedRoute) -> Result<Option<Route>, ProposalError> {
    let Some(own) = table.effective(&proposed.host) else {
        return Ok(Some(proposed.alone()));
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
    // A host that a wildcard covers gets an entry of its own, which hides the wildcard's; so it starts
    // from all that the wildcard says (scanning, ports, addresses), and only widens it.
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
    /// The route that it is where its hosts have none.
    #[must_use]
    pub fn alone(&self) -> Route {
        let mut route = Route::to(self.host.clone());
        route.matches.clone_from(&self.matches);
        route.git_fetch = self.git_fetch;
        route
    }

    /// Whether `own` allows all of it already.
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
