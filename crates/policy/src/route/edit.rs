//! The user's own changes of a running bottle's routes: `bottle allow` and `bottle deny`.
//!
//! After [`Action::Allow`], the routes allow every request that the edit names. The exception: if the edit names a
//! wildcard, a host below it that has its own route keeps that route. After [`Action::Deny`], the routes allow none of
//! the requests that the edit names. Neither action changes the decision on any other request, except that a deny
//! ignores the case of paths. An edit never adds, moves or changes a credential: a route keeps its `auth` only as long
//! as it keeps its host.

use serde::{Deserialize, Serialize};

use super::{
    Dlp, HostPattern, InboundDetector, OnMatch, OutboundDetector, PathMatch, RequestMatch, Route, RouteError,
    RouteTable, validation,
};
use crate::added_permissions::{self, Gain, What};

/// Whether an edit allows or denies its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Opens or widens a route.
    Allow,
    /// Removes or narrows routes.
    Deny,
}

/// A change of one key of `dlp`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Setting<T> {
    /// The key is left out, so that its default applies.
    Default,
    /// The key has this value.
    To(T),
}

/// A change of routes, as the user describes it. [`RouteEdit::apply`] validates it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteEdit {
    /// Whether the requests are allowed or denied.
    pub action: Action,
    /// The host, in the form of a route's `host`: a name, `*.NAME` or an address.
    pub host: String,
    /// A path prefix. If absent, the edit names every path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The methods. If empty, the edit names every method.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// Whether to allow git clone and fetch over https.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub git_fetch: bool,
    /// The key `dlp.outbound_detectors`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outbound_detectors: Option<Setting<Vec<OutboundDetector>>>,
    /// The key `dlp.inbound_detectors`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inbound_detectors: Option<Setting<Vec<InboundDetector>>>,
    /// The key `dlp.outbound_on_match`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outbound_on_match: Option<Setting<OnMatch>>,
}

/// Why an edit cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// The host, path or a method is not valid.
    #[error("{what}: {problem}")]
    Invalid {
        /// The text that is not valid, as written.
        what: String,
        /// The problem and the correction.
        problem: String,
    },
    /// The edit would copy a part of a wildcard's route, and the copy would need its own credential.
    #[error("the route `{own}` carries a credential that is bound to `{own}`; change `{own}` as a whole")]
    Bound {
        /// The wildcard's route.
        own: HostPattern,
    },
    /// The proxy does not see the requests of this route.
    #[error(
        "the route `{own}` has `inspect: false`, so the proxy sees neither paths nor methods nor content; only `deny {own}` \
         changes it"
    )]
    NotInspected {
        /// The host pattern of the route.
        own: HostPattern,
    },
    /// The route denies more than the edit allows.
    #[error("the route `{own}` denies {denied}; allow exactly that first")]
    Excepted {
        /// The host pattern of the route.
        own: HostPattern,
        /// The denied requests, in words.
        denied: String,
    },
    /// The changed routes would violate a rule.
    #[error(transparent)]
    Broken(#[from] RouteError),
}

/// The requests that an edit names, in canonical form.
struct Subject {
    host: HostPattern,
    entry: RequestMatch,
}

impl RouteEdit {
    /// Creates an edit of every request to `host`.
    #[must_use]
    pub fn new(action: Action, host: impl Into<String>) -> Self {
        Self {
            action,
            host: host.into(),
            path: None,
            methods: Vec::new(),
            git_fetch: false,
            outbound_detectors: None,
            inbound_detectors: None,
            outbound_on_match: None,
        }
    }

    /// Returns the hosts of the edit in canonical form.
    ///
    /// # Errors
    /// [`EditError::Invalid`] if the host, the path or a method is not valid.
    pub fn host(&self) -> Result<HostPattern, EditError> {
        self.subject().map(|subject| subject.host)
    }

    /// Returns the routes after the edit.
    ///
    /// # Errors
    /// [`EditError`], if the edit is not valid or cannot be expressed as routes.
    pub fn apply(&self, table: &RouteTable) -> Result<RouteTable, EditError> {
        let subject = self.subject()?;
        let routes = match self.action {
            Action::Allow => self.allowed(table, &subject)?,
            Action::Deny => denied(table, &subject)?,
        };
        Ok(table.with_routes(routes)?)
    }

