//! The route table of a bottle, which finds routes by host.

use std::collections::HashMap;

use super::{HostPattern, Route, RouteError, validation};

/// The most routes of a bottle. A table with more routes is rejected, because it is a mistake or an attempt to
/// overwhelm the user who reads it.
const MAX_ROUTES: usize = 1_000;

/// Routes in declaration order. Each host pattern appears once, and each route satisfies every rule.
#[derive(Debug, Clone, Default)]
pub struct RouteTable {
    routes: Vec<Route>,
    exact: HashMap<String, usize>,
    wildcard: HashMap<String, usize>,
    forges: Vec<String>,
}

/// The result of a look-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found<'t> {
    /// The host has a route, which allows the port.
    Route(&'t Route),
    /// The host has a route, but the route does not allow the port.
    OtherPorts(&'t Route),
    /// The host has no route.
    Nothing,
}

impl RouteTable {
    /// Creates a table with `routes`.
    ///
    /// # Errors
    /// [`RouteError`] if a route violates a rule, a host appears twice, or there are too many routes.
    pub fn new(routes: Vec<Route>) -> Result<Self, RouteError> {
        let mut table = Self::default();
        for route in routes {
            validation::check_route(&route).map_err(|violation| violation.for_host(&route.host, None))?;
            table.push(route)?;
        }
        Ok(table)
    }

    /// Creates a table with `routes` and the forges of this table.
    ///
    /// # Errors
    /// The errors of [`RouteTable::new`].
    pub fn with_routes(&self, routes: Vec<Route>) -> Result<Self, RouteError> {
        Ok(Self::new(routes)?.with_forges(self.forges.clone()))
    }

    /// Sets the hosts (canonical) of the repositories behind the git gate.
    #[must_use]
    pub fn with_forges(mut self, mut forges: Vec<String>) -> Self {
        forges.sort();
        forges.dedup();
        self.forges = forges;
        self
    }

    /// Returns the hosts of the repositories behind the git gate, sorted.
    #[must_use]
    pub fn forges(&self) -> &[String] {
        &self.forges
    }

    /// Whether the API of `host` (canonical) may write to repositories behind the git gate. GitHub serves its
    /// API and uploads on separate hosts; other forges use the repositories' host.
    #[must_use]
    pub fn is_forge(&self, host: &str) -> bool {
        let forge = ["api.", "uploads."].iter().find_map(|part| host.strip_prefix(part));
        self.forges.iter().any(|known| known == host || Some(known.as_str()) == forge)
    }

    fn push(&mut self, route: Route) -> Result<(), RouteError> {
        let problem = |problem: &str| RouteError {
            host: route.host.to_string(),
            field: "host",
            problem: problem.to_owned(),
            at: None,
        };
        if self.routes.len() == MAX_ROUTES {
            return Err(problem(&format!("a bottle has at most {MAX_ROUTES} routes")));
        }
        let (index, key) = match &route.host {
            HostPattern::Exact(name) => (&mut self.exact, name),
            HostPattern::Wildcard(base) => (&mut self.wildcard, base),
        };
        if index.insert(key.clone(), self.routes.len()).is_some() {
            return Err(problem(
                "this host appears twice; write one entry with both conditions in its `matches`",
            ));
        }
        self.routes.push(route);
        Ok(())
    }

    /// Returns the routes in declaration order.
    #[must_use]
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }

    /// Returns the route of `host` (canonical): the exact route if there is one, otherwise the longest
    /// wildcard that matches.
    #[must_use]
    pub fn route_for(&self, host: &str) -> Option<&Route> {
        if let Some(&index) = self.exact.get(host) {
            return self.routes.get(index);
        }
        if host.starts_with('[') || self.wildcard.is_empty() {
            return None;
        }
        self.wildcard_above(host)
    }

    /// Returns the route of `host` for `port`. An exact route takes precedence over a wildcard, even if only
    /// the wildcard allows the port.
    #[must_use]
    pub fn find(&self, host: &str, port: u16) -> Found<'_> {
        match self.route_for(host) {
            Some(route) if route.ports.contains(&port) => Found::Route(route),
            Some(route) => Found::OtherPorts(route),
            None => Found::Nothing,
        }
    }

    /// Returns the route with exactly this pattern.
    #[must_use]
    pub fn declared(&self, pattern: &HostPattern) -> Option<&Route> {
        let index = match pattern {
            HostPattern::Exact(name) => self.exact.get(name),
            HostPattern::Wildcard(base) => self.wildcard.get(base),
        };
        index.and_then(|&index| self.routes.get(index))
    }

    /// Returns the route that applies to the hosts of `pattern`, except hosts with a more specific route.
    #[must_use]
    pub fn effective(&self, pattern: &HostPattern) -> Option<&Route> {
        match pattern {
            HostPattern::Exact(name) => self.route_for(name),
            HostPattern::Wildcard(base) => self.declared(pattern).or_else(|| self.wildcard_above(base)),
        }
    }

    fn wildcard_above(&self, host: &str) -> Option<&Route> {
        let mut rest = host;
        while let Some((_, parent)) = rest.split_once('.') {
            if let Some(&index) = self.wildcard.get(parent) {
                return self.routes.get(index);
            }
            rest = parent;
        }
        None
    }
}

impl PartialEq for RouteTable {
    fn eq(&self, other: &Self) -> bool {
        self.routes == other.routes && self.forges == other.forges
    }
}

impl Eq for RouteTable {}
