//! Where a value comes from: file, line, and the chain of `extends`.

use std::fmt;
use std::sync::Arc;

use bottle_policy::names::Name;
use serde::{Serialize, Serializer};

use super::{AgentManifest, Position, Source};

/// Where a value comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Origin {
    /// The value is the built-in default.
    #[default]
    Default,
    /// The value is in a file.
    File {
        /// The file that contains the value.
        source: Source,
        /// The position of the value in the file.
        at: Position,
        /// The chain of `extends` that leads to the file; `None` if the user or the agent manifest selected this
        /// bottle.
        via: Option<Arc<Via>>,
    },
}

impl Origin {
    /// Creates the origin of a value at a position in an agent manifest.
    #[must_use]
    pub fn in_agent(agent: &AgentManifest, at: Position) -> Self {
        Self::File { source: agent.source.clone(), at, via: None }
    }
}

/// A link in a chain of `extends`. Layers with the same chain share the links.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Via {
    /// The bottle that extends the next bottle in the chain.
    pub name: Name,
    /// The chain that leads to this bottle; `None` if this bottle was selected.
    pub from: Option<Arc<Via>>,
}

impl Via {
    /// Returns the bottles of the chain, starting with the selected bottle.
    #[must_use]
    pub fn names(&self) -> Vec<&Name> {
        let mut names: Vec<&Name> =
            std::iter::successors(Some(self), |via| via.from.as_deref()).map(|via| &via.name).collect();
        names.reverse();
        names
    }
}

/// Formats `PATH:LINE via PICKED → PARENT`, or `default`.
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

/// A value, and where it comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Traced<T> {
    /// The resolved value.
    pub value: T,
    /// Where the value comes from.
    pub origin: Origin,
}

impl<T> Traced<T> {
    /// Creates a built-in default value.
    pub const fn default_of(value: T) -> Self {
        Self { value, origin: Origin::Default }
    }
}