    fn subject(&self) -> Result<Subject, EditError> {
        fn valid<T>(what: &str, result: Result<T, String>) -> Result<T, EditError> {
            result.map_err(|problem| EditError::Invalid { what: what.escape_debug().to_string(), problem })
        }
        let host = valid(&self.host, HostPattern::parse(&self.host))?;
        let mut entry = RequestMatch::default();
        if let Some(path) = &self.path {
            let bare = path.strip_suffix('/').unwrap_or(path);
            valid(path, validation::path_value(if bare.is_empty() { "/" } else { bare }))?;
            // The path `/` means every path.
            entry.paths.extend((!bare.is_empty()).then(|| PathMatch::Prefix(bare.to_owned())));
        }
        for method in &self.methods {
            let upper = method.to_ascii_uppercase();
            valid(method, validation::method(&upper))?;
            if !entry.methods.contains(&upper) {
                entry.methods.push(upper);
            }
        }
        valid("the methods", validation::length(entry.methods.len()))?;
        Ok(Subject { host, entry })
    }

    /// Whether the edit changes settings of the route that apply to all its requests.
    fn changes_settings(&self) -> bool {
        self.git_fetch || self.changes_scanning()
    }

    fn changes_scanning(&self) -> bool {
        self.outbound_detectors.is_some()
            || self.inbound_detectors.is_some()
            || self.outbound_on_match.is_some()
    }

    fn allowed(
        &self,
        table: &RouteTable,
        Subject { host, entry }: &Subject,
    ) -> Result<Vec<Route>, EditError> {
        let mut routes = table.routes().to_vec();
        let own = table.effective(host);
        let mut route = match own {
            None => {
                let matches =
                    if *entry == RequestMatch::default() { Vec::new() } else { vec![entry.clone()] };
                Route { matches, ..Route::to(host.clone()) }
            }
            Some(own) => {
                let mut route = own.clone();
                // An edit that changes settings and names no path or method does not change which requests the route
                // allows.
                let names_requests = *entry != RequestMatch::default() || !self.changes_settings();
                if names_requests && own.inspect {
                    allow_in(&mut route, entry)?;
                }
                route
            }
        };
        route.git_fetch |= self.git_fetch && route.inspect;
        if self.changes_scanning() {
            if !route.inspect {
                return Err(EditError::NotInspected { own: route.host });
            }
            self.set_scanning(&mut route.dlp);
        }
        match own {
            Some(own) if *own == route => return Ok(routes),
            Some(own) if own.host != *host => {
                if own.auth.is_some() {
                    return Err(EditError::Bound { own: own.host.clone() });
                }
                route.host = host.clone();
            }
            _ => {}
        }
        put(&mut routes, route);
        Ok(routes)
    }

    fn set_scanning(&self, dlp: &mut Dlp) {
        fn set<T: Clone>(key: &mut Option<T>, setting: &Option<Setting<T>>) {
            match setting {
                None => {}
                Some(Setting::Default) => *key = None,
                Some(Setting::To(value)) => *key = Some(value.clone()),
            }
        }
        set(&mut dlp.outbound_detectors, &self.outbound_detectors);
        set(&mut dlp.inbound_detectors, &self.inbound_detectors);
        set(&mut dlp.outbound_on_match, &self.outbound_on_match);
    }
}

/// Replaces the route that has the same host, or adds the route.
fn put(routes: &mut Vec<Route>, route: Route) {
    match routes.iter_mut().find(|known| known.host == route.host) {
        Some(known) => *known = route,
        None => routes.push(route),
    }
}

/// Widens an inspected route, so that it allows every request of `entry`.
fn allow_in(route: &mut Route, entry: &RequestMatch) -> Result<(), EditError> {
    if route.denies_all() {
        // Before the edit, the route only excluded its host. After the edit, the route allows exactly the requests of
        // `entry`.
        route.except.clear();
        route.matches = if *entry == RequestMatch::default() { Vec::new() } else { vec![entry.clone()] };
        return Ok(());
    }
    cut(&mut route.except, entry);
    if let Some(denied) = route.except.iter().find(|excepted| overlap(excepted, entry)) {
        let denied = What::Requests(denied.clone()).to_string();
        return Err(EditError::Excepted { own: route.host.clone(), denied });
    }
    if *entry == RequestMatch::default() {
        route.matches.clear();
    } else if !route.matches.is_empty() && !route.matches.iter().any(|own| own.includes(entry)) {
        route.matches.push(entry.clone());
    }
    Ok(())
}

