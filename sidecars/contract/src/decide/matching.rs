//! Step 4: `matches`, and the effective methods of a request.

use std::borrow::Cow;

use http::HeaderMap;

use super::RequestFacts;
use super::git::decoded;
use crate::route::{HeaderMatch, RequestMatch, Route};

/// The key with which servers override the method in a query or form, normalized by [`normalized_key`]. Any
/// value counts.
const OVERRIDE_KEY: &str = "_method";

/// More such keys and headers that also have other meanings. They count only with a value from [`COMMON`].
const MAYBE_KEYS: [&str; 8] = [
    "method",
    "http_method",
    "httpmethod",
    "method_override",
    "x_http_method",
    "x_http_method_override",
    "x_method",
    "x_method_override",
];

/// Methods that a server may accept in an override.
const COMMON: [&str; 12] =
    ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "TRACK", "CONNECT", "MOVE", "COPY"];

/// The longest method: IANA's longest (`UPDATEREDIRECTREF`) has 17 characters.
const LONGEST: usize = 20;

/// The request's method and every method override in it.
pub(super) struct Methods<'a> {
    method: &'a str,
    /// Overrides in upper case; empty for nearly every request.
    overrides: Vec<String>,
}

impl<'a> Methods<'a> {
    pub(super) fn new(facts: &RequestFacts<'a>, query: Option<&str>) -> Self {
        let mut overrides = Vec::new();
        for (name, value) in facts.headers {
            let Some(certain) = is_override(name.as_str()) else { continue };
            let word = String::from_utf8_lossy(value.as_bytes()).trim().to_ascii_uppercase();
            if certain || COMMON.contains(&word.as_str()) {
                overrides.push(word);
            }
        }
        if let Some(query) = query.filter(|query| may_override(query)) {
            overrides.extend(method_overrides(query));
        }
        Self { method: facts.method, overrides }
    }

    /// The first method that is never allowed: it echoes credentials, opens a tunnel inside the tunnel, or is
    /// not a short upper-case word. Every registered method is such a word, and other text could carry data
    /// out.
    pub(super) fn forbidden(&self) -> Option<Cow<'a, str>> {
        let never = |word: &str| ["TRACE", "TRACK", "CONNECT"].contains(&word) || !is_method(word);
        if never(self.method) {
            return Some(Cow::Borrowed(self.method));
        }
        self.overrides.iter().find(|word| never(word)).map(|word| Cow::Owned(word.clone()))
    }

    /// Whether no server could treat the request as a write.
    pub(super) fn only_read(&self) -> bool {
        self.all_of(&["GET", "HEAD", "OPTIONS"])
    }

    /// Whether every effective method is in `allowed` (upper case).
    pub(super) fn all_of<T: AsRef<str>>(&self, allowed: &[T]) -> bool {
        let listed = |word: &str| allowed.iter().any(|method| method.as_ref() == word);
        listed(self.method) && self.overrides.iter().all(|word| listed(word))
    }
}

/// Upper-case letters and `-`, at most [`LONGEST`] characters.
fn is_method(word: &str) -> bool {
    (1..=LONGEST).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-')
}

/// Whether a header overrides the method: `Some(true)` certainly, `Some(false)` possibly. CGI-style servers
/// treat `_` and `-` in header names as equal.
fn is_override(name: &str) -> Option<bool> {
    if !name.contains("method") || name.starts_with("access-control-") {
        return None;
    }
    let name = name.replace('_', "-");
    let certain = name.contains("override")
        || name.contains("http-method")
        || matches!(name.as_str(), "-method" | "x-method" | "x-original-method" | "x-forwarded-method");
    Some(certain)
}

/// Whether a query may contain an override key. Does not allocate.
fn may_override(query: &str) -> bool {
    query.contains('%') || query.as_bytes().windows(6).any(|window| window.eq_ignore_ascii_case(b"method"))
}

/// Method overrides in a query or form, in upper case.
pub(super) fn method_overrides(text: &str) -> impl Iterator<Item = String> {
    text.split(['&', ';']).filter_map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let key = normalized_key(key);
        let value = decoded(value).replace('+', " ").trim().to_ascii_uppercase();
        let counts =
            key == OVERRIDE_KEY || (MAYBE_KEYS.contains(&key.as_str()) && COMMON.contains(&value.as_str()));
        counts.then_some(value)
    })
}

