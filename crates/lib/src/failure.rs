//! Why an operation failed, as every interface (command line, dashboards, MCP) reports it.
//!
//! The library defines no exit codes and parses no flags. `cli` maps the kind of a failure to an exit code. No message
//! contains debug output or a secret's value.

use std::error::Error;
use std::fmt;
use std::path::Path;

use bottle_host::causes;
use bottle_keeper::protocol::LaunchFailure;
use serde::Serialize;

/// Why an operation failed.
#[derive(Debug, Serialize)]
pub struct Failure {
    /// The kind of failure.
    pub kind: Kind,
    /// What the failure is about, for example a slug, a file or a setting.
    pub subject: Option<String>,
    /// What failed and why: a lower-case fragment without a full stop.
    pub message: String,
    /// The causes that form the end of the message, the outermost cause first.
    #[serde(skip)]
    pub causes: Vec<String>,
    /// The next step for the user.
    pub hint: Option<String>,
}

/// The kind of a failure. In JSON, the kind is the variant's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The command line is wrong, for example because of an unknown name or flags that exclude each other. Also used if
    /// the command has to ask a question and there is no terminal.
    Usage,
    /// A manifest cannot be used.
    Manifest,
    /// `settings.yml` cannot be used.
    Settings,
    /// One of the user's rules files cannot be used.
    Rules,
    /// A secret is missing or cannot be read.
    Secret,
    /// No bottle has this slug.
    NoSuchBottle,
    /// The bottle exists, but the command cannot work on a bottle in this state.
    State,
    /// The bottle has no commits to pull. In JSON, this kind has the same name as [`Kind::State`].
    #[serde(rename = "state")]
    NothingCommitted,
    /// The backend is missing, or refused the request.
    Backend,
    /// The isolation probe did not prove that the bottle is isolated.
    Isolation,
    /// The program to run in the bottle is missing or cannot be run.
    Program,
    /// The image or the host lacks the program of the agent. In JSON, this kind has the same name as [`Kind::Program`].
    #[serde(rename = "program")]
    ProgramMissing,
    /// The program of the agent cannot be run. In JSON, this kind has the same name as [`Kind::Program`].
    #[serde(rename = "program")]
    ProgramRefused,
    /// The operation failed for another reason.
    Failed,
    /// The engine that holds an existing bottle is missing, or refused the request. In JSON, this kind has the same
    /// name as [`Kind::Failed`].
    #[serde(rename = "failed")]
    EngineUnavailable,
    /// The user or a signal interrupted the command.
    Interrupted,
}

impl Failure {
    /// Creates a failure.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, subject: None, message: message.into(), causes: Vec::new(), hint: None }
    }

    /// Creates a failure from a library's error and that error's causes.
    pub fn from_error(kind: Kind, error: &(dyn Error + 'static)) -> Self {
        let chain = causes::chain(error);
        Self { causes: chain[1..].to_vec(), ..Self::new(kind, chain.join(": ")) }
    }

    /// Creates a failure from a launch failure that the keeper reported.
    pub fn from_launch(kind: Kind, failure: LaunchFailure) -> Self {
        Self { causes: failure.causes, hint: failure.hint, ..Self::new(kind, failure.message) }
    }

    /// Replaces the message by the text that `words` makes from it.
    #[must_use]
    pub fn reworded(self, words: impl FnOnce(&str) -> String) -> Self {
        Self { message: words(&self.message), ..self }
    }

    /// Appends a cause, and the causes of that cause, to the message.
    #[must_use]
    pub fn because(mut self, cause: &(dyn Error + 'static)) -> Self {
        let chain = causes::chain(cause);
        self.message = format!("{}: {}", self.message, chain.join(": "));
        self.causes.extend(chain);
        self
    }

    /// The message without its causes.
    pub fn without_causes(&self) -> &str {
        self.causes.iter().rev().fold(&self.message, |message, cause| {
            message.strip_suffix(cause.as_str()).and_then(|head| head.strip_suffix(": ")).unwrap_or(message)
        })
    }

    /// Creates a failure of [`Kind::Usage`].
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Kind::Usage, message)
    }

    /// Creates a failure of [`Kind::State`], about the state of a bottle or a file.
    pub fn state(message: impl Into<String>) -> Self {
        Self::new(Kind::State, message)
    }

    /// Creates a failure of an operation on a path: `cannot VERB PATH: CAUSE`.
    pub fn path(verb: &str, path: &Path, cause: impl Error + 'static) -> Self {
        Self::cannot(format_args!("{verb} {}", path.display()), cause).about(path.display())
    }

    /// Creates a failure of an operation: `cannot VERB OBJECT: CAUSE`.
    pub fn cannot(action: impl fmt::Display, cause: impl Error + 'static) -> Self {
        Self::failed(format!("cannot {action}")).because(&cause)
    }

    /// Creates a failure of [`Kind::Failed`].
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(Kind::Failed, message)
    }

    /// Sets the subject of the failure.
    #[must_use]
    pub fn about(mut self, subject: impl fmt::Display) -> Self {
        self.subject = Some(subject.to_string());
        self
    }

    /// Sets the subject of the failure, unless it is already set.
    #[must_use]
    pub fn about_if_unset(self, subject: impl fmt::Display) -> Self {
        if self.subject.is_none() { self.about(subject) } else { self }
    }

    /// Sets the hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Sets the hint if `hint` is not `None`.
    #[must_use]
    pub fn hint_if(mut self, hint: Option<impl Into<String>>) -> Self {
        self.hint = hint.map(Into::into).or(self.hint);
        self
    }
}

impl From<bottle_host::HostError> for Failure {
    fn from(error: bottle_host::HostError) -> Self {
        Self::from_error(Kind::Failed, &error).hint(error.hint())
    }
}

impl From<bottle_host::SettingsError> for Failure {
    fn from(error: bottle_host::SettingsError) -> Self {
        Self::from_error(Kind::Settings, &error).about("settings.yml").hint_if(error.hint())
    }
}

impl From<bottle_host::ScannerRulesError> for Failure {
    fn from(error: bottle_host::ScannerRulesError) -> Self {
        Self::from_error(Kind::Rules, &error).about("rules").hint(error.hint())
    }
}

impl From<bottle_backend::BackendError> for Failure {
    fn from(error: bottle_backend::BackendError) -> Self {
        use bottle_backend::BackendErrorKind;
        let failed = |kind| Self::from_error(kind, &error);
        let failed = match error.kind {
            BackendErrorKind::Unavailable | BackendErrorKind::Unsupported => failed(Kind::Backend),
            BackendErrorKind::ProgramMissing => failed(Kind::ProgramMissing),
            BackendErrorKind::Busy | BackendErrorKind::NotRunning => failed(Kind::State),
            BackendErrorKind::Failed => failed(Kind::Failed),
        };
        failed.hint_if(error.hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_causes_are_the_end_of_the_message() {
        let cause = std::io::Error::other("disk: full");
        let error = bottle_host::files::FileError::write(std::path::Path::new("/x"), cause);
        let error = Failure::failed("cannot start").because(&error);
        assert_eq!(error.message, "cannot start: cannot write /x: disk: full");
        assert_eq!(error.without_causes(), "cannot start");
        assert_eq!(error.causes, ["cannot write /x", "disk: full"]);
    }
}