fn denied(table: &RouteTable, Subject { host, entry }: &Subject) -> Result<Vec<Route>, EditError> {
    let all = *entry == RequestMatch::default();
    let mut routes = Vec::new();
    let mut emptied = Vec::new();
    for route in table.routes() {
        if !host.covers_pattern(&route.host) || (!all && route.denies_all()) {
            routes.push(route.clone());
        } else if !all {
            match narrowed(route, entry)? {
                Some(narrowed) => routes.push(narrowed),
                None if route.host != *host => emptied.push(route),
                None => {}
            }
        }
    }
    // If a host had no route of its own left, the route of a wider wildcard would apply to it.
    let left = table.with_routes(routes.clone())?;
    let opened = |route: &&Route| left.effective(&route.host).is_some_and(|wider| !wider.denies_all());
    routes.extend(emptied.into_iter().filter(opened).map(|route| excluded(route.clone())));
    let wider = left.effective(host).filter(|wider| wider.host != *host && !wider.denies_all());
    let Some(wider) = wider else { return Ok(routes) };
    let below = Route { host: host.clone(), ..wider.clone() };
    if all || table.declared(host).is_some() {
        routes.push(excluded(if wider.inspect { below } else { Route::to(host.clone()) }));
    } else if wider.auth.is_some() {
        return Err(EditError::Bound { own: wider.host.clone() });
    } else {
        let route = narrowed(&below, entry)?.unwrap_or_else(|| excluded(below.clone()));
        if route != below {
            routes.push(route);
        }
    }
    Ok(routes)
}

/// Returns a copy of the route that denies every request. This copy excludes its host from a wider route.
pub(super) fn excluded(route: Route) -> Route {
    let except = vec![RequestMatch::default()];
    Route { auth: None, provider: false, matches: Vec::new(), except, ..route }
}

/// Returns the route without the requests of `entry`, or `None` if no allowed request remains.
fn narrowed(route: &Route, entry: &RequestMatch) -> Result<Option<Route>, EditError> {
    if !route.inspect {
        return Err(EditError::NotInspected { own: route.host.clone() });
    }
    let mut narrowed = route.clone();
    cut(&mut narrowed.matches, entry);
    if narrowed.matches.is_empty() && !route.matches.is_empty() {
        return Ok(None);
    }
    let touched = narrowed.matches.is_empty() || narrowed.matches.iter().any(|own| overlap(own, entry));
    if touched && !narrowed.except.iter().any(|excepted| excepted.includes(entry)) {
        narrowed.except.retain(|excepted| !entry.includes(excepted));
        narrowed.except.push(entry.clone());
    }
    Ok(Some(narrowed))
}

/// Removes the requests of `entry` from a list of alternatives, as far as the list can express the removal.
fn cut(list: &mut Vec<RequestMatch>, entry: &RequestMatch) {
    list.retain_mut(|own| {
        if entry.includes(own) {
            return false;
        }
        let any_method = RequestMatch { methods: Vec::new(), ..entry.clone() };
        if !own.methods.is_empty() && any_method.includes(own) {
            own.methods.retain(|method| !entry.methods.contains(method));
        }
        true
    });
}

/// Whether some request may match both entries. Compares paths without regard to case.
fn overlap(one: &RequestMatch, other: &RequestMatch) -> bool {
    let methods = one.methods.is_empty()
        || other.methods.is_empty()
        || one.methods.iter().any(|method| other.methods.contains(method));
    let paths = one.paths.is_empty()
        || other.paths.is_empty()
        || one.paths.iter().any(|one| other.paths.iter().any(|other| paths_overlap(one, other)));
    methods && paths
}

