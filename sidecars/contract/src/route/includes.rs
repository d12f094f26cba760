//! Whether one condition lets through everything another does.
//!
//! Sound, not complete: `true` is a proof, `false` may only mean that none was found (two regular
//! expressions compare by their text). Whoever asks treats `false` as "this reaches further".

use super::{HeaderValueMatch, PathMatch, RequestMatch};

impl RequestMatch {
    /// Whether every request that satisfies `other` satisfies this entry too.
    #[must_use]
    pub fn includes(&self, other: &Self) -> bool {
        let paths = self.paths.is_empty()
            || (!other.paths.is_empty()
                && other.paths.iter().all(|path| self.paths.iter().any(|own| own.includes(path))));
        let methods = self.methods.is_empty()
            || (!other.methods.is_empty()
                && other.methods.iter().all(|method| self.methods.contains(method)));
        // Headers are all required, so the wider entry asks for fewer of them.
        let headers = self.headers.iter().all(|header| other.headers.contains(header));
        paths && methods && headers
    }
}

impl PathMatch {
    /// Whether `path` (canonical) satisfies this.
    #[must_use]
    pub fn matches(&self, path: &str) -> bool {
        match self {
            Self::Exact(value) => path == value,
            Self::Regex(pattern) => pattern.matches(path.as_bytes()),
            Self::Prefix(value) => within(value, path),
        }
    }

    /// Whether every path that satisfies `other` satisfies this too.
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

/// Whether `path` is `prefix` or lies below it, segment by segment.
fn within(prefix: &str, path: &str) -> bool {
    prefix == "/" || path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl HeaderValueMatch {
    /// Whether one value of the header satisfies this.
    #[must_use]
    pub fn matches(&self, value: &[u8]) -> bool {
        match self {
            Self::Exact(text) => text.as_bytes() == value,
            Self::Regex(pattern) => pattern.matches(value),
        }
    }
}
