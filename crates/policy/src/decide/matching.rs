//! Step 4 of [`decide`](super::decide()): checks `matches` against the request and the methods that a server
//! may use for it.

use std::borrow::Cow;

use http::HeaderMap;

use super::RequestFacts;
use super::git::decoded;
use crate::route::{HeaderMatch, RequestMatch, Route};

/// The key with which a query or form overrides the method, in the form of [`normalized_key`]. The key is an
/// override with any value.
const OVERRIDE_KEY: &str = "_method";

/// Further keys that override the method in some servers and have another meaning in others. These keys are
/// overrides only with a value from [`COMMON`].
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

/// The longest accepted method, in characters. A request with a longer method is denied. The longest method
/// that IANA has registered (`UPDATEREDIRECTREF`) has 17 characters.
const LONGEST: usize = 20;

/// The method of a request and all method overrides in it.
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

    /// Returns the first method that is never allowed. Such a method echoes credentials, opens a tunnel
    /// inside the tunnel, or is not a short upper-case word. All registered methods are short upper-case
    /// words, and other text could carry data out of the bottle.
    pub(super) fn forbidden(&self) -> Option<Cow<'a, str>> {
        let never = |word: &str| ["TRACE", "TRACK", "CONNECT"].contains(&word) || !is_method(word);
        if never(self.method) {
            return Some(Cow::Borrowed(self.method));
        }
        self.overrides.iter().find(|word| never(word)).map(|word| Cow::Owned(word.clone()))
    }

    /// Whether every server treats the request as a read.
    pub(super) fn only_read(&self) -> bool {
        self.all_of(&["GET", "HEAD", "OPTIONS"])
    }

    /// Whether the method or an override is in `denied` (upper case).
    fn any_of(&self, denied: &[String]) -> bool {
        let listed = |word: &str| denied.iter().any(|method| method == word);
        listed(self.method) || self.overrides.iter().any(|word| listed(word))
    }

    /// Whether the method and all overrides are in `allowed` (upper case).
    pub(super) fn all_of<T: AsRef<str>>(&self, allowed: &[T]) -> bool {
        let listed = |word: &str| allowed.iter().any(|method| method.as_ref() == word);
        listed(self.method) && self.overrides.iter().all(|word| listed(word))
    }
}

/// Whether `word` consists of upper-case letters and `-` and has at most [`LONGEST`] characters.
fn is_method(word: &str) -> bool {
    (1..=LONGEST).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-')
}

/// Whether a header overrides the method. `Some(true)` means that any value is an override. `Some(false)` means that
/// only a method in [`COMMON`] is an override. CGI-style servers treat `_` and `-` in header names as equal.
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

/// Whether a query may contain an override key. The check does not allocate.
fn may_override(query: &str) -> bool {
    query.contains('%') || query.as_bytes().windows(6).any(|window| window.eq_ignore_ascii_case(b"method"))
}

/// Returns the method overrides in a query or form, in upper case.
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

/// Returns the method overrides in a request body, in upper case. An override is a field `_method` in a
/// URL-encoded or multipart form or in a JSON object; other bodies have none. `kind` is the `Content-Type`,
/// `body` the decoded content.
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

/// Whether a body may contain the field `_method`. Does not parse JSON.
fn names_method(body: &[u8]) -> bool {
    let escaped = body.windows(2).any(|window| window == b"\\u");
    escaped || body.windows(7).any(|window| window.eq_ignore_ascii_case(OVERRIDE_KEY.as_bytes()))
}

/// Returns the method override in a JSON object. Servers interpret duplicate values and values that are not strings
/// differently. For such values, the result is `?`, which is never an allowed method.
fn json_methods(body: &[u8]) -> Vec<String> {
    match serde_json::from_slice::<JsonForm>(body) {
        Ok(form) => form.method.map(|word| word.trim().to_ascii_uppercase()).into_iter().collect(),
        Err(error) if error.is_data() => vec!["?".to_owned()],
        Err(_) => Vec::new(),
    }
}

/// The only field of a JSON body that is read.
#[derive(serde::Deserialize)]
struct JsonForm {
    #[serde(rename = "_method", alias = "_METHOD", alias = "_Method")]
    method: Option<String>,
}

/// Returns the values of override fields in a multipart form. Searches every place in the text where a field may begin.
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

/// Returns a key as the most lenient server interprets it: decoded, in lower case, without leading spaces, and with the
/// character `_` wherever PHP would put `_`. `_method[]` and `_method[x]` become `_method`.
fn normalized_key(key: &str) -> String {
    let key = decoded(key).replace('+', " ").to_ascii_lowercase();
    let key = key.trim_matches(|c: char| c.is_whitespace() || c.is_control());
    let (first, rest) = key.split_at(key.chars().next().map_or(0, char::len_utf8));
    let rest = rest.split(['[', '\0']).next().unwrap_or_default();
    format!("{first}{rest}").replace(['.', ' ', '-', '['], "_")
}

/// Whether the request matches an entry of the route's `matches` (or the route has no entries), and matches no entry of
/// the route's `except`.
pub(super) fn route_matches(route: &Route, methods: &Methods<'_>, path: &str, headers: &HeaderMap) -> bool {
    let allowed = route.matches.is_empty()
        || route.matches.iter().any(|entry| entry_matches(entry, methods, path, headers));
    allowed && !route.except.iter().any(|entry| is_excepted(entry, methods, path))
}

/// Whether an entry of `except` applies to the request in any interpretation: with the method or one of its
/// overrides, and with the path in any letter case, because some servers ignore the case.
fn is_excepted(entry: &RequestMatch, methods: &Methods<'_>, path: &str) -> bool {
    (entry.methods.is_empty() || methods.any_of(&entry.methods))
        && (entry.paths.is_empty() || entry.paths.iter().any(|condition| condition.matches_any_case(path)))
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

/// Whether the header is present and all its values match. If there are several values, servers differ on which value
/// they use.
fn header_matches(condition: &HeaderMatch, headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(condition.name.as_str()).iter().peekable();
    values.peek().is_some() && values.all(|value| condition.value.matches(value.as_bytes()))
}