fn paths_overlap(one: &PathMatch, other: &PathMatch) -> bool {
    match (one, other) {
        // Regular expressions are not compared, so they may overlap with every path.
        (PathMatch::Regex(_), _) | (_, PathMatch::Regex(_)) => true,
        (
            PathMatch::Exact(first) | PathMatch::Prefix(first),
            PathMatch::Exact(second) | PathMatch::Prefix(second),
        ) => one.matches_any_case(second) || other.matches_any_case(first),
    }
}

/// Describes how a change of routes weakens a bottle's protection: requests with a credential, requests of a provider's
/// route, and less scanning. The list is empty if the change weakens nothing.
#[must_use]
pub fn weakenings(old: &RouteTable, new: &RouteTable) -> Vec<String> {
    let mut weaker = Vec::new();
    for gain in added_permissions::gains(old, new) {
        let provider = new.effective(&gain.host).is_some_and(|route| route.provider);
        let opens = !matches!(gain.what, What::Scanning | What::Host);
        if opens && writes_to_forge(new, &gain) {
            weaker.push(format!("{gain}, which may write to the forge of a repository of the git gate"));
        } else if opens && gain.credential.is_some() {
            weaker.push(gain.to_string());
        } else if opens && provider {
            weaker.push(format!("{gain}, on the provider's route"));
        }
    }
    for now in new.routes().iter().filter(|now| now.inspect && !now.denies_all()) {
        let before = old.effective(&now.host).filter(|before| before.inspect);
        let default = Route::to(now.host.clone());
        weaker.extend(
            less_scanning(before.unwrap_or(&default), now).map(|words| format!("{}: {words}", now.host)),
        );
    }
    weaker
}

/// Whether a gain allows requests that may write to the forge of a repository behind the git gate.
fn writes_to_forge(table: &RouteTable, gain: &Gain) -> bool {
    let reads = |method: &String| ["GET", "HEAD", "OPTIONS"].contains(&method.as_str());
    let writes = match &gain.what {
        What::Requests(entry) => entry.methods.is_empty() || !entry.methods.iter().all(reads),
        What::EveryRequest => true,
        _ => false,
    };
    // GitHub has separate hosts for its API and for uploads. Other forges have a single host.
    let hosts = |forge: &String| [forge.clone(), format!("api.{forge}"), format!("uploads.{forge}")];
    writes && table.forges().iter().flat_map(hosts).any(|host| gain.host.covers(&host))
}

