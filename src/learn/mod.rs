//! What a bottle was refused → the smallest routes that would have let it through.
//!
//! ```text
//! the proxy's log ─► journal ─► Refused ─┐                 ┌─► routes, in the words of proposals
//!                                       ├─► Learning ─────┼─► rules: where they say more than was asked
//!                  the routes of now ───┘                 └─► left out: what no agent may be given, and why
//! ```
//! Hosts and methods are those that were asked for. Paths are too, until more than [`FEW`] of one folder were asked
//! for in the same way: then it is the folder. What is said to be asked for comes from inside the bottle: it is
//! bounded, and read by the parser that reads an agent's own proposals.

mod folding;
mod journal;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use bottle_contract::canonical;
use bottle_contract::decide::Reason;
use bottle_contract::names::HTTPS_PORT;
use bottle_contract::proposal::{self, Proposal};
use bottle_contract::queue::MAX_TEXT;
use bottle_contract::route::{Form, RouteTable, parse_routes};
use bottle_contract::session::bundle::Routes;
use bottle_scan::MASK;
use serde_json::{Value, json};

use crate::backend::SIDECAR_LOGS;
use crate::instance::routes;

/// So many paths of a folder are named one by one.
pub const FEW: usize = 8;

/// Hosts of one proposal. A user has to read it.
const MOST_HOSTS: usize = 50;

/// Entries and paths of one route.
const MOST_ENTRIES: usize = 50;

/// What is remembered of one bottle: hosts, paths of one host, and different things that are left out.
const HOSTS: usize = 1_000;
const PATHS: usize = 5_000;
const LEFT_OUT: usize = 200;

/// A request that was refused, as the log has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The host.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The method; empty when none was read.
    pub method: String,
    /// The path without its query; empty when none was read.
    pub path: String,
    /// Why it was refused.
    pub reason: Reason,
}

/// What was learned.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Learned {
    /// What would have let it through; none when nothing was refused that routes can change.
    pub routes: Option<Proposal>,
    /// The hosts in it, with how often each was asked for; the most often asked for first.
    pub hosts: Vec<(String, usize)>,
    /// Where the routes say more than was asked, in sentences.
    pub rules: Vec<String>,
    /// What is not in them: what it is, how often it was asked for, and why not.
    pub left_out: Vec<(String, usize, String)>,
}

/// What the bottle in `folder` was refused, laid over the routes that it went by; nothing where those are not known.
///
/// # Errors
/// When its log or its routes are there and cannot be read.
pub fn of_bottle(folder: &Path) -> io::Result<Option<(Learned, Routes)>> {
    let Some(now) = routes::read(folder)? else { return Ok(None) };
    let table = parse_routes(&now.yaml, Form::Runtime).map_err(io::Error::other)?;
    let learned = journal::read(&folder.join(SIDECAR_LOGS))?.learned(&table);
    Ok(Some((learned, now)))
}

/// Learns from one request after the other.
#[derive(Debug, Default)]
pub struct Learning {
    hosts: BTreeMap<String, Wanted>,
    left_out: BTreeMap<(String, String), usize>,
}

/// What was wanted of a host.
#[derive(Debug, Default)]
struct Wanted {
    times: usize,
    /// With the methods of each.
    paths: BTreeMap<String, BTreeSet<String>>,
    /// Repositories that were to be cloned, by the beginning of their paths.
    clones: BTreeSet<String>,
}

impl Learning {
    /// Takes a refused request in.
    pub fn add(&mut self, refused: &Refused) {
        if let Err(why) = self.wanted(refused) {
            let key = (refused.host.clone(), why);
            if self.left_out.len() < LEFT_OUT || self.left_out.contains_key(&key) {
                *self.left_out.entry(key).or_default() += 1;
            }
        }
    }

