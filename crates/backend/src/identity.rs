//! The identity of the container engine that manages a backend's resources.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Identifies a container engine, so that `bottle` never confuses two engines.
///
/// A bottle's record contains the identity of the bottle's engine. If an engine lacks a resource of the bottle, the
/// resource is gone only if that engine has the recorded identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineIdentity {
    /// The engine's own id. With older versions, all engines of a machine have the same id.
    pub id: String,
    /// The engine's data directory, which distinguishes engines with the same id.
    pub data: String,
    /// The engine's address, for messages. One engine can have several addresses.
    pub address: String,
    /// The environment variable, with its value, that makes a command use this engine (`DOCKER_HOST=unix:///path`).
    pub select: String,
}

impl EngineIdentity {
    /// Whether `self` and `other` identify the same engine. The address is not compared.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        (&self.id, &self.data) == (&other.id, &other.data)
    }
}

/// Writes the address, and the id and data directory, which distinguish the engine from another engine at the same
/// address.
impl fmt::Display for EngineIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id: String = self.id.chars().take(9).collect();
        write!(f, "{} (id {id}, data in {})", self.address, self.data)
    }
}
