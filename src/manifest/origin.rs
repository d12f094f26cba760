//! The origin of a value: file, line, and the chain of `extends`.

use std::fmt;
use std::sync::Arc;

use bottle_contract::names::Name;
use serde::{Serialize, Serializer};

use super::{AgentManifest, Position, Source};

/// The origin of a value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Origin {
    /// The built-in default.
    #[default]
    Default,
    /// A position in a file.
    File {
        /// The file.
        source: Source,
        /// The position.
        at: Position,
        /// The chain of `extends` to that file; none for a selected bottle.
        via: Option<Arc<Via>>,
    },
}

impl Origin {
    /// A position in an agent's file.
    #[must_use]
    pub fn in_agent(agent: &AgentManifest, at: Position) -> Self {
        Self::File { source: agent.source.clone(), at, via: None }
    }
}

/// A link in a chain of `extends`. Layers with the same chain share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Via {
    /// The bottle that extends the next one.
    pub name: Name,
    /// The chain to it; none for a selected bottle.
    pub from: Option<Arc<Via>>,
}

impl Via {
    /// The bottles of the chain, beginning with the selected one.
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
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Traced<T> {
    /// The value.
    pub value: T,
    /// Its origin.
    pub origin: Origin,
}

impl<T> Traced<T> {
    /// The built-in default.
    pub const fn default_of(value: T) -> Self {
        Self { value, origin: Origin::Default }
    }
}
