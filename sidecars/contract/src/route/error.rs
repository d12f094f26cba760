//! What is wrong with a route, where, and what to write instead.

use crate::yaml::{Position, YamlError};

/// A route that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("route `{host}`, `{field}`: {problem}")]
pub struct RouteError {
    /// The route's host, as written.
    pub host: String,
    /// The key that is wrong (`auth.header`).
    pub field: &'static str,
    /// What is wrong and what to write instead, a lower-case fragment.
    pub problem: String,
    /// Where, when the route came from a text.
    pub at: Option<Position>,
}

/// A document of routes that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RoutesError {
    /// It is not the YAML of routes.
    #[error(transparent)]
    Yaml(#[from] YamlError),
    /// One of its routes breaks a rule.
    #[error("{}{_0}", .0.at.map(|at| format!("line {}, column {}: ", at.line, at.column)).unwrap_or_default())]
    Route(#[from] RouteError),
}

impl RoutesError {
    /// Where the trouble is, when that is known.
    #[must_use]
    pub fn at(&self) -> Option<Position> {
        match self {
            Self::Yaml(error) => error.at,
            Self::Route(error) => error.at,
        }
    }
}
