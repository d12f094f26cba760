//! Validation rules of routes, independent of their source.
//!
//! The parser checks each value while it knows the value's position. [`check_route`] checks all values again, and the
//! rules between fields. Routes that are built in code are therefore validated too.

use http::{HeaderName, HeaderValue, Method};

use super::{AuthSource, HeaderValueMatch, HostPattern, PathMatch, RequestMatch, Route, RouteError};
use crate::address::{self, Forbidden};
use crate::canonical;
use crate::credential::Scheme;
use crate::names::HTTP_PORT;
use bottle_text::yaml::Position;

/// The most entries in `matches`, and the most values in each list of an entry. A route with longer lists is rejected.
const MAX_LIST: usize = 200;
/// The longest accepted value, in bytes.
const MAX_VALUE: usize = 2_048;
/// The longest accepted slot name, in bytes.
const MAX_SLOT: usize = 128;

/// Why an entry of `except` has no header conditions.
pub(super) const NO_EXCEPT_HEADERS: &str =
    "an agent decides which headers it sends, so an exception names only `paths` and `methods`";

/// A violation of a rule.
pub(super) struct Violation {
    /// The key whose value violates the rule.
    pub(super) field: &'static str,
    /// The problem and the correction.
    pub(super) problem: String,
}

impl Violation {
    /// Converts the violation to an error about the route of `host`.
    pub(super) fn for_host(self, host: &HostPattern, at: Option<Position>) -> RouteError {
        RouteError { host: host.to_string(), field: self.field, problem: self.problem, at }
    }
}

/// Adds the key to the error of a rule.
fn for_field(field: &'static str, rule: Result<(), String>) -> Result<(), Violation> {
    rule.map_err(|problem| Violation { field, problem })
}

fn violation(field: &'static str, problem: &str) -> Result<(), Violation> {
    Err(Violation { field, problem: problem.to_owned() })
}

/// Validates `route` against every rule.
pub(super) fn check_route(route: &Route) -> Result<(), Violation> {
    for_field(
        "host",
        HostPattern::parse(&route.host.to_string()).and_then(|read| {
            if read == route.host { Ok(()) } else { Err(format!("write it in canonical form: `{read}`")) }
        }),
    )?;
    for_field("ports", ports(&route.ports))?;
    if let Some(auth) = &route.auth {
        for_field("auth.header", auth_header(auth.scheme, &auth.header))?;
        match &auth.source {
            AuthSource::Slot(name) => for_field("auth.slot", slot(name))?,
            AuthSource::Reference(name) => for_field("auth.token_ref", reference(name))?,
        }
    }
    for_field("matches", length(route.matches.len()))?;
    route.matches.iter().try_for_each(entry)?;
    for_field("except", length(route.except.len()))?;
    for excepted in &route.except {
        if !excepted.headers.is_empty() {
            return violation("except.headers", NO_EXCEPT_HEADERS);
        }
        conditions(excepted)?;
    }
    if let Some(to) = &route.connect_to {
        for_field("connect_to", connect_host(&to.host))?;
    }
    between(route)
}

/// Checks the rules that concern several fields.
fn between(route: &Route) -> Result<(), Violation> {
    let plain = route.ports.contains(&HTTP_PORT);
    if plain && route.auth.is_some() {
        return violation(
            "ports",
            "port 80 is plain HTTP and never carries a credential; remove 80 or `auth`",
        );
    }
    if let (Some(why), false, None) = (forbidden_literal(&route.host), route.private, &route.connect_to) {
        let problem = format!(
            "this is {}, which no bottle may reach unless the route sets `private: true`",
            why.as_str()
        );
        return Err(Violation { field: "host", problem });
    }
    if route.pass_credentials && route.auth.is_some() {
        let problem = "`auth` replaces the agent's own credentials, so they cannot pass; choose one";
        return violation("pass_credentials", problem);
    }
    if !route.inspect {
        return passthrough(route, plain);
    }
    Ok(())
}

/// Returns why the proxy must not connect to `host`, if it is a forbidden IP address.
fn forbidden_literal(host: &HostPattern) -> Option<Forbidden> {
    let HostPattern::Exact(host) = host else { return None };
    let address = host.trim_start_matches('[').trim_end_matches(']').parse().ok()?;
    address::forbidden(address, &[])
}

/// Rejects keys that have no effect with `inspect: false`, so that no user relies on these keys.
fn passthrough(route: &Route, plain: bool) -> Result<(), Violation> {
    let ineffective = [
        (route.auth.is_some(), "auth"),
        (!route.matches.is_empty(), "matches"),
        (!route.except.is_empty(), "except"),
        (route.git_fetch, "git.fetch"),
        (route.pass_credentials, "pass_credentials"),
        (route.websocket == super::WebSocket::Refuse, "websocket"),
        (route.dlp != super::Dlp::default(), "dlp"),
    ];
    match ineffective.into_iter().find(|(set, _)| *set) {
        Some((_, field)) => violation(
            field,
            "with `inspect: false` requests are not inspected, so this has no effect; remove one of them",
        ),
        None if plain => {
            violation("inspect", "port 80 is plain HTTP, which is always inspected; remove 80 or `inspect`")
        }
        None => Ok(()),
    }
}

fn entry(entry: &RequestMatch) -> Result<(), Violation> {
    let count = entry.paths.len() + entry.methods.len() + entry.headers.len();
    if count == 0 {
        return violation("matches", "an entry without conditions is every request; leave `matches` empty");
    }
    conditions(entry)
}

