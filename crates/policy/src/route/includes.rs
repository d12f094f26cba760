//! Compares conditions: determines whether one condition allows every request that another condition allows.
//!
//! The result `true` is always correct. The result `false` may be wrong, because regular expressions are compared as
//! text. Callers treat `false` as "allows more".

use super::{HeaderValueMatch, PathMatch, RequestMatch};

impl RequestMatch {
    /// Whether this entry matches every request that `other` matches.
    #[must_use]
    pub fn includes(&self, other: &Self) -> bool {
        let paths = self.paths.is_empty()
            || (!other.paths.is_empty()
                && other.paths.iter().all(|path| self.paths.iter().any(|own| own.includes(path))));
        let methods = self.methods.is_empty()
            || (!other.methods.is_empty()
                && other.methods.iter().all(|method| self.methods.contains(method)));
        // A request must satisfy all header conditions, so an entry with fewer conditions is wider.
        let headers = self.headers.iter().all(|header| other.headers.contains(header));
        paths && methods && headers
    }
}

impl PathMatch {
    /// Whether `path` satisfies the condition. `path` must be canonical.
    #[must_use]
    pub fn matches(&self, path: &str) -> bool {
        match self {
            Self::Exact(value) => path == value,
            Self::Regex(pattern) => pattern.matches(path.as_bytes()),
            Self::Prefix(value) => within(value, path),
        }
    }

    /// Like [`PathMatch::matches`], but without regard to the case of ASCII letters. A regular expression itself
    /// determines whether the case matters.
    #[must_use]
    pub fn matches_any_case(&self, path: &str) -> bool {
        match self {
            Self::Exact(value) => path.eq_ignore_ascii_case(value),
            Self::Regex(_) => self.matches(path),
            Self::Prefix(value) => {
                let start = path.get(..value.len());
                let rest = path.get(value.len()..).unwrap_or_default();
                value == "/"
                    || start.is_some_and(|start| start.eq_ignore_ascii_case(value))
                        && (rest.is_empty() || rest.starts_with('/'))
            }
        }
    }

    /// Whether this condition matches every path that `other` matches.
    #[must_use]
    pub fn includes(&self, other: &Self) -> bool {
        match (self, other) {
            (own, Self::Exact(path)) => own.matches(path),
            (Self::Prefix(value), Self::Prefix(inner)) => within(value, inner),
            (Self::Prefix(value), Self::Regex(_)) => value == "/",
            (Self::Regex(pattern), Self::Regex(other)) => pattern == other,
            (Self::Exact(_) | Self::Regex(_), _) => false,
        }
    }
}

/// Whether `path` equals `prefix` or continues it with further segments.
fn within(prefix: &str, path: &str) -> bool {
    prefix == "/" || path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl HeaderValueMatch {
    /// Whether a header value satisfies the condition.
    #[must_use]
    pub fn matches(&self, value: &[u8]) -> bool {
        match self {
            Self::Exact(text) => text.as_bytes() == value,
            Self::Regex(pattern) => pattern.matches(value),
        }
    }
}
