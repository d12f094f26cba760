//! What is wrong with a manifest, where, and what to write instead.

use std::fmt;

use super::located::Position;
use super::source::Source;

/// A manifest that cannot be used.
///
/// Displayed as `file:line:column: message`, with the hint on a line of its own. The message never
/// holds a value from the file that could be a secret: keys, names, types and places only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestError {
    /// The file, as a user would name it.
    pub file: String,
    /// Where in the file; none when it could not be read at all.
    pub position: Option<Position>,
    /// What is wrong, naming its subject.
    pub message: String,
    /// The next step.
    pub hint: Option<String>,
}

impl ManifestError {
    /// A fault of the file itself, at no particular place in it.
    pub(crate) fn whole(file: &Source, message: impl Into<String>) -> Self {
        Self { file: file.to_string(), position: None, message: message.into(), hint: None }
    }

    /// A fault at one place.
    pub(crate) fn at(file: &Source, position: Position, message: impl Into<String>) -> Self {
        Self { file: file.to_string(), position: Some(position), message: message.into(), hint: None }
    }

    /// The same fault with a next step.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl ManifestError {
    /// `file:line:column: message`, for whoever shows the hint by itself.
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

/// A fault in one value, before it is known which file it stands in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    /// Where.
    pub(crate) at: Position,
    /// What is wrong, naming its subject.
    pub(crate) message: String,
    /// The next step.
    pub(crate) hint: Option<String>,
}

impl Fault {
    /// A fault at one place.
    pub(crate) fn new(at: Position, message: impl Into<String>) -> Self {
        Self { at, message: message.into(), hint: None }
    }

    /// The same fault with a next step.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same fault in its file.
    pub(crate) fn in_file(self, file: &Source) -> ManifestError {
        ManifestError {
            file: file.to_string(),
            position: Some(self.at),
            message: self.message,
            hint: self.hint,
        }
    }
}

/// `a`, `b` and `c`, each in backquotes; “none” when there is nothing to list.
pub(crate) fn listed<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = words.into_iter().map(|word| format!("`{word}`")).collect();
    match quoted.as_slice() {
        [] => "none".to_owned(),
        [only] => only.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}
