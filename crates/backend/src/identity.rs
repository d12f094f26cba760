//! The identity of the engine that holds a backend's resources.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Identifies a container engine, so that no engine is mistaken for another one.
///
/// A bottle's record contains this identity. A resource that an engine lacks is gone only if that engine is the
/// recorded one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineIdentity {
    /// The engine's own id. Older engines share one id between all engines of a machine.
    pub id: String,
    /// The engine's data directory, which tells engines with the same id apart.
    pub data: String,
    /// The engine's address, for messages. The same engine can have several.
    pub address: String,
    /// The assignment of the environment variable with which a command uses this engine (`DOCKER_HOST=unix:///path`).
    pub select: String,
}

impl EngineIdentity {
    /// Whether both identify the same engine. The address does not matter.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        (&self.id, &self.data) == (&other.id, &other.data)
    }
}

/// The address, and what distinguishes the engine from another one at the same address.
impl fmt::Display for EngineIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id: String = self.id.chars().take(9).collect();
        write!(f, "{} (id {id}, data in {})", self.address, self.data)
    }
}
