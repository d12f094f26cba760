//! Derives routes that would allow a bottle's denied requests, and little else.
//!
//! ```text
//! the proxy's log ─► journal ─► Refused ─┐                 ┌─► routes, as a proposal
//!                                       ├─► Learning ─────┼─► rules: where the routes allow more than was requested
//!                  the current routes ──┘                 └─► left out: requests that the routes do not allow, and why
//! ```
//! The proposed routes contain the hosts, methods and paths that were requested. If more than [`FEW`] paths of one
//! directory were requested with the same methods, the directory replaces those paths. If more than `MAX_ENTRIES` paths
//! and directories remain, every path of the host is allowed for these methods. For a denied `git clone`, the routes
//! allow both of its requests, `info/refs` and `git-upload-pack`. The agent controls the requests. Their number in
//! memory is therefore limited, and the routes are validated like a proposal of the agent.

mod folding;
mod journal;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use bottle_backend::SIDECAR_LOGS;
use bottle_policy::canonical;
use bottle_policy::decide::Reason;
use bottle_policy::names::HTTPS_PORT;
use bottle_policy::proposal::{self, Proposal};
use bottle_policy::route::RouteTable;
use bottle_protocol::queue::MAX_TEXT;
use bottle_protocol::session::bundle::Routes;
use bottle_scan::MASK;
use serde_json::{Value, json};

use crate::routes;

/// The maximum number of paths of one directory that a route lists individually. For more paths, the route
/// allows the directory.
pub const FEW: usize = 8;

/// The maximum number of hosts in one proposal, because the user has to read the whole proposal. Hosts with fewer
/// requests are left out.
const MAX_ROUTES: usize = 50;

/// The maximum number of paths and directories in one entry of a route. If there are more, the entry allows every path
/// of the host.
const MAX_ENTRIES: usize = 50;

/// Memory limits for one bottle: the number of hosts, of paths for one host, and of reasons for omitted requests.
/// Requests for further hosts and paths are omitted; further reasons are not reported.
const MAX_HOSTS: usize = 1_000;
const MAX_PATHS: usize = 5_000;
const MAX_LEFT_OUT: usize = 200;

/// A denied request, as read from the proxy's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The requested host.
    pub host: String,
    /// The requested port.
    pub port: u16,
    /// The requested method. Empty if unknown.
    pub method: String,
    /// The requested path without its query. Empty if unknown.
    pub path: String,
    /// The reason of the denial.
    pub reason: Reason,
}

/// The result of learning routes from denied requests.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Learned {
    /// Routes that would allow the denied requests. `None` if no new route would allow any of them.
    pub routes: Option<Proposal>,
    /// The hosts in `routes`, each with its number of requests, most requested first.
    pub hosts: Vec<(String, usize)>,
    /// The points in which `routes` allow more than was requested. Each point is a sentence.
    pub rules: Vec<String>,
    /// Requests that the routes do not allow: the host, the number of requests, and the reason.
    pub left_out: Vec<(String, usize, String)>,
}

/// Returns the routes that would allow the denied requests of the bottle whose state is in `directory`, and the
/// bottle's current routes. `None` if the current routes are unknown.
///
/// # Errors
/// Fails if the bottle's log or its routes exist but cannot be read.
pub fn of_bottle(directory: &Path) -> io::Result<Option<(Learned, Routes)>> {
    let Some(now) = routes::read(directory)? else { return Ok(None) };
    let learned = journal::read(&directory.join(SIDECAR_LOGS))?.learned(&now.table);
    Ok(Some((learned, now)))
}

/// Collects denied requests, from which [`Learning::learned`] derives routes.
#[derive(Debug, Default)]
pub struct Learning {
    hosts: BTreeMap<String, HostRequests>,
    left_out: BTreeMap<(String, String), usize>,
}

/// The requests to one host.
#[derive(Debug, Default)]
struct HostRequests {
    times: usize,
    /// The requested paths, each with its methods.
    paths: BTreeMap<String, BTreeSet<String>>,
    /// The repositories that the agent tried to clone, as path prefixes.
    clones: BTreeSet<String>,
}

impl Learning {
    /// Adds a denied request.
    pub fn add(&mut self, refused: &Refused) {
        if let Err(why) = self.record(refused) {
            let key = (refused.host.clone(), why);
            if self.left_out.len() < MAX_LEFT_OUT || self.left_out.contains_key(&key) {
                *self.left_out.entry(key).or_default() += 1;
            }
        }
    }

