//! Canonical forms of host, path and query.
//!
//! Servers may read one spelling in different ways, and a request must not pass a rule under one reading and
//! be served under another. Each part is converted to canonical form once; the decision reads only that form,
//! and the proxy forwards only that form. A canonical form that still has several readings (an encoded slash,
//! for example) is marked [`Ambiguous`]; routes with path conditions deny it.

mod host;
mod path;
mod query;

pub use host::{Authority, BadHost, authority, host, is_ip_literal};
pub use path::{Ambiguous, Path, path};
pub use query::{decoded_pairs, query};

/// A request target in canonical form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target<'a> {
    /// The path.
    pub path: Path<'a>,
    /// The query without its `?`. An empty query stays `Some("")`.
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

/// Canonicalises path and query of a request line or `:path`.
///
/// A request target has no fragment; a `#` is encoded as a character of the path or query.
#[must_use]
pub fn target(raw: &str) -> Target<'_> {
    match raw.split_once('?') {
        Some((raw_path, raw_query)) => Target { path: path(raw_path), query: Some(query(raw_query)) },
        None => Target { path: path(raw), query: None },
    }
}

#[cfg(test)]
mod tests;