    fn wanted(&mut self, refused: &Refused) -> Result<(), String> {
        let Refused { host, port, method, path, reason } = refused;
        match reason {
            // The route that it has names its ports.
            Reason::RequestNotAllowed | Reason::GitNotAllowed => {}
            Reason::HostNotAllowed if *port == HTTPS_PORT => {}
            Reason::HostNotAllowed => {
                return Err(format!("port {port} is the user's to open, in the bottle's file"));
            }
            other => return Err(other.description().to_owned()),
        }
        if method.is_empty() || path.contains(MASK) {
            return Err("the log does not say what exactly was asked for".to_owned());
        }
        let target = canonical::target(path);
        if let Some(why) = target.path.ambiguous {
            return Err(format!("the path {}", why.as_str()));
        }
        let path = target.path.text.into_owned();
        if self.hosts.len() >= HOSTS && !self.hosts.contains_key(host) {
            return Err(format!("more than {HOSTS} hosts were asked for"));
        }
        let wanted = self.hosts.entry(host.clone()).or_default();
        wanted.times += 1;
        let repository = path.strip_suffix("/info/refs").or_else(|| path.strip_suffix("/git-upload-pack"));
        if wanted.clones.len() + wanted.paths.len() >= PATHS && !wanted.paths.contains_key(&path) {
            return Err(format!("more than {PATHS} of its paths were asked for"));
        }
        if let Some(repository) = repository {
            wanted.clones.insert(repository.to_owned());
        } else {
            wanted.paths.entry(path).or_default().insert(method.to_ascii_uppercase());
        }
        Ok(())
    }

    /// What comes of it, laid over the routes of `now`.
    #[must_use]
    pub fn learned(self, now: &RouteTable) -> Learned {
        let left_out = self.left_out.into_iter().map(|((host, why), times)| (host, times, why));
        let mut learned = Learned { left_out: left_out.collect(), ..Learned::default() };
        let mut hosts: Vec<(String, Wanted)> = self.hosts.into_iter().collect();
        hosts.sort_by_key(|(_, wanted)| std::cmp::Reverse(wanted.times));
        let mut routes: Vec<(String, usize, Value)> = Vec::new();
        for (host, wanted) in hosts {
            let times = wanted.times;
            if routes.len() == MOST_HOSTS {
                let why =
                    format!("a proposal has {MOST_HOSTS} hosts at most; these were asked for more often");
                learned.left_out.push((host, times, why));
                continue;
            }
            let (route, rules) = route(&host, &wanted);
            match fits(now, &route) {
                Ok(true) => {
                    learned.rules.extend(rules);
                    routes.push((host, times, route));
                }
                // Allowed meanwhile.
                Ok(false) => {}
                Err(why) => learned.left_out.push((host, times, why)),
            }
        }
        learned.propose(routes);
        learned
    }
}

impl Learned {
    /// Of as many routes as a user reads at once.
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

/// Whether a route can be proposed, and would allow anything new.
fn fits(now: &RouteTable, route: &Value) -> Result<bool, String> {
    let alone = proposal::parse(&json!([route]).to_string()).map_err(|error| error.to_string())?;
    let merged = proposal::merge(now, &alone).map_err(|error| error.to_string())?;
    Ok(merged != *now)
}

/// The route to a host, and where it says more than was asked.
fn route(host: &str, wanted: &Wanted) -> (Value, Vec<String>) {
    let mut rules = Vec::new();
    let mut matches = Vec::new();
    let mut by_methods: BTreeMap<&BTreeSet<String>, Vec<&str>> = BTreeMap::new();
    for (path, methods) in &wanted.paths {
        by_methods.entry(methods).or_default().push(path);
    }
    for (methods, paths) in by_methods {
        let words = methods.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let folded = folding::fold(&paths, FEW);
        for (folder, count) in &folded.folders {
            rules.push(format!("{host}: {count} paths in {folder}/ asked for by {words} became that folder"));
        }
        let exact = folded.paths.iter().map(|path| json!({"type": "exact", "value": path}));
        let below = folded.folders.iter().map(|(folder, _)| json!({"type": "prefix", "value": folder}));
        let paths: Vec<Value> = below.chain(exact).collect();
        if paths.len() > MOST_ENTRIES {
            rules.push(format!(
                "{host}: {} paths at its top asked for by {words} became the whole host",
                paths.len()
            ));
            matches.push(json!({"methods": methods}));
        } else {
            matches.push(json!({"methods": methods, "paths": paths}));
        }
    }
    for repository in &wanted.clones {
        rules.push(format!("{host}: what began to clone {repository} may finish it"));
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
