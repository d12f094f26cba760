//! Why an agent and its bottles cannot be resolved.

use std::fmt;

use bottle_policy::names::Name;
use bottle_text::suggest::suggest;
use bottle_text::yaml::listed;

use crate::ManifestError;

/// Why a selection of agent and bottles cannot be resolved. No bottle is started in this case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResolveError {
    /// A manifest file is invalid.
    Manifest(ManifestError),
    /// The user named an agent that does not exist.
    UnknownAgent {
        /// The name that the user gave.
        name: Name,
        /// The names of the existing agents.
        available: Vec<Name>,
    },
    /// The user named a bottle that does not exist.
    UnknownBottle {
        /// The name that the user gave.
        name: Name,
        /// The names of the existing bottles.
        available: Vec<Name>,
    },
    /// Neither the user nor the agent manifest names a bottle.
    NoBottle {
        /// The name of the agent.
        agent: Name,
        /// The names of the existing bottles.
        available: Vec<Name>,
    },
}

impl ResolveError {
    /// Returns the problem and its subject, as a sentence fragment without the hint.
    #[must_use]
    pub fn message(&self) -> String {
        match self {
            Self::Manifest(error) => error.without_hint(),
            Self::UnknownAgent { name, .. } => format!("no agent is named `{name}`"),
            Self::UnknownBottle { name, .. } => format!("no bottle is named `{name}`"),
            Self::NoBottle { agent, .. } => {
                format!("no bottle was chosen, and the agent `{agent}` names none")
            }
        }
    }

    /// Returns what the user can do next.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Manifest(error) => error.hint.clone(),
            Self::UnknownAgent { name, available } | Self::UnknownBottle { name, available } => {
                Some(names_hint(name, available))
            }
            Self::NoBottle { available, .. } => Some(format!(
                "choose with `--bottle NAME`, or write `bottle: NAME` into the agent; there are {}",
                list(available)
            )),
        }
    }
}

/// Returns the hint for an unknown name: the most similar name, and all existing names.
pub(super) fn names_hint(name: &Name, available: &[Name]) -> String {
    let there = format!("there are {}", list(available));
    match suggest(name.as_str(), available.iter().map(Name::as_str)) {
        Some(meant) => format!("did you mean `{meant}`? {there}"),
        None => there,
    }
}

fn list(names: &[Name]) -> String {
    listed(names.iter().map(Name::as_str))
}

impl From<ManifestError> for ResolveError {
    fn from(error: ManifestError) -> Self {
        Self::Manifest(error)
    }
}

impl fmt::Display for ResolveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message())?;
        match self.hint() {
            Some(hint) => write!(f, "\n  {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ResolveError {}
