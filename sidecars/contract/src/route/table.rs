//! Every route of a bottle, and which one a host has.

use std::collections::HashMap;

use super::{HostPattern, Route, RouteError, rules};

/// The most routes a bottle may have; more is a mistake or an attack on whoever reads them.
const MAX_ROUTES: usize = 1_000;

/// Routes in the order they were declared, each host pattern once, each keeping every rule.
#[derive(Debug, Clone, Default)]
pub struct RouteTable {
    routes: Vec<Route>,
    exact: HashMap<String, usize>,
    wildcard: HashMap<String, usize>,
    forges: Vec<String>,
}

/// What a look-up found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found<'t> {
    /// The host's route, which serves the port.
    Route(&'t Route),
    /// The host's route, which does not serve the port.
    OtherPorts(&'t Route),
    /// No route.
    Nothing,
}

impl RouteTable {
    /// A table of these routes.
    ///
    /// # Errors
    /// [`RouteError`] for a route that breaks a rule, a host that stands twice, or too many of them.
    pub fn new(routes: Vec<Route>) -> Result<Self, RouteError> {
        let mut table = Self::default();
        for route in routes {
            rules::keep(&route).map_err(|broken| broken.of(&route.host, None))?;
            table.push(route)?;
        }
        Ok(table)
    }

    /// A table of these routes in the same bottle.
    ///
    /// # Errors
    /// As [`RouteTable::new`].
    pub fn with_routes(&self, routes: Vec<Route>) -> Result<Self, RouteError> {
        Ok(Self::new(routes)?.with_forges(self.forges.clone()))
    }

    /// The same, in a bottle whose git gate has repositories at these hosts (canonical).
    #[must_use]
    pub fn with_forges(mut self, mut forges: Vec<String>) -> Self {
        forges.sort();
        forges.dedup();
        self.forges = forges;
        self
    }

    /// The hosts of the git gate's repositories, sorted.
    #[must_use]
    pub fn forges(&self) -> &[String] {
        &self.forges
    }

    /// Whether repositories of the git gate could be written through the API of `host` (canonical) as well. GitHub
    /// has its API and its uploads at hosts of their own; others have it at the repositories' host.
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
                "this host stands twice; write one entry with both conditions in its `matches`",
            ));
        }
        self.routes.push(route);
        Ok(())
    }

    /// The routes in their order.
    #[must_use]
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }

    /// The route of `host` (canonical): its own, else that of the longest wildcard.
    #[must_use]
    pub fn route_of(&self, host: &str) -> Option<&Route> {
        if let Some(&index) = self.exact.get(host) {
            return self.routes.get(index);
        }
        if host.starts_with('[') || self.wildcard.is_empty() {
            return None;
        }
        self.wildcard_above(host)
    }

    /// The route of `host` and `port`; a host's own route hides a wildcard's, also where its ports differ.
    #[must_use]
    pub fn find(&self, host: &str, port: u16) -> Found<'_> {
        match self.route_of(host) {
            Some(route) if route.ports.contains(&port) => Found::Route(route),
            Some(route) => Found::OtherPorts(route),
            None => Found::Nothing,
        }
    }

    /// The route whose pattern is exactly this one.
    #[must_use]
    pub fn declared(&self, pattern: &HostPattern) -> Option<&Route> {
        let index = match pattern {
            HostPattern::Exact(name) => self.exact.get(name),
            HostPattern::Wildcard(base) => self.wildcard.get(base),
        };
        index.and_then(|&index| self.routes.get(index))
    }

    /// The route that hosts of `pattern` have where nothing more specific is declared.
    #[must_use]
    pub fn effective(&self, pattern: &HostPattern) -> Option<&Route> {
        match pattern {
            HostPattern::Exact(name) => self.route_of(name),
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
