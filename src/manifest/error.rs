//! Errors in manifests, with position and hint.

use std::fmt;

use super::Position;
use super::frontmatter::Unclosed;
use super::source::Source;
use crate::host::budget::BadBudget;

/// Why a manifest cannot be used.
///
/// Displayed as `file:line:column: message`, with the hint on a separate line. The message contains keys,
/// names, types and positions, but no value from the file that could be a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestError {
    /// The path of the file, as displayed.
    pub file: String,
    /// The position in the file; none if the file could not be read.
    pub position: Option<Position>,
    /// A sentence fragment that names the problem and its subject.
    pub message: String,
    /// What the user can do next.
    pub hint: Option<String>,
}

impl ManifestError {
    /// Creates an error about a whole file, without a position.
    pub(crate) fn whole(file: &Source, message: impl Into<String>) -> Self {
        Self { file: file.to_string(), position: None, message: message.into(), hint: None }
    }

    /// Creates an error at a position in a file.
    pub(crate) fn at(file: &Source, position: Position, message: impl Into<String>) -> Self {
        Self { file: file.to_string(), position: Some(position), message: message.into(), hint: None }
    }

    /// Adds a hint.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl ManifestError {
    /// Formats `file:line:column: message`, for callers that show the hint separately.
    #[must_use]
    pub fn without_hint(&self) -> String {
        match self.position {
            Some(position) => format!("{}:{position}: {}", self.file, self.message),
            None => format!("{}: {}", self.file, self.message),
        }
    }
}

impl fmt::Display for ManifestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.without_hint())?;
        match &self.hint {
            Some(hint) => write!(f, "\n  {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ManifestError {}

/// An error in a value of a file that is not known yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    /// The position of the value.
    pub(crate) at: Position,
    /// A sentence fragment that names the problem and its subject.
    pub(crate) message: String,
    /// What the user can do next.
    pub(crate) hint: Option<String>,
}

impl Fault {
    /// Creates an error at this position.
    pub(crate) fn new(at: Position, message: impl Into<String>) -> Self {
        Self { at, message: message.into(), hint: None }
    }

    /// Adds a hint.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Converts the fault to an error in this file.
    pub(crate) fn in_file(self, file: &Source) -> ManifestError {
        ManifestError {
            file: file.to_string(),
            position: Some(self.at),
            message: self.message,
            hint: self.hint,
        }
    }
}

impl From<BadBudget> for Fault {
    fn from(BadBudget { at, message, hint }: BadBudget) -> Self {
        Self { at, message, hint }
    }
}

impl From<Unclosed> for Fault {
    fn from(error: Unclosed) -> Self {
        Self::new(Position::START, error.to_string()).hint("end it with a line `---`")
    }
}