/// Method overrides in a request body, in upper case: a field `_method` of a URL-encoded or multipart form or
/// of a JSON object. `kind` is the `Content-Type`, `body` the decoded content. Other bodies have none.
#[must_use]
pub fn form_methods(kind: &str, body: &[u8]) -> Vec<String> {
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match kind.as_str() {
        "application/x-www-form-urlencoded" => {
            let text = String::from_utf8_lossy(body);
            if may_override(&text) { method_overrides(&text).collect() } else { Vec::new() }
        }
        "multipart/form-data" => multipart_methods(&String::from_utf8_lossy(body)),
        kind if kind.ends_with("json") && names_method(body) && body.trim_ascii_start().starts_with(b"{") => {
            json_methods(body)
        }
        _ => Vec::new(),
    }
}

/// Whether a body may contain the field. Does not parse JSON.
fn names_method(body: &[u8]) -> bool {
    let escaped = body.windows(2).any(|window| window == b"\\u");
    escaped || body.windows(7).any(|window| window.eq_ignore_ascii_case(OVERRIDE_KEY.as_bytes()))
}

/// The method override in a JSON object. Servers differ on duplicate or non-string values, so these yield
/// `?`, which is never allowed.
fn json_methods(body: &[u8]) -> Vec<String> {
    match serde_json::from_slice::<JsonForm>(body) {
        Ok(form) => form.method.map(|word| word.trim().to_ascii_uppercase()).into_iter().collect(),
        Err(error) if error.is_data() => vec!["?".to_owned()],
        Err(_) => Vec::new(),
    }
}

/// The one relevant field of a JSON body.
#[derive(serde::Deserialize)]
struct JsonForm {
    #[serde(rename = "_method", alias = "_METHOD", alias = "_Method")]
    method: Option<String>,
}

/// The values of override fields, wherever a field may begin in the text.
fn multipart_methods(text: &str) -> Vec<String> {
    let lower = text.to_ascii_lowercase();
    let fields = lower.match_indices("name=").filter_map(|(at, found)| {
        let rest = text.get(at + found.len()..)?;
        let name = rest.trim_start_matches('"').split(['"', ';', '\r', '\n']).next()?;
        let (_, value) = rest.split_once("\r\n\r\n").or_else(|| rest.split_once("\n\n"))?;
        (normalized_key(name) == OVERRIDE_KEY)
            .then(|| value.lines().next().unwrap_or_default().trim().to_ascii_uppercase())
    });
    fields.collect()
}

/// A key as the most lenient server reads it: decoded, lower case, leading spaces removed, and `_` for every
/// character that PHP replaces by it. `_method[]` and `_method[x]` become `_method`.
fn normalized_key(key: &str) -> String {
    let key = decoded(key).replace('+', " ").to_ascii_lowercase();
    let key = key.trim_matches(|c: char| c.is_whitespace() || c.is_control());
    let (first, rest) = key.split_at(key.chars().next().map_or(0, char::len_utf8));
    let rest = rest.split(['[', '\0']).next().unwrap_or_default();
    format!("{first}{rest}").replace(['.', ' ', '-', '['], "_")
}

/// Whether the request matches an entry of the route's `matches`, or the route has no entries.
pub(super) fn route_matches(route: &Route, methods: &Methods<'_>, path: &str, headers: &HeaderMap) -> bool {
    route.matches.is_empty() || route.matches.iter().any(|entry| entry_matches(entry, methods, path, headers))
}

pub(super) fn entry_matches(
    entry: &RequestMatch,
    methods: &Methods<'_>,
    path: &str,
    headers: &HeaderMap,
) -> bool {
    (entry.methods.is_empty() || methods.all_of(&entry.methods))
        && (entry.paths.is_empty() || entry.paths.iter().any(|condition| condition.matches(path)))
        && entry.headers.iter().all(|condition| header_matches(condition, headers))
}

/// The header is present and every value matches: servers differ on which of two values they read.
fn header_matches(condition: &HeaderMatch, headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(condition.name.as_str()).iter().peekable();
    values.peek().is_some() && values.all(|value| condition.value.matches(value.as_bytes()))
}
