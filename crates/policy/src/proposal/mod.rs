//! Routes that an agent proposes, and how an approved proposal is merged into the active routes.
//!
//! An agent may propose hosts, `matches` and `git.fetch`. Only the user can change credentials, ports, scanning and
//! private addresses, or widen a route that has a credential or belongs to a provider. [`parse`] checks these limits.
//! [`merge`] guarantees them by construction: a merged route takes all other settings from the previous route of its
//! hosts. A merge removes no entry of `except`, with which the user denies requests.

mod read;

pub use read::parse;

use crate::route::{HostPattern, RequestMatch, Route, RouteError, RouteTable, RoutesError, render_list};
use bottle_text::yaml::Position;

/// The validated routes that an agent proposes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal {
    routes: Vec<ProposedRoute>,
}

/// One proposed route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProposedRoute {
    /// The hosts of the route.
    pub host: HostPattern,
    /// The allowed requests. An empty list allows every request.
    pub matches: Vec<RequestMatch>,
    /// Whether the route allows git clone and fetch.
    pub git_fetch: bool,
}

/// An invalid proposal. The agent receives the message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProposalError {
    /// The proposal is not a valid list of routes.
    #[error(transparent)]
    Routes(#[from] RoutesError),
    /// The proposal sets a key that only the user may set.
    #[error("route `{host}`: an agent may propose `host`, `matches` and `git.fetch` only; take out `{key}`")]
    NotYours {
        /// The route's host, as written.
        host: String,
        /// The key that only the user may set.
        key: &'static str,
        /// The position of the route that sets the key.
        at: Option<Position>,
    },
    /// The proposal asks for every name below a public suffix.
    #[error(
        "route `{host}`: anybody can have a name in `{host}`; name a host, or a domain of one owner. Only the user can \
         allow all of them, with `bottle allow`"
    )]
    PublicSuffix {
        /// The proposed hosts.
        host: HostPattern,
        /// The position of the route.
        at: Option<Position>,
    },
    /// The proposal contains no routes.
    #[error("the proposal names no route; write `routes: [{{host: example.com}}]`")]
    Empty,
    /// The proposal contains too many routes.
    #[error("a proposal has at most {most} routes; this one has {count}")]
    TooMany {
        /// The largest allowed number of routes.
        most: usize,
        /// The number of routes in the proposal.
        count: usize,
    },
    /// The proposal would widen a route that has a credential.
    #[error(
        "route `{host}`: the route `{own}` carries a credential; only the user can widen it, in the manifest"
    )]
    Credentialed {
        /// The proposed host.
        host: HostPattern,
        /// The host pattern of the current route, which has the credential.
        own: HostPattern,
    },
    /// The proposal would widen a provider route.
    #[error("route `{host}`: the route `{own}` belongs to the agent's provider; only the user can widen it")]
    ProviderOwned {
        /// The proposed host.
        host: HostPattern,
        /// The host pattern of the current route, which belongs to the provider.
        own: HostPattern,
    },
    /// The user denied the proposed requests.
    #[error(
        "route `{host}`: the user denied these requests; only the user can allow them, with `bottle allow`"
    )]
    Denied {
        /// The proposed host.
        host: HostPattern,
    },
    /// The merged routes would violate a rule.
    #[error(transparent)]
    Broken(#[from] RouteError),
}

impl Proposal {
    /// Renders the proposal in canonical form. [`parse`] accepts this form.
    #[must_use]
    pub fn render(&self) -> String {
        render_list(&self.to_routes())
    }

    /// Returns the proposed hosts with non-ASCII letters, in wire form (`xn--…`, RFC 5891). Such a name may
    /// look like another host's name.
    #[must_use]
    pub fn international_hosts(&self) -> Vec<String> {
        let names = self.routes.iter().map(|route| route.host.to_string());
        names.filter(|name| name.split('.').any(|label| label.starts_with("xn--"))).collect()
    }

    /// Converts the proposal to routes for hosts that have no route yet.
    #[must_use]
    pub fn to_routes(&self) -> Vec<Route> {
        self.routes.iter().map(ProposedRoute::to_route).collect()
    }

    /// The proposed routes.
    #[must_use]
    pub fn routes(&self) -> &[ProposedRoute] {
        &self.routes
    }
}

/// Merges `proposal` into `table`. The merge only adds permissions: requests that were allowed remain
/// allowed, and a proposal without new permissions changes nothing.
///
/// # Errors
/// [`ProposalError`] if the proposal would widen a route that only the user may widen, or violate a rule.
pub fn merge(table: &RouteTable, proposal: &Proposal) -> Result<RouteTable, ProposalError> {
    let mut merged = table.clone();
    for proposed in &proposal.routes {
        if let Some(route) = widened(&merged, proposed)? {
            merged = with(&merged, route)?;
        }
    }
    Ok(merged)
}

/// Returns the route that grants `proposed` to its hosts, or `None` if their current route already grants it.
fn widened(table: &RouteTable, proposed: &ProposedRoute) -> Result<Option<Route>, ProposalError> {
    let Some(own) = table.effective(&proposed.host) else {
        return Ok(Some(proposed.to_route()));
    };
    if proposed.excepted_by(own) {
        return Err(ProposalError::Denied { host: proposed.host.clone() });
    }
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
    // A host under a wildcard gets a separate route, which takes precedence over the wildcard's route. The new route
    // has all settings of the wildcard's route (scanning, ports, addresses), and allows only more requests.
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
    /// Returns the route for hosts that have no route yet.
    #[must_use]
    pub fn to_route(&self) -> Route {
        let mut route = Route::to(self.host.clone());
        route.matches.clone_from(&self.matches);
        route.git_fetch = self.git_fetch;
        route
    }

    /// Whether an `except` entry of `own`, the current route of the hosts, denies one of the proposed entries
    /// completely.
    fn excepted_by(&self, own: &Route) -> bool {
        let every = [RequestMatch::default()];
        let entries = if self.matches.is_empty() { &every[..] } else { &self.matches };
        entries.iter().any(|entry| {
            let bare = RequestMatch { headers: Vec::new(), ..entry.clone() };
            own.except.iter().any(|excepted| excepted.includes(&bare))
        })
    }

    /// Whether `own` already allows every proposed request, apart from the user's exceptions.
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