    fn record(&mut self, refused: &Refused) -> Result<(), String> {
        let Refused { host, port, method, path, reason } = refused;
        match reason {
            // The host has a route, which already allows its ports. Therefore the port is not checked.
            Reason::RequestNotAllowed | Reason::GitNotAllowed => {}
            Reason::HostNotAllowed if *port == HTTPS_PORT => {}
            Reason::HostNotAllowed => {
                return Err(format!("only the user can allow port {port}, in the bottle's file"));
            }
            other => return Err(other.description().to_owned()),
        }
        if method.is_empty() || path.contains(MASK) {
            return Err("the log does not have the exact request".to_owned());
        }
        let target = canonical::target(path);
        if let Some(why) = target.path.ambiguous {
            return Err(format!("the path {}", why.as_str()));
        }
        let path = target.path.text.into_owned();
        if self.hosts.len() >= MAX_HOSTS && !self.hosts.contains_key(host) {
            return Err(format!("more than {MAX_HOSTS} hosts were requested"));
        }
        let wanted = self.hosts.entry(host.clone()).or_default();
        wanted.times += 1;
        let repository = path.strip_suffix("/info/refs").or_else(|| path.strip_suffix("/git-upload-pack"));
        if wanted.clones.len() + wanted.paths.len() >= MAX_PATHS && !wanted.paths.contains_key(&path) {
            return Err(format!("more than {MAX_PATHS} of its paths were requested"));
        }
        if let Some(repository) = repository {
            wanted.clones.insert(repository.to_owned());
        } else {
            wanted.paths.entry(path).or_default().insert(method.to_ascii_uppercase());
        }
        Ok(())
    }

    /// Returns routes that allow the collected requests, except those that the current routes `now` already
    /// allow.
    #[must_use]
    pub fn learned(self, now: &RouteTable) -> Learned {
        let left_out = self.left_out.into_iter().map(|((host, why), times)| (host, times, why));
        let mut learned = Learned { left_out: left_out.collect(), ..Learned::default() };
        let mut hosts: Vec<(String, HostRequests)> = self.hosts.into_iter().collect();
        hosts.sort_by_key(|(_, wanted)| std::cmp::Reverse(wanted.times));
        let mut routes: Vec<(String, usize, Value)> = Vec::new();
        for (host, wanted) in hosts {
            let times = wanted.times;
            if routes.len() == MAX_ROUTES {
                let why =
                    format!("a proposal has {MAX_ROUTES} hosts at most; others were requested more often");
                learned.left_out.push((host, times, why));
                continue;
            }
            let (route, rules) = route(&host, &wanted);
            match adds_permissions(now, &route) {
                Ok(true) => {
                    learned.rules.extend(rules);
                    routes.push((host, times, route));
                }
                // The current routes already allow everything that this route allows.
                Ok(false) => {}
                Err(why) => learned.left_out.push((host, times, why)),
            }
        }
        learned.propose(routes);
        learned
    }
}

impl Learned {
    /// Sets the proposal and its hosts. Moves the last routes to `left_out`, one after the other, until the proposal is
    /// short enough.
    fn propose(&mut self, mut routes: Vec<(String, usize, Value)>) {
        while !routes.is_empty() {
            let list: Value = routes.iter().map(|(_, _, route)| route.clone()).collect();
            match proposal::parse(&list.to_string()) {
                Ok(proposal) if proposal.render().len() <= MAX_TEXT => {
                    self.routes = Some(proposal);
                    break;
                }
                _ => {
                    let (host, times, _) = routes.pop().unwrap_or_default();
                    self.left_out.push((host, times, "the proposal would be too long".to_owned()));
                }
            }
        }
        self.hosts = routes.into_iter().map(|(host, times, _)| (host, times)).collect();
    }
}

/// Whether `route` would allow anything that the current routes `now` do not allow. An error says why `route`
/// is invalid.
fn adds_permissions(now: &RouteTable, route: &Value) -> Result<bool, String> {
    let alone = proposal::parse(&json!([route]).to_string()).map_err(|error| error.to_string())?;
    let merged = proposal::merge(now, &alone).map_err(|error| error.to_string())?;
    Ok(merged != *now)
}

/// Returns the route that allows the requests `wanted` to `host`, and the points in which the route allows more than
/// was requested.
fn route(host: &str, wanted: &HostRequests) -> (Value, Vec<String>) {
    let mut rules = Vec::new();
    let mut matches = Vec::new();
    let mut by_methods: BTreeMap<&BTreeSet<String>, Vec<&str>> = BTreeMap::new();
    for (path, methods) in &wanted.paths {
        by_methods.entry(methods).or_default().push(path);
    }
    for (methods, paths) in by_methods {
        let words = methods.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let folded = folding::fold(&paths, FEW);
        for (directory, count) in &folded.directories {
            rules.push(format!(
                "{host}: {count} paths in {directory}/ requested with {words} became that directory"
            ));
        }
        let exact = folded.paths.iter().map(|path| json!({"type": "exact", "value": path}));
        let below =
            folded.directories.iter().map(|(directory, _)| json!({"type": "prefix", "value": directory}));
        let paths: Vec<Value> = below.chain(exact).collect();
        if paths.len() > MAX_ENTRIES {
            rules.push(format!(
                "{host}: {} top-level paths requested with {words} became the whole host",
                paths.len()
            ));
            matches.push(json!({"methods": methods}));
        } else {
            matches.push(json!({"methods": methods, "paths": paths}));
        }
    }
    for repository in &wanted.clones {
        rules.push(format!("{host}: an attempted clone of {repository} may complete"));
        let path = |name: &str| json!([{"type": "exact", "value": format!("{repository}/{name}")}]);
        matches.push(json!({"methods": ["GET"], "paths": path("info/refs")}));
        matches.push(json!({"methods": ["POST"], "paths": path("git-upload-pack")}));
    }
    let mut route = json!({"host": host, "matches": matches});
    if !wanted.clones.is_empty() {
        route["git"] = json!({"fetch": true});
    }
    (route, rules)
}

#[cfg(test)]
mod tests;
