//! Errors of routes, with the position and the correction.

use bottle_text::yaml::{Position, YamlError};

/// A route that violates a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("route `{host}`, `{field}`: {problem}")]
pub struct RouteError {
    /// The route's host, as written.
    pub host: String,
    /// The key with the invalid value, for example `auth.header`.
    pub field: &'static str,
    /// The problem and the correction, as a lower-case fragment.
    pub problem: String,
    /// The position, if the route was parsed from text.
    pub at: Option<Position>,
}

/// An invalid document of routes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RoutesError {
    /// The document is not YAML of this format.
    #[error(transparent)]
    Yaml(#[from] YamlError),
    /// A route in the document violates a rule.
    #[error("{}{_0}", .0.at.map(|at| format!("line {}, column {}: ", at.line, at.column)).unwrap_or_default())]
    Route(#[from] RouteError),
}

impl RoutesError {
    /// The position of the problem, if known.
    #[must_use]
    pub fn at(&self) -> Option<Position> {
        match self {
            Self::Yaml(error) => error.at,
            Self::Route(error) => error.at,
        }
    }
}