fn conditions(entry: &RequestMatch) -> Result<(), Violation> {
    for_field("matches.paths", length(entry.paths.len()))?;
    for_field("matches.methods", length(entry.methods.len()))?;
    for_field("matches.headers", length(entry.headers.len()))?;
    for path in &entry.paths {
        for_field("matches.paths", path_match(path))?;
    }
    for name in &entry.methods {
        for_field("matches.methods", method(name))?;
    }
    for header in &entry.headers {
        for_field("matches.headers.name", header_name(&header.name))?;
        if let HeaderValueMatch::Exact(value) = &header.value {
            for_field("matches.headers.value", header_value(value))?;
        }
    }
    Ok(())
}

pub(super) fn length(entries: usize) -> Result<(), String> {
    if entries <= MAX_LIST { Ok(()) } else { Err(format!("at most {MAX_LIST} entries are allowed")) }
}

pub(super) fn ports(ports: &[u16]) -> Result<(), String> {
    if ports.is_empty() {
        return Err("name at least one port, or leave the key out for 443".to_owned());
    }
    if ports.contains(&0) {
        return Err("a port is a number from 1 to 65535".to_owned());
    }
    if !ports.is_sorted_by(|before, after| before < after) {
        return Err("list each port once, in ascending order".to_owned());
    }
    length(ports.len())
}

/// Headers that frame or route a message, or apply to one hop only. A credential in such a header would
/// change how servers parse the request.
const NO_CREDENTIAL_HEADERS: &[&str] = &[
    "accept-encoding",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "forwarded",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "range",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
];

pub(super) fn auth_header(scheme: Scheme, header: &str) -> Result<(), String> {
    if scheme != Scheme::Header {
        return if header == "authorization" {
            Ok(())
        } else {
            Err("`header` goes with `scheme: header`; the other schemes use `Authorization`".to_owned())
        };
    }
    header_name(header)?;
    let framing = NO_CREDENTIAL_HEADERS.contains(&header)
        || header.starts_with("sec-")
        || header.starts_with("x-forwarded-")
        || header.contains("method-override")
        || header == "x-http-method";
    if framing {
        return Err(format!("`{header}` controls the request itself; use another header for the credential"));
    }
    Ok(())
}

pub(super) fn slot(slot: &str) -> Result<(), String> {
    let good = (1..=MAX_SLOT).contains(&slot.len())
        && slot.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'/' | b':'));
    if good { Ok(()) } else { Err("a slot is 1 to 128 letters, digits and `-_./:`".to_owned()) }
}

pub(super) fn reference(reference: &str) -> Result<(), String> {
    if reference.trim().is_empty() {
        return Err(
            "name where the token comes from: `NAME`, `env:NAME`, `file:PATH` or `cmd:ARGV`".to_owned()
        );
    }
    text(reference)
}

/// Checks that a value contains no control characters and is not too long.
pub(super) fn text(value: &str) -> Result<(), String> {
    if value.len() > MAX_VALUE {
        return Err(format!("the value is longer than {MAX_VALUE} bytes"));
    }
    if value.chars().any(char::is_control) {
        return Err("the value contains a control character or line break".to_owned());
    }
    Ok(())
}

fn path_match(path: &PathMatch) -> Result<(), String> {
    match path {
        PathMatch::Regex(pattern) => text(pattern.as_str()),
        PathMatch::Exact(value) => path_value(value),
        PathMatch::Prefix(value) if value.len() > 1 && value.ends_with('/') => {
            Err(format!("write the prefix without its trailing slash: `{}`", value.trim_end_matches('/')))
        }
        PathMatch::Prefix(value) => path_value(value),
    }
}

pub(super) fn path_value(value: &str) -> Result<(), String> {
    text(value)?;
    if !value.starts_with('/') {
        return Err(format!("a path begins with `/`: `/{value}`"));
    }
    if value.contains(['?', '#']) {
        return Err("a path has no query; remove everything from `?` on".to_owned());
    }
    let canonical = canonical::path(value);
    match canonical.ambiguous {
        Some(why) => {
            Err(format!("the path {}; the proxy denies every request with such a path", why.as_str()))
        }
        None if canonical.text != value => {
            Err(format!("write the path in canonical form: `{}`", canonical.text))
        }
        None => Ok(()),
    }
}

pub(super) fn method(name: &str) -> Result<(), String> {
    if Method::from_bytes(name.as_bytes()).is_err() || name.len() > 32 {
        return Err("a method is a word such as `GET`".to_owned());
    }
    if name != name.to_ascii_uppercase() {
        return Err(format!("write the method in upper case: `{}`", name.to_ascii_uppercase()));
    }
    if matches!(name, "TRACE" | "TRACK" | "CONNECT") {
        return Err(format!("`{name}` is never allowed"));
    }
    Ok(())
}

pub(super) fn header_name(name: &str) -> Result<(), String> {
    if HeaderName::from_bytes(name.as_bytes()).is_err() || name.len() > MAX_VALUE {
        return Err("a header's name is letters, digits and `-`".to_owned());
    }
    if name != name.to_ascii_lowercase() {
        return Err(format!("write the name in lower case: `{}`", name.to_ascii_lowercase()));
    }
    Ok(())
}

pub(super) fn header_value(value: &str) -> Result<(), String> {
    text(value)?;
    if HeaderValue::from_str(value).is_err() || value != value.trim() {
        return Err("a header's value is plain text without spaces around it".to_owned());
    }
    Ok(())
}

pub(super) fn connect_host(host: &str) -> Result<(), String> {
    match canonical::host(host) {
        Ok(canonical) if canonical == host => Ok(()),
        Ok(canonical) => Err(format!("write the host in canonical form: `{canonical}`")),
        Err(error) => Err(error.to_string()),
    }
}
