//! Implements path patterns, which have the semantics of the lines in a `.gitignore`.

use std::ffi::OsStr;
use std::path::Path;

use bottle_protocol::session::files::{PATTERN_MAX, PATTERNS_MAX, Scope};
use bottle_protocol::session::guest::Failure;
use globset::{GlobBuilder, GlobSet};

use super::workspace::Place;
use crate::failure::{Outcome, other};

/// A set of path patterns.
#[derive(Debug)]
pub(super) struct Patterns(GlobSet);

impl Patterns {
    /// Parses patterns. A pattern that contains no slash, except at its end, matches names in every directory. Any
    /// other pattern matches paths relative to the directory of the search.
    pub(super) fn new(patterns: &[String]) -> Outcome<Self> {
        if patterns.len() > PATTERNS_MAX {
            return Err(other(format!("a search has at most {PATTERNS_MAX} patterns of one kind")));
        }
        let mut set = GlobSet::builder();
        for pattern in patterns {
            if pattern.len() > PATTERN_MAX {
                return Err(too_long());
            }
            let trimmed = pattern.trim_end_matches('/');
            let anchored = match trimmed.strip_prefix('/') {
                Some(path) => path.to_owned(),
                None if trimmed.contains('/') => trimmed.to_owned(),
                None => format!("**/{trimmed}"),
            };
            let glob = GlobBuilder::new(&anchored).literal_separator(true).build();
            set.add(glob.map_err(|error| bad(pattern, error.kind()))?);
        }
        set.build().map(Self).map_err(|error| other(format!("the patterns are too large: {error}")))
    }

    /// Returns whether one of the patterns matches a path.
    pub(super) fn matches(&self, path: &Path) -> bool {
        self.0.is_match(path)
    }

    /// Returns whether there are no patterns.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Returns the failure for a pattern that is too long.
pub(super) fn too_long() -> Failure {
    other(format!("a pattern has at most {PATTERN_MAX} bytes"))
}

/// Returns the failure for a pattern with a syntax error.
pub(super) fn bad(pattern: &str, error: impl std::fmt::Display) -> Failure {
    other(format!("the pattern {pattern:?} has an error: {error}"))
}

/// The scope of a search.
#[derive(Debug)]
pub(super) struct Scoped {
    pub(super) place: Place,
    exclude: Patterns,
    git: bool,
}

impl Scoped {
    pub(super) fn new(scope: &Scope) -> Outcome<Self> {
        let (place, exclude) = (Place::new(&scope.path)?, Patterns::new(&scope.exclude)?);
        Ok(Self { place, exclude, git: scope.git })
    }

    /// Returns the path of an entry relative to the directory of the search.
    pub(super) fn relative<'p>(&self, path: &'p Path) -> &'p Path {
        path.strip_prefix(self.place.as_path()).unwrap_or(path)
    }

    /// Returns whether the search skips an entry together with its contents.
    pub(super) fn excludes(&self, path: &Path, name: &OsStr) -> bool {
        (!self.git && name == ".git") || self.exclude.matches(path)
    }
}
