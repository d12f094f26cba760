//! Renders routes in canonical form. Omits defaults; the serializer escapes every string.

use serde::{Serialize, Serializer};

use super::spec::{
    AuthSpec, Detectors, DlpSpec, GitSpec, HeaderKind, HeaderSpec, MatchSpec, PathKind, PathSpec,
};
use super::{
    Auth, AuthSource, Dlp, HeaderMatch, HeaderValueMatch, PathMatch, RequestMatch, Route, RouteSpec,
    RouteTable, WebSocket,
};
use bottle_text::yaml::{self, Spanned};

#[derive(Serialize)]
struct Document<'t> {
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    forges: &'t [String],
    routes: Vec<RouteSpec>,
}

/// Renders `routes: [...]`, and `forges` if there are any. [`super::parse_routes`] parses the result to the
/// same table.
///
/// # Panics
/// Never, because YAML can represent every string, number and list.
#[must_use]
pub fn render_routes(table: &RouteTable) -> String {
    yaml::to_string(table).expect("strings, numbers and lists serialize")
}

impl Serialize for RouteTable {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let routes = self.routes().iter().map(RouteSpec::from).collect();
        Document { forges: self.forges(), routes }.serialize(serializer)
    }
}

/// Renders `routes: [...]` for routes that are not in a table, so that hosts may appear twice.
///
/// # Panics
/// Never, because YAML can represent every string, number and list.
#[must_use]
pub fn render_list(routes: &[Route]) -> String {
    let routes = routes.iter().map(RouteSpec::from).collect();
    yaml::to_string(&Document { forges: &[], routes }).expect("strings, numbers and lists serialize")
}

/// Renders one route. [`super::parse_route`] parses the result to the same route.
///
/// # Panics
/// Never, because YAML can represent every string, number and list.
#[must_use]
pub fn render_route(route: &Route) -> String {
    yaml::to_string(&RouteSpec::from(route)).expect("strings, numbers and lists serialize")
}

/// Returns the serialized form of a route for display to the agent. Omits defaults, and data that the agent
/// must not see: slots, which name the user's secrets, and `connect_to`, which is an address in the user's
/// network.
#[must_use]
pub fn display_value(route: &Route) -> serde_json::Value {
    let mut words = serde_json::to_value(RouteSpec::from(route)).unwrap_or_default();
    if let Some(words) = words.as_object_mut() {
        words.remove("connect_to");
        if let Some(auth) = words.get_mut("auth").and_then(serde_json::Value::as_object_mut) {
            auth.remove("slot");
        }
    }
    words
}

fn optional<T>(value: Option<T>) -> Option<Spanned<T>> {
    value.map(Spanned::from)
}

fn flag(value: bool, default: bool) -> Option<Spanned<bool>> {
    optional((value != default).then_some(value))
}

fn list<'a, T, W>(values: &'a [T], write: impl Fn(&'a T) -> W) -> Option<Spanned<Vec<Spanned<W>>>> {
    optional((!values.is_empty()).then(|| values.iter().map(|value| write(value).into()).collect()))
}

impl From<&Route> for RouteSpec {
    fn from(route: &Route) -> Self {
        let default = Route::to(route.host.clone());
        Self {
            host: route.host.to_string().into(),
            ports: optional((route.ports != default.ports).then(|| route.ports.clone())),
            auth: optional(route.auth.as_ref().map(AuthSpec::from)),
            pass_credentials: flag(route.pass_credentials, false),
            matches: list(&route.matches, MatchSpec::from),
            except: list(&route.except, MatchSpec::from),
            git: optional(route.git_fetch.then_some(GitSpec { fetch: true })),
            inspect: flag(route.inspect, true),
            private: flag(route.private, false),
            connect_to: optional(route.connect_to.as_ref().map(ToString::to_string)),
            websocket: optional((route.websocket != WebSocket::Allow).then_some(route.websocket)),
            dlp: optional((route.dlp != Dlp::default()).then(|| DlpSpec::from(&route.dlp))),
            provider: flag(route.provider, false),
            role: None,
        }
    }
}

impl From<&Auth> for AuthSpec {
    fn from(auth: &Auth) -> Self {
        let (token_ref, slot) = match &auth.source {
            AuthSource::Reference(reference) => (optional(Some(reference.clone())), None),
            AuthSource::Slot(slot) => (None, optional(Some(slot.clone()))),
        };
        let named = auth.scheme == crate::credential::Scheme::Header;
        Self { scheme: auth.scheme, header: optional(named.then(|| auth.header.clone())), token_ref, slot }
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
        Self { kind, value: value.to_owned().into() }
    }
}

impl From<&HeaderMatch> for HeaderSpec {
    fn from(header: &HeaderMatch) -> Self {
        let (kind, value) = match &header.value {
            HeaderValueMatch::Exact(value) => (HeaderKind::Exact, value.as_str()),
            HeaderValueMatch::Regex(pattern) => (HeaderKind::Regex, pattern.as_str()),
        };
        Self { name: header.name.clone().into(), kind, value: value.to_owned().into() }
    }
}

impl From<&Dlp> for DlpSpec {
    fn from(dlp: &Dlp) -> Self {
        Self {
            outbound_detectors: dlp.outbound_detectors.clone().map(Detectors),
            inbound_detectors: dlp.inbound_detectors.clone().map(Detectors),
            outbound_on_match: dlp.outbound_on_match,
            inbound_on_match: dlp.inbound_on_match,
        }
    }
}