/// Describes in words the detectors and the action that `before` has and `now` lacks.
fn less_scanning(before: &Route, now: &Route) -> impl Iterator<Item = String> {
    use InboundDetector as In;
    use OutboundDetector as Out;
    let out = |route: &Route, detector| match &route.dlp.outbound_detectors {
        None => detector != Out::Entropy,
        Some(list) => list.contains(&detector),
    };
    let inbound = |route: &Route, detector| {
        route.dlp.inbound_detectors.as_ref().is_none_or(|list| list.contains(&detector))
    };
    let strictness = |on_match| match on_match {
        OnMatch::Redact => 0,
        OnMatch::Supervise => 1,
        OnMatch::Block => 2,
    };
    let is_off = |was: bool, is: bool| was && !is;
    [
        (
            is_off(out(before, Out::TokenPatterns), out(now, Out::TokenPatterns)),
            "requests are not scanned for token_patterns",
        ),
        (
            is_off(out(before, Out::KnownSecrets), out(now, Out::KnownSecrets)),
            "requests are not scanned for known_secrets",
        ),
        (is_off(out(before, Out::Entropy), out(now, Out::Entropy)), "requests are not scanned for entropy"),
        (
            is_off(inbound(before, In::KnownSecrets), inbound(now, In::KnownSecrets)),
            "responses are not scanned for known_secrets",
        ),
        (
            is_off(inbound(before, In::NaiveInjectionDetection), inbound(now, In::NaiveInjectionDetection)),
            "responses are not scanned for naive_injection_detection",
        ),
        (
            strictness(now.on_match()) < strictness(before.on_match()),
            "a finding in a request has a milder effect",
        ),
    ]
    .into_iter()
    .filter(|(weaker, _)| *weaker)
    .map(|(_, words)| words.to_owned())
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use proptest::prelude::*;

    use super::*;
    use crate::credential::{bindings, check_moves};
    use crate::decide::{Verdict, decide_url};
    use crate::route::{Form, arbitrary, parse_routes, render_list};

    fn table(yaml: &str) -> RouteTable {
        let yaml = if yaml.is_empty() { " []" } else { yaml };
        parse_routes(&format!("routes:\n{yaml}"), Form::Runtime).expect(yaml)
    }

    /// An edit in the words of the command line: `HOST[/PATH] [METHOD...]`.
    fn edit(action: Action, words: &str) -> RouteEdit {
        let mut words = words.split(' ');
        let target = words.next().expect("a host");
        let (host, path) = target.split_at(target.find('/').unwrap_or(target.len()));
        RouteEdit {
            path: (!path.is_empty()).then(|| path.to_owned()),
            methods: words.map(str::to_owned).collect(),
            ..RouteEdit::new(action, host)
        }
    }

    const PLAIN: &str = "- host: a.example\n";
    const GET: &str = "- host: a.example\n  matches: [{methods: [GET]}]\n";
    const WILD: &str =
        "- host: '*.w.example'\n  matches: [{methods: [GET]}]\n  dlp: {outbound_on_match: block}\n";

    #[test]
    fn allows_and_denies_exactly_what_is_named() {
        use Action::{Allow, Deny};
        for (before, action, words, after) in [
            ("", Allow, "A.Example", PLAIN),
            ("", Allow, "a.example/", PLAIN),
            (
                "",
                Allow,
                "a.example/v1/ get",
                "- host: a.example\n  matches: [{paths: [{type: prefix, value: /v1}], methods: [GET]}]\n",
            ),
            (PLAIN, Allow, "a.example/v1", PLAIN),
            (GET, Allow, "a.example/v1 GET", GET),
            (
                GET,
                Allow,
                "a.example POST",
                "- host: a.example\n  matches: [{methods: [GET]}, {methods: [POST]}]\n",
            ),
            (GET, Allow, "a.example", PLAIN),
            // A host under a wildcard gets its own route with the wildcard's settings.
            (WILD, Allow, "x.w.example GET", WILD),
            (
                WILD,
                Allow,
                "x.w.example POST",
                &format!(
                    "{WILD}- host: x.w.example\n  matches: [{{methods: [GET]}}, {{methods: [POST]}}]\n  dlp: {{outbound_on_match: block}}\n"
                ),
            ),
            (PLAIN, Deny, "a.example", ""),
            (PLAIN, Deny, "b.example", PLAIN),
            (
                PLAIN,
                Deny,
                "a.example/x",
                "- host: a.example\n  except: [{paths: [{type: prefix, value: /x}]}]\n",
            ),
            (PLAIN, Deny, "a.example POST", "- host: a.example\n  except: [{methods: [POST]}]\n"),
            (GET, Deny, "a.example GET", ""),
            (GET, Deny, "a.example POST", GET),
            ("- host: a.example\n  matches: [{methods: [GET, POST]}]\n", Deny, "a.example POST", GET),
            (
                "- host: a.example\n- host: x.w.example\n- host: '*.x.w.example'\n- host: '*.w.example'\n",
                Deny,
                "*.w.example",
                PLAIN,
            ),
            (
                WILD,
                Deny,
                "x.w.example",
                &format!(
                    "{WILD}- host: x.w.example\n  except: [{{}}]\n  dlp: {{outbound_on_match: block}}\n"
                ),
            ),
            (
                &format!("{WILD}- host: x.w.example\n  except: [{{}}]\n"),
                Allow,
                "x.w.example/a",
                &format!(
                    "{WILD}- host: x.w.example\n  matches: [{{paths: [{{type: prefix, value: /a}}]}}]\n"
                ),
            ),
            // An allow reverses an earlier deny.
            ("- host: a.example\n  except: [{methods: [POST]}]\n", Allow, "a.example POST", PLAIN),
            ("- host: a.example\n  except: [{methods: [POST]}]\n", Allow, "a.example", PLAIN),
            (
                "- host: a.example\n  except: [{methods: [POST, PUT]}]\n",
                Allow,
                "a.example PUT",
                "- host: a.example\n  except: [{methods: [POST]}]\n",
            ),
        ] {
            let changed = edit(action, words).apply(&table(before)).expect(words);
            assert_eq!(
                changed,
                table(after),
                "{action:?} {words} of\n{before}gives\n{}",
                render_list(changed.routes())
            );
        }
    }

    #[test]
    fn a_deny_opens_no_host_that_a_narrower_route_closes() {
        for own in [
            "- host: '*.b.a.example'\n  except: [{}]\n",
            "- host: '*.b.a.example'\n  matches: [{paths: [{type: prefix, value: /a/b}]}]\n",
            "- host: c.b.a.example\n  matches: [{paths: [{type: exact, value: /a}]}]\n",
        ] {
            let before = table(&format!("- host: '*.a.example'\n{own}"));
            let now = edit(Action::Deny, "*.a.example/a").apply(&before).expect(own);
            let request = |path: &str| ("GET".to_owned(), "c.b.a.example".to_owned(), path.to_owned());
            for path in ["/", "/a", "/a/b", "/other"] {
                assert!(!allows(&now, &request(path)), "{own}{path}");
            }
        }
    }

    #[test]
    fn denying_the_same_requests_again_changes_nothing() {
        let wildcard = "- host: '*.a.example'\n  provider: true\n  matches: [{methods: [GET]}]\n";
        let deny = edit(Action::Deny, "b.a.example GET");
        let once = deny.apply(&table(wildcard)).expect("applied");
        assert_eq!(
            once.routes().last().map(|route| (route.denies_all(), route.provider)),
            Some((true, false))
        );
        assert_eq!(deny.apply(&once).expect("applied"), once);
    }

    #[test]
    fn refuses_what_routes_cannot_express() {
        use Action::{Allow, Deny};
        let auth =
            "- host: '*.w.example'\n  auth: {scheme: Bearer, slot: s}\n  matches: [{methods: [GET]}]\n";
        let pinned = "- host: a.example\n  inspect: false\n";
        for (before, action, words, part) in [
            ("", Allow, "http://a.example", "write the host alone"),
            ("", Allow, "a.example:8443", "ports go into `ports`"),
            ("", Allow, "a.example/x?y", "a path has no query"),
            ("", Allow, "a.example/x/../y", "canonical"),
            ("", Allow, "a.example G@T", "a method is a word"),
            ("", Allow, "a.example TRACE", "never allowed"),
            ("", Allow, "10.0.0.1", "`private: true`"),
            ("", Allow, "localhost", "the bottle itself"),
            (auth, Allow, "x.w.example POST", "bound to `*.w.example`"),
            (auth, Deny, "x.w.example/a", "bound to `*.w.example`"),
            (pinned, Deny, "a.example/x", "inspect: false"),
            (
                "- host: a.example\n  except: [{paths: [{type: prefix, value: /a}]}]\n",
                Allow,
                "a.example/a/b",
                "denies every method of /a/*",
            ),
        ] {
            let refused = edit(action, words).apply(&table(before)).map(|table| render_list(table.routes()));
            let error = refused.expect_err(words).to_string();
            assert!(error.contains(part), "{words}: {error}");
        }
        let scans = RouteEdit {
            outbound_on_match: Some(Setting::To(OnMatch::Block)),
            ..RouteEdit::new(Allow, "a.example")
        };
        assert!(matches!(scans.apply(&table(pinned)), Err(EditError::NotInspected { .. })));
    }

    #[test]
    fn changes_scanning_and_reports_less_of_it() {
        let off = RouteEdit {
            outbound_detectors: Some(Setting::To(vec![OutboundDetector::KnownSecrets])),
            ..RouteEdit::new(Action::Allow, "a.example")
        };
        let now = off.apply(&table(GET)).expect("applied");
        assert_eq!(now, table(&format!("{GET}  dlp: {{outbound_detectors: [known_secrets]}}\n")));
        assert_eq!(weakenings(&table(GET), &now), ["a.example: requests are not scanned for token_patterns"]);
        assert_eq!(weakenings(&table(""), &now), ["a.example: requests are not scanned for token_patterns"]);
        assert_eq!(weakenings(&now, &table(GET)), Vec::<String>::new());
        let back = RouteEdit { outbound_detectors: Some(Setting::Default), ..off };
        assert_eq!(back.apply(&now).expect("applied"), table(GET));
        let auth = "- host: a.example\n  auth: {scheme: Bearer, slot: s}\n";
        let narrow = format!("{auth}  matches: [{{methods: [GET]}}]\n");
        assert_eq!(
            weakenings(&table(&narrow), &table(auth)),
            ["a.example: every request, with the credential `s`"]
        );
        let provider = "- host: a.example\n  provider: true\n";
        let narrow = format!("{provider}  matches: [{{methods: [GET]}}]\n");
        assert_eq!(
            weakenings(&table(&narrow), &table(provider)),
            ["a.example: every request, on the provider's route"]
        );
        assert_eq!(weakenings(&table(PLAIN), &table("")), Vec::<String>::new());
        let forge = |yaml| table(yaml).with_forges(vec!["a.example".to_owned()]);
        let writes = weakenings(&forge(""), &forge("- host: '*.a.example'\n"));
        assert!(writes[0].contains("may write to the forge"), "{writes:?}");
        assert_eq!(weakenings(&forge(""), &forge(GET)), Vec::<String>::new());
    }

    fn edits() -> impl Strategy<Value = RouteEdit> {
        let action = prop_oneof![Just(Action::Allow), Just(Action::Deny)];
        let path = proptest::option::of(prop_oneof![Just("/".to_owned()), "(/[a-z0-9]{1,2}){1,2}"]);
        let methods = prop::collection::vec(prop_oneof![Just("GET"), Just("POST"), Just("PURGE")], 0..2);
        (action, arbitrary::host(), path, methods).prop_map(|(action, host, path, methods)| RouteEdit {
            path,
            methods: methods.into_iter().map(str::to_owned).collect(),
            ..RouteEdit::new(action, host.to_string())
        })
    }

    fn requests() -> impl Strategy<Value = (String, String, String)> {
        let method = prop_oneof![Just("GET"), Just("POST"), Just("PURGE")];
        let host = prop_oneof![
            Just("a.example"),
            Just("b.a.example"),
            Just("c.b.a.example"),
            Just("d.c.b.a.example"),
            Just("9.9.9.9"),
        ];
        (method, host, prop_oneof![Just("/".to_owned()), "(/[a-z0-9]{1,2}){1,2}"])
            .prop_map(|(method, host, path)| (method.to_owned(), host.to_owned(), path))
    }

    fn allows(table: &RouteTable, (method, host, path): &(String, String, String)) -> bool {
        let url = format!("https://{host}{path}");
        matches!(
            decide_url(table, method, &url, &HeaderMap::new(), &|_| true).expect("url"),
            Verdict::Allow(_)
        )
    }

    proptest! {
        /// After a deny, no named request is allowed; after an allow on a plain route, every named request is allowed.
        /// The decision on all other requests is as before, and no credential is added or moved.
        #[test]
        fn an_edit_decides_its_own_requests_only(
            table in arbitrary::table(Form::Runtime),
            edit in edits(),
            requests in prop::collection::vec(requests(), 8..32),
        ) {
            let Ok(changed) = edit.apply(&table) else { return Ok(()) };
            prop_assert_eq!(check_moves(&bindings(&table), &changed), Ok(()));
            let Subject { host, entry } = edit.subject().expect("valid");
            for request in &requests {
                let (method, name, path) = request;
                // An allow of a wildcard leaves more specific routes unchanged.
                let specific = table
                    .route_for(name)
                    .is_some_and(|route| route.host != host && host.covers_pattern(&route.host));
                let named = host.covers(name)
                    && !(edit.action == Action::Allow && specific)
                    && (entry.methods.is_empty() || entry.methods.contains(method))
                    && (entry.paths.is_empty() || entry.paths.iter().any(|own| own.matches(path)));
                let (before, now) = (allows(&table, request), allows(&changed, request));
                match (named, edit.action) {
                    (false, _) => prop_assert_eq!(before, now, "{:?} {:?}", edit, request),
                    (true, Action::Deny) => prop_assert!(!now, "{:?} {:?}", edit, request),
                    (true, Action::Allow) => {
                        let port = changed.route_for(name).is_some_and(|route| route.ports.contains(&443));
                        prop_assert!(now || !port, "{:?} {:?}", edit, request);
                    }
                }
            }
            prop_assert_eq!(edit.apply(&changed).expect("again"), changed);
        }
    }
}
