//! Step 4: `matches`, and which methods a request has.

use std::borrow::Cow;

use http::HeaderMap;

use super::RequestFacts;
use crate::canonical::decoded_pairs;
use crate::route::{HeaderMatch, RequestMatch, Route};

/// Headers by which a server takes another method than the request line's.
const OVERRIDES: [&str; 3] = ["x-http-method-override", "x-http-method", "x-method-override"];

/// The key by which some frameworks do the same in a query.
const OVERRIDE_KEY: &str = "_method";

/// The request's method and every other one a server may read out of it.
pub(super) struct Methods<'a> {
    method: &'a str,
    /// Upper case; empty for nearly every request.
    overrides: Vec<String>,
}

impl<'a> Methods<'a> {
    pub(super) fn of(facts: &RequestFacts<'a>, query: Option<&str>) -> Self {
        let mut overrides = Vec::new();
        for (_, value) in facts.headers.iter().filter(|(name, _)| is_override(name.as_str())) {
            overrides.push(String::from_utf8_lossy(value.as_bytes()).trim().to_ascii_uppercase());
        }
        if let Some(query) = query.filter(|query| query.contains(OVERRIDE_KEY)) {
            let keys = decoded_pairs(query).filter(|(key, _)| key.eq_ignore_ascii_case(OVERRIDE_KEY));
            overrides.extend(keys.map(|(_, value)| value.trim().to_ascii_uppercase()));
        }
        Self { method: facts.method, overrides }
    }

    /// The first of them that never passes: one that echoes credentials, opens a tunnel inside the
    /// tunnel, or is no word at all.
    pub(super) fn forbidden(&self) -> Option<Cow<'a, str>> {
        let never = |word: &str| {
            ["TRACE", "TRACK", "CONNECT"].iter().any(|bad| word.eq_ignore_ascii_case(bad))
                || http::Method::from_bytes(word.as_bytes()).is_err()
        };
        if never(self.method) {
            return Some(Cow::Borrowed(self.method));
        }
        self.overrides.iter().find(|word| never(word)).map(|word| Cow::Owned(word.clone()))
    }

    /// Whether no server could take it for a request that changes anything.
    pub(super) fn only_read(&self) -> bool {
        let reads = |word: &str| matches!(word, "GET" | "HEAD" | "OPTIONS");
        reads(self.method) && self.overrides.iter().all(|word| reads(word))
    }

    fn all_in(&self, allowed: &[String]) -> bool {
        let listed = |word: &str| allowed.iter().any(|method| method == word);
        listed(self.method) && self.overrides.iter().all(|word| listed(word))
    }
}

/// CGI and its heirs read `_` and `-` in a header's name as one.
fn is_override(name: &str) -> bool {
    OVERRIDES.contains(&name) || (name.contains('_') && OVERRIDES.contains(&&*name.replace('_', "-")))
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
    (entry.methods.is_empty() || methods.all_in(&entry.methods))
        && (entry.paths.is_empty() || entry.paths.iter().any(|condition| condition.matches(path)))
        && entry.headers.iter().all(|condition| header_holds(condition, headers))
}

/// The header is there and every one of its values fits: servers differ on which of two they read.
fn header_holds(condition: &HeaderMatch, headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(condition.name.as_str()).iter().peekable();
    values.peek().is_some() && values.all(|value| condition.value.matches(value.as_bytes()))
}
