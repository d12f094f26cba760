//! Canonical forms of host, path and query.
//!
//! Two servers may interpret the same spelling in different ways. A request must not match a rule in one interpretation
//! if the server uses another interpretation. The proxy therefore converts each part to its canonical form once,
//! decides on that form and forwards only that form. Some canonical forms can still be interpreted in several ways, for
//! example an encoded slash. Such paths are marked [`Ambiguous`], and routes with `matches` deny them.

mod host;
mod path;
mod query;

pub use host::{Authority, BadHost, authority, host, is_ip_literal};
pub use path::{Ambiguous, Path, path};
pub use query::{decoded_pairs, query};

/// A request target in canonical form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target<'a> {
    /// The path in canonical form.
    pub path: Path<'a>,
    /// The query without its `?`. An empty query is `Some("")`.
    pub query: Option<std::borrow::Cow<'a, str>>,
}

impl Target<'_> {
    /// Path and query as the proxy forwards them.
    #[must_use]
    pub fn to_forward(&self) -> String {
        match &self.query {
            Some(query) => format!("{}?{query}", self.path.text),
            None => self.path.text.clone().into_owned(),
        }
    }
}

/// Converts path and query of a request line or `:path` to canonical form.
///
/// A request target has no fragment, so `#` is encoded like any other disallowed character.
#[must_use]
pub fn target(raw: &str) -> Target<'_> {
    match raw.split_once('?') {
        Some((raw_path, raw_query)) => Target { path: path(raw_path), query: Some(query(raw_query)) },
        None => Target { path: path(raw), query: None },
    }
}

#[cfg(test)]
mod tests;
