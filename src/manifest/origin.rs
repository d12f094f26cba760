//! Where a value came from: file, line, and through which parents.

use std::fmt;
use std::sync::Arc;

use bottle_contract::names::Name;
use serde::{Serialize, Serializer};

use super::{AgentManifest, Position, Source};

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// No file says anything; it is the product's own default.
    Default,
    /// A place in a file.
    File {
        /// The file.
        source: Source,
        /// The place.
        at: Position,
        /// The bottles that led there by `extends`; none for one that was picked.
        via: Option<Arc<Via>>,
    },
}

impl Origin {
    /// A place in an agent's file.
    #[must_use]
    pub fn of_agent(agent: &AgentManifest, at: Position) -> Self {
        Self::File { source: agent.source.clone(), at, via: None }
    }
}

/// A bottle that extends another, and how it was reached itself. Layers that were reached the same way
/// share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Via {
    /// The bottle whose file names the next under `extends`.
    pub name: Name,
    /// What led to it; none for one that was picked.
    pub from: Option<Arc<Via>>,
}

impl Via {
    /// The bottles on the way, from the one that was picked.
    #[must_use]
    pub fn names(&self) -> Vec<&Name> {
        let mut names: Vec<&Name> =
            std::iter::successors(Some(self), |via| via.from.as_deref()).map(|via| &via.name).collect();
        names.reverse();
        names
    }
}

/// `PATH:LINE via PICKED → PARENT`, or `default`.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::File { source, at, via } = self else { return f.write_str("default") };
        write!(f, "{source}:{}", at.line)?;
        for (index, name) in via.iter().flat_map(|via| via.names()).enumerate() {
            write!(f, "{}{name}", if index == 0 { " via " } else { " → " })?;
        }
        Ok(())
    }
}

impl Serialize for Origin {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A value with its origin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Traced<T> {
    /// The value.
    pub value: T,
    /// Where it came from.
    pub origin: Origin,
}

impl<T> Traced<T> {
    /// The product's own default.
    pub const fn default_of(value: T) -> Self {
        Self { value, origin: Origin::Default }
    }
}
