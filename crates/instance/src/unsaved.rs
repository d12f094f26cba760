//! The changes that would be lost if a bottle's files were removed.

use bottle_backend::BackendError;
use bottle_host::causes;
use serde::{Deserialize, Serialize};

/// The changes that would be lost if a bottle's files were removed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unsaved {
    /// Whether the workspace has work that git does not ignore.
    pub work: bool,
    /// The number of changed files that git ignores. Build output is not counted.
    pub ignored: u64,
    /// The workspace paths of the first few changed files that git ignores. The agent chose these paths.
    pub named: Vec<String>,
    /// Why the search has no complete result, as a sentence fragment. `None` if the result is complete.
    pub unknown: Option<String>,
}

impl Unsaved {
    /// Creates a result that says only that there is work.
    #[must_use]
    pub fn work() -> Self {
        Self { work: true, ..Self::default() }
    }

    /// Creates the result of a search that failed. [`Self::is_work`] is true for this result.
    #[must_use]
    pub fn unknown(error: &BackendError) -> Self {
        Self { unknown: Some(causes::one_line(error)), ..Self::default() }
    }

    /// Whether anything would be lost. An unknown result is treated as a loss.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.is_work() || self.ignored > 0
    }

    /// Whether there is or may be work.
    #[must_use]
    pub fn is_work(&self) -> bool {
        self.work || self.unknown.is_some()
    }
}
