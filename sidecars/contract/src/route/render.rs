//! From a route back to the words: canonical, defaults left out, every string escaped by the serializer.

use serde::Serialize;

use super::spec::{
    AuthSpec, Detectors, DlpSpec, GitSpec, HeaderKind, HeaderSpec, MatchSpec, PathKind, PathSpec,
};
use super::{
    Auth, AuthSource, Dlp, HeaderMatch, HeaderValueMatch, PathMatch, RequestMatch, Route, RouteSpec,
    RouteTable, WebSocket,
};
use crate::yaml::{self, Spanned, Strict, unplaced};

#[derive(Serialize)]
struct Document<'t> {
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    forges: &'t [String],
    routes: Vec<RouteSpec>,
}

/// `routes: [...]`, and `forges` where there are any, which [`super::parse_routes`] reads back to the same table.
///
/// # Panics
/// Never: the words are strings, numbers and lists, all of which YAML can write.
#[must_use]
pub fn render_routes(table: &RouteTable) -> String {
    let routes = table.routes().iter().map(RouteSpec::from).collect();
    yaml::to_string(&Document { forges: table.forges(), routes })
        .expect("strings, numbers and lists serialize")
}

/// `routes: [...]` of routes that are no table yet: hosts may stand there twice.
///
/// # Panics
/// Never, as above.
#[must_use]
pub(crate) fn render_list(routes: &[Route]) -> String {
    let routes = routes.iter().map(RouteSpec::from).collect();
    yaml::to_string(&Document { forges: &[], routes }).expect("strings, numbers and lists serialize")
}

/// One route by itself, which [`super::parse_route`] reads back to the same route.
///
/// # Panics
/// Never, as above.
#[must_use]
pub fn render_route(route: &Route) -> String {
    yaml::to_string(&RouteSpec::from(route)).expect("strings, numbers and lists serialize")
}

/// A route in its own words, defaults left out, and without what concerns the host alone: slots are
/// names of the user's secrets, `connect_to` is an address on the user's network.
#[must_use]
pub fn shown(route: &Route) -> serde_json::Value {
    let mut words = serde_json::to_value(RouteSpec::from(route)).unwrap_or_default();
    if let Some(words) = words.as_object_mut() {
        words.remove("connect_to");
        if let Some(auth) = words.get_mut("auth").and_then(serde_json::Value::as_object_mut) {
            auth.remove("slot");
        }
    }
    words
}

fn given<T>(value: Option<T>) -> Option<Spanned<T>> {
    value.map(unplaced)
}

fn flag(value: bool, default: bool) -> Option<Spanned<Strict<bool>>> {
    given((value != default).then_some(Strict(value)))
}

fn list<'a, T, W>(values: &'a [T], write: impl Fn(&'a T) -> W) -> Option<Spanned<Vec<Spanned<W>>>> {
    given((!values.is_empty()).then(|| values.iter().map(|value| unplaced(write(value))).collect()))
}

impl From<&Route> for RouteSpec {
    fn from(route: &Route) -> Self {
        let default = Route::to(route.host.clone());
        let ports = || route.ports.iter().map(|port| Strict(*port)).collect();
        Self {
            host: unplaced(route.host.to_string()),
            ports: given((route.ports != default.ports).then(ports)),
            auth: given(route.auth.as_ref().map(AuthSpec::from)),
            pass_credentials: flag(route.pass_credentials, false),
            matches: list(&route.matches, MatchSpec::from),
            git: given(route.git_fetch.then_some(GitSpec { fetch: Strict(true) })),
            inspect: flag(route.inspect, true),
            private: flag(route.private, false),
            connect_to: given(route.connect_to.as_ref().map(ToString::to_string)),
            websocket: given((route.websocket != WebSocket::Allow).then_some(route.websocket)),
            dlp: given((route.dlp != Dlp::default()).then(|| DlpSpec::from(&route.dlp))),
            provider: flag(route.provider, false),
            role: None,
        }
    }
}

impl From<&Auth> for AuthSpec {
    fn from(auth: &Auth) -> Self {
        let (token_ref, slot) = match &auth.source {
            AuthSource::Reference(reference) => (given(Some(reference.clone())), None),
            AuthSource::Slot(slot) => (None, given(Some(slot.clone()))),
        };
        let named = auth.scheme == crate::credential::Scheme::Header;
        Self { scheme: auth.scheme, header: given(named.then(|| auth.header.clone())), token_ref, slot }
    }
}

impl From<&RequestMatch> for MatchSpec {
    fn from(entry: &RequestMatch) -> Self {
        Self {
            paths: list(&entry.paths, PathSpec::from),
            methods: list(&entry.methods, Clone::clone),
            headers: list(&entry.headers, HeaderSpec::from),
        }
    }
}

impl From<&PathMatch> for PathSpec {
    fn from(path: &PathMatch) -> Self {
        let (kind, value) = match path {
            PathMatch::Prefix(value) => (PathKind::Prefix, value.as_str()),
            PathMatch::Exact(value) => (PathKind::Exact, value.as_str()),
            PathMatch::Regex(pattern) => (PathKind::Regex, pattern.as_str()),
        };
        Self { kind, value: unplaced(value.to_owned()) }
    }
}

impl From<&HeaderMatch> for HeaderSpec {
    fn from(header: &HeaderMatch) -> Self {
        let (kind, value) = match &header.value {
            HeaderValueMatch::Exact(value) => (HeaderKind::Exact, value.as_str()),
            HeaderValueMatch::Regex(pattern) => (HeaderKind::Regex, pattern.as_str()),
        };
        Self { name: unplaced(header.name.clone()), kind, value: unplaced(value.to_owned()) }
    }
}

impl From<&Dlp> for DlpSpec {
    fn from(dlp: &Dlp) -> Self {
        Self {
            outbound_detectors: dlp.outbound_detectors.clone().map(Detectors),
            inbound_detectors: dlp.inbound_detectors.clone().map(Detectors),
            outbound_on_match: dlp.outbound_on_match,
        }
    }
}
