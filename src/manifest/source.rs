//! Which file a value came from, as a user would name it.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde::{Serialize, Serializer};

/// The two kinds of manifest; the split between them is the trust boundary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Who works.
    Agent,
    /// Where it works and what it may reach.
    Bottle,
}

impl Kind {
    /// The folder that holds manifests of this kind, in every place.
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

/// Who put a manifest there. The order is that of precedence: a later one shadows an earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// Compiled into the program.
    Shipped,
    /// The user's `$BOTTLE_HOME`.
    Home,
    /// The working directory: anyone who can write to the repository, an agent included.
    Project,
}

impl Place {
    /// As a user reads it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Shipped => "shipped",
            Self::Home => "yours",
            Self::Project => "this project",
        }
    }
}

/// One manifest file. Cheap to clone: every value of the file carries it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Source {
    /// Who put it there.
    pub place: Place,
    /// The path; for [`Place::Shipped`] relative to the repository's `manifests/`.
    pub path: Arc<Path>,
}

/// The path, or `shipped:PATH`. Control characters are escaped: a project chooses its file names.
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
