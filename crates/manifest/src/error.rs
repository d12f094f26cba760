//! Errors in manifests, with position and hint.

use std::fmt;

use bottle_host::budget::BadBudget;

use super::Position;
use super::excerpt::excerpt;
use super::frontmatter::Unclosed;
use super::source::Source;

/// Why a manifest cannot be used.
///
/// Displayed as `file:line:column: message`, with the hint on a separate line. The message contains keys,
/// names, types and positions, but no value from the file that could be a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestError {
    /// The path of the file, as displayed.
    pub file: String,
    /// The position in the file; `None` if the file could not be read.
    pub position: Option<Position>,
    /// A sentence fragment that names the problem and its subject.
    pub message: String,
    /// What the user can do next.
    pub hint: Option<String>,
    /// The text around the error, and further errors. Boxed, because few errors have a context.
    context: Option<Box<Context>>,
}

/// The line with the error, and the other errors of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Context {
    excerpt: Option<String>,
    more: Vec<ManifestError>,
}

impl ManifestError {
    /// Creates an error about a whole file, without a position.
    pub fn whole(file: &Source, message: impl Into<String>) -> Self {
        Self::new(file.to_string(), None, message.into())
    }

    /// Creates an error at a position in a file.
    pub fn at(file: &Source, position: Position, message: impl Into<String>) -> Self {
        Self::new(file.to_string(), Some(position), message.into())
    }

    /// Creates an error about manifests that are valid alone, but cannot be used together.
    pub fn in_selection(message: String) -> Self {
        Self::new("the chosen bottles".to_owned(), None, message)
    }

    fn new(file: String, position: Option<Position>, message: String) -> Self {
        Self { file, position, message, hint: None, context: None }
    }

    /// Creates an error from all faults of a file with this text. `faults` must not be empty.
    pub(super) fn of_faults(faults: Vec<Fault>, file: &Source, text: &str) -> Self {
        let with_excerpt = |fault: Fault| {
            let excerpt = excerpt(text, fault.at.line);
            let context = Context { excerpt, more: Vec::new() };
            Self { context: Some(Box::new(context)), ..fault.in_file(file) }
        };
        let mut errors = faults.into_iter().map(with_excerpt);
        let mut first = errors.next().unwrap_or_else(|| Self::whole(file, "cannot be read"));
        first.context.get_or_insert_default().more = errors.collect();
        first
    }

    /// The line at the position, without values that could be secrets.
    #[must_use]
    pub fn excerpt(&self) -> Option<&str> {
        self.context.as_ref()?.excerpt.as_deref()
    }

    /// Further errors of the same file, in the order of the file. In these errors, `more` is empty.
    #[must_use]
    pub fn more(&self) -> &[Self] {
        self.context.as_ref().map_or(&[], |context| &context.more)
    }

    /// Adds a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
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
        if let Some(hint) = &self.hint {
            write!(f, "\n  {hint}")?;
        }
        self.more().iter().try_for_each(|error| write!(f, "\n{error}"))
    }
}

impl std::error::Error for ManifestError {}

/// An error in a value, created before its file is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The position of the value.
    pub at: Position,
    /// A sentence fragment that names the problem and its subject.
    pub message: String,
    /// What the user can do next.
    pub hint: Option<String>,
    /// Whether the key at the position is unknown. The rest of the map may have further errors.
    pub(super) is_unknown_key: bool,
}

impl Fault {
    /// Creates an error at this position.
    pub fn new(at: Position, message: impl Into<String>) -> Self {
        Self { at, message: message.into(), hint: None, is_unknown_key: false }
    }

    /// Adds a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Converts the fault to an error in this file.
    pub fn in_file(self, file: &Source) -> ManifestError {
        ManifestError { hint: self.hint, ..ManifestError::at(file, self.at, self.message) }
    }
}

impl From<BadBudget> for Fault {
    fn from(BadBudget { at, message, hint }: BadBudget) -> Self {
        Self { hint, ..Self::new(at, message) }
    }
}

impl From<Unclosed> for Fault {
    fn from(error: Unclosed) -> Self {
        Self::new(Position::START, error.to_string()).hint("end it with a line `---`")
    }
}
