//! Host, path and query in one form: the one that is decided on is the one that is forwarded.
//!
//! Two servers may read one spelling in two ways, and a rule that was written for one reading must not
//! be passed by the other. So each part is brought into canonical form once, the decision looks only at
//! that form, and the proxy forwards only that form. Where even the canonical form has more than one
//! reading (an encoded slash, say) it is marked [`Ambiguous`], and routes that look at paths refuse it.

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
    /// The query without its `?`; an empty query is kept as such.
    pub query: Option<std::borrow::Cow<'a, str>>,
}

impl Target<'_> {
    /// Path and query as they are forwarded.
    #[must_use]
    pub fn to_forward(&self) -> String {
        match &self.query {
            Some(query) => format!("{}?{query}", self.path.text),
            None => self.path.text.clone().into_owned(),
        }
    }
}

/// Canonicalises path and query as they stand in a request line or `:path`.
///
/// A fragment never belongs there; a `#` is treated as a character of the path or query and encoded.
#[must_use]
pub fn target(raw: &str) -> Target<'_> {
    match raw.split_once('?') {
        Some((raw_path, raw_query)) => Target { path: path(raw_path), query: Some(query(raw_query)) },
        None => Target { path: path(raw), query: None },
    }
}

#[cfg(test)]
mod tests;
