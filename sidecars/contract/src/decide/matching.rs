//! Step 4: `matches`, and which methods a request has.

use std::borrow::Cow;

use http::HeaderMap;

use super::RequestFacts;
use super::git::decoded;
use crate::route::{HeaderMatch, RequestMatch, Route};

/// Keys by which servers take another method out of a query or a form, as [`spelled`] has them. What is said there counts
/// whatever it is.
const OVERRIDE_KEY: &str = "_method";

/// More keys and headers of that kind, which also mean other things: they count when they hold one of [`COMMON`].
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

/// The methods that a server may be expected to take from elsewhere than the request line.
const COMMON: [&str; 12] =
    ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "TRACK", "CONNECT", "MOVE", "COPY"];

/// The longest method: IANA's longest (`UPDATEREDIRECTREF`) has 17 characters.
const LONGEST: usize = 20;

/// The request's method and every other one a server may read out of it.
pub(super) struct Methods<'a> {
    method: &'a str,
    /// Upper case; empty for nearly every request.
    overrides: Vec<String>,
}

impl<'a> Methods<'a> {
    pub(super) fn of(facts: &RequestFacts<'a>, query: Option<&str>) -> Self {
        let mut overrides = Vec::new();
        for (name, value) in facts.headers {
            let Some(certain) = is_override(name.as_str()) else { continue };
            let word = String::from_utf8_lossy(value.as_bytes()).trim().to_ascii_uppercase();
            if certain || COMMON.contains(&word.as_str()) {
                overrides.push(word);
            }
        }
        if let Some(query) = query.filter(|query| may_override(query)) {
            overrides.extend(overriding(query));
        }
        Self { method: facts.method, overrides }
    }

    /// The first of them that never passes: one that echoes credentials, opens a tunnel inside the
    /// tunnel, or is no short word in capitals, as all methods there are (a method is a place to write into as well).
    pub(super) fn forbidden(&self) -> Option<Cow<'a, str>> {
        let never = |word: &str| ["TRACE", "TRACK", "CONNECT"].contains(&word) || !is_method(word);
        if never(self.method) {
            return Some(Cow::Borrowed(self.method));
        }
        self.overrides.iter().find(|word| never(word)).map(|word| Cow::Owned(word.clone()))
    }

    /// Whether no server could take it for a request that changes anything.
    pub(super) fn only_read(&self) -> bool {
        self.all_of(&["GET", "HEAD", "OPTIONS"])
    }

    /// Whether every method it may have is one of these, in upper case.
    pub(super) fn all_of<T: AsRef<str>>(&self, allowed: &[T]) -> bool {
        let listed = |word: &str| allowed.iter().any(|method| method.as_ref() == word);
        listed(self.method) && self.overrides.iter().all(|word| listed(word))
    }
}

/// Letters in capitals and `-`, at most [`LONGEST`] of them.
fn is_method(word: &str) -> bool {
    (1..=LONGEST).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-')
}

/// Whether a header's name says that it holds a method: for certain, or perhaps. CGI and its heirs read `_` and `-` in a
/// header's name as one.
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

/// Whether a query could hold a key of an override, judged without allocating.
fn may_override(query: &str) -> bool {
    query.contains('%') || query.as_bytes().windows(6).any(|window| window.eq_ignore_ascii_case(b"method"))
}

/// The methods that a query or a form may say a request has, in upper case.
pub(super) fn overriding(text: &str) -> impl Iterator<Item = String> {
    text.split(['&', ';']).filter_map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let key = spelled(key);
        let value = decoded(value).replace('+', " ").trim().to_ascii_uppercase();
        let counts =
            key == OVERRIDE_KEY || (MAYBE_KEYS.contains(&key.as_str()) && COMMON.contains(&value.as_str()));
        counts.then_some(value)
    })
}

