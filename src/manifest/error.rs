//! Manifest errors with position and hint.

use std::fmt;

use super::Position;
use super::frontmatter::Unclosed;
use super::source::Source;

/// A manifest that cannot be used.
///
/// Displayed as `file:line:column: message`, with the hint on a line of its own. The message never
/// contains a value from the file that could be a secret: keys, names, types and positions only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestError {
    /// The file, as displayed.
    pub file: String,
    /// The position in the file; none when the file could not be read.
    pub position: Option<Position>,
    /// The problem, with its subject.
    pub message: String,
    /// The next step.
    pub hint: Option<String>,
}

impl ManifestError {
    /// An error of the whole file, without a position.
    pub(crate) fn whole(file: &Source, message: impl Into<String>) -> Self {
        Self { file: file.to_string(), position: None, message: message.into(), hint: None }
    }

    /// An error at one position.
    pub(crate) fn at(file: &Source, position: Position, message: impl Into<String>) -> Self {
        Self { file: file.to_string(), position: Some(position), message: message.into(), hint: None }
    }

    /// The same error with a hint.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl ManifestError {
    /// `file:line:column: message`, for callers that show the hint separately.
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

/// An error in one value, without its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    /// The position.
    pub(crate) at: Position,
    /// The problem, with its subject.
    pub(crate) message: String,
    /// The next step.
    pub(crate) hint: Option<String>,
}

impl Fault {
    /// An error at one position.
    pub(crate) fn new(at: Position, message: impl Into<String>) -> Self {
        Self { at, message: message.into(), hint: None }
    }

    /// The same error with a hint.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds the file.
    pub(crate) fn in_file(self, file: &Source) -> ManifestError {
        ManifestError {
            file: file.to_string(),
            position: Some(self.at),
            message: self.message,
            hint: self.hint,
        }
    }
}

impl From<Unclosed> for Fault {
    fn from(error: Unclosed) -> Self {
        Self::new(Position::START, error.to_string()).hint("end it with a line `---`")
    }
}
