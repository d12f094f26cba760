//! The kinds of manifest, and the file that a manifest comes from.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde::{Serialize, Serializer};

/// The two kinds of manifest. An agent manifest may be untrusted; a bottle manifest decides what the agent
/// may access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// An agent: its prompt, skills and default bottles.
    Agent,
    /// A bottle: the sandbox, and the hosts that it may reach.
    Bottle,
}

impl Kind {
    /// Returns the name of the directory for manifests of this kind.
    #[must_use]
    pub fn directory(self) -> &'static str {
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

/// Where a manifest comes from. The values are in the order of precedence: a manifest from a later place shadows a
/// manifest of the same name from an earlier place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// The manifest is compiled into the program.
    Shipped,
    /// The manifest is in the user's `$BOTTLE_HOME`.
    Home,
    /// The manifest is in the working directory, which everyone with write access to the repository controls,
    /// including agents.
    Project,
}

impl Place {
    /// Returns the word that is displayed for this value.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Shipped => "shipped",
            Self::Home => "yours",
            Self::Project => "this project",
        }
    }
}

/// The file of a manifest. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Source {
    /// Where the file comes from.
    pub place: Place,
    /// The path. For [`Place::Shipped`], the path is relative to the directory `manifests/` of bottle's source code.
    pub path: Arc<Path>,
}

/// Formats the path, or `shipped:PATH`. Control characters are escaped, because a project controls its file
/// names.
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