/// The methods, in upper case, that the form in a request's body may say the request has: a field `_method` of an URL-encoded
/// or multipart form, or of a JSON object. `kind` is its `Content-Type`, `body` its plain text. Other bodies say none.
#[must_use]
pub fn form_methods(kind: &str, body: &[u8]) -> Vec<String> {
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match kind.as_str() {
        "application/x-www-form-urlencoded" => {
            let text = String::from_utf8_lossy(body);
            if may_override(&text) { overriding(&text).collect() } else { Vec::new() }
        }
        "multipart/form-data" => multipart_methods(&String::from_utf8_lossy(body)),
        kind if kind.ends_with("json") && names_method(body) && body.trim_ascii_start().starts_with(b"{") => {
            json_methods(body)
        }
        _ => Vec::new(),
    }
}

/// Whether a text could name the field, judged without reading it as JSON.
fn names_method(body: &[u8]) -> bool {
    let escaped = body.windows(2).any(|window| window == b"\\u");
    escaped || body.windows(7).any(|window| window.eq_ignore_ascii_case(OVERRIDE_KEY.as_bytes()))
}

/// The method that a JSON object says. Where it says two, or none that is a text, `?`, which never passes: readers differ.
fn json_methods(body: &[u8]) -> Vec<String> {
    match serde_json::from_slice::<JsonForm>(body) {
        Ok(form) => form.method.map(|word| word.trim().to_ascii_uppercase()).into_iter().collect(),
        Err(error) if error.is_data() => vec!["?".to_owned()],
        Err(_) => Vec::new(),
    }
}

/// Of a JSON body the one field.
#[derive(serde::Deserialize)]
struct JsonForm {
    #[serde(rename = "_method", alias = "_METHOD", alias = "_Method")]
    method: Option<String>,
}

/// The values of fields that are named so, wherever in the text such a field seems to begin.
fn multipart_methods(text: &str) -> Vec<String> {
    let lower = text.to_ascii_lowercase();
    let fields = lower.match_indices("name=").filter_map(|(at, found)| {
        let rest = text.get(at + found.len()..)?;
        let name = rest.trim_start_matches('"').split(['"', ';', '\r', '\n']).next()?;
        let (_, value) = rest.split_once("\r\n\r\n").or_else(|| rest.split_once("\n\n"))?;
        (spelled(name) == OVERRIDE_KEY)
            .then(|| value.lines().next().unwrap_or_default().trim().to_ascii_uppercase())
    });
    fields.collect()
}

/// A key as the most lenient server reads it: decoded, in lower case, without spaces before it, and with `_` for what PHP
/// writes so; of `_method[]` and `_method[x]` the name.
fn spelled(key: &str) -> String {
    let key = decoded(key).replace('+', " ").to_ascii_lowercase();
    let key = key.trim_matches(|c: char| c.is_whitespace() || c.is_control());
    let (first, rest) = key.split_at(key.chars().next().map_or(0, char::len_utf8));
    let rest = rest.split(['[', '\0']).next().unwrap_or_default();
    format!("{first}{rest}").replace(['.', ' ', '-', '['], "_")
}

/// Whether the request satisfies one entry of the route's `matches`, or the route has none.
pub(super) fn any(route: &Route, methods: &Methods<'_>, path: &str, headers: &HeaderMap) -> bool {
    route.matches.is_empty() || route.matches.iter().any(|entry| satisfies(entry, methods, path, headers))
}

pub(super) fn satisfies(
    entry: &RequestMatch,
    methods: &Methods<'_>,
    path: &str,
    headers: &HeaderMap,
) -> bool {
    (entry.methods.is_empty() || methods.all_of(&entry.methods))
        && (entry.paths.is_empty() || entry.paths.iter().any(|condition| condition.matches(path)))
        && entry.headers.iter().all(|condition| header_holds(condition, headers))
}

/// The header is there and every one of its values fits: servers differ on which of two they read.
fn header_holds(condition: &HeaderMatch, headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(condition.name.as_str()).iter().peekable();
    values.peek().is_some() && values.all(|value| condition.value.matches(value.as_bytes()))
}
