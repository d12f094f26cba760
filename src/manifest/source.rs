//! The kind and source file of a manifest.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde::{Serialize, Serializer};

/// The two kinds of manifest; the split between them is the trust boundary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The agent: prompt, skills, default bottles.
    Agent,
    /// The sandbox and what it may reach.
    Bottle,
}

impl Kind {
    /// The folder name for manifests of this kind.
    #[must_use]
    pub fn folder(self) -> &'static str {
        match self {
            Self::Agent => "agents",
            Self::Bottle => "bottles",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Agent => "agent",
            Self::Bottle => "bottle",
        })
    }
}

/// The origin of a manifest. The order is the precedence: a later one shadows an earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// Compiled into the program.
    Shipped,
    /// The user's `$BOTTLE_HOME`.
    Home,
    /// The working directory, which anyone with write access to the repository controls, agents included.
    Project,
}

impl Place {
    /// The displayed word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Shipped => "shipped",
            Self::Home => "yours",
            Self::Project => "this project",
        }
    }
}

/// One manifest file. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Source {
    /// Its origin.
    pub place: Place,
    /// The path; for [`Place::Shipped`] relative to the repository's `manifests/`.
    pub path: Arc<Path>,
}

/// The path, or `shipped:PATH`. Control characters are escaped, because a project controls its file names.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.place == Place::Shipped {
            f.write_str("shipped:")?;
        }
        for c in self.path.to_string_lossy().chars() {
            if c.is_control() { write!(f, "{}", c.escape_default())? } else { write!(f, "{c}")? }
        }
        Ok(())
    }
}

impl Serialize for Source {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
