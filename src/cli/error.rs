//! The one error at the edge: what happened to what, what to do next, and the exit code.
//!
//! Libraries say what is wrong; only here is it decided what that means for the user and the script
//! that called. Nothing of it is ever a debug print, and nothing of it holds a secret's value.

use std::fmt;
use std::io;

use serde::Serialize;

use super::exit;

/// What a command ends with when it did not do what was asked.
#[derive(Debug)]
pub(crate) struct CliError {
    /// What kind of failure.
    pub(crate) kind: Kind,
    /// The thing it is about: a slug, a file, a flag.
    pub(crate) subject: Option<String>,
    /// What happened, to what, and why; a lower-case fragment without a full stop.
    pub(crate) message: String,
    /// What the user does next.
    pub(crate) hint: Option<String>,
    /// The process's exit code.
    pub(crate) exit: u8,
}

/// What kind of failure; the word stands in `--json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// The command line asks for something that does not exist or does not go together.
    Usage,
    /// A manifest cannot be used.
    Manifest,
    /// `settings.yml` cannot be used.
    Settings,
    /// A file of the user's own rules cannot be used.
    Rules,
    /// A secret could not be had.
    Secret,
    /// No bottle has this slug.
    NoSuchBottle,
    /// The bottle is there and not in the state the command needs.
    State,
    /// The backend is missing or refused.
    Backend,
    /// Isolation could not be proven.
    Isolation,
    /// The program to run inside is missing or cannot be run.
    Program,
    /// Something failed on the way.
    Failed,
    /// The user or a signal ended it.
    Interrupted,
    /// Nobody reads standard output any more: nothing is printed about it.
    OutputClosed,
}

impl CliError {
    /// An error with the exit code that its kind usually has.
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        let exit = match kind {
            Kind::Usage | Kind::Secret | Kind::NoSuchBottle => exit::USAGE,
            Kind::Manifest | Kind::Settings | Kind::Rules => exit::MANIFEST,
            Kind::Backend => exit::BACKEND,
            Kind::Isolation => exit::ISOLATION,
            Kind::Interrupted => exit::INTERRUPTED,
            Kind::State | Kind::Program | Kind::Failed => exit::FAILED,
            Kind::OutputClosed => exit::OUTPUT_CLOSED,
        };
        Self { kind, subject: None, message: message.into(), hint: None, exit }
    }

    /// Wrong usage.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Kind::Usage, message)
    }

    /// Something failed on the way.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(Kind::Failed, message)
    }

    /// Names what it is about.
    #[must_use]
    pub(crate) fn about(mut self, subject: impl fmt::Display) -> Self {
        self.subject = Some(subject.to_string());
        self
    }

    /// Adds the next step.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds the next step when there is one.
    #[must_use]
    pub(crate) fn hint_if(mut self, hint: Option<impl Into<String>>) -> Self {
        self.hint = hint.map(Into::into).or(self.hint);
        self
    }

    /// Sets the exit code, where it is not its kind's usual one.
    #[must_use]
    pub(crate) fn exit(mut self, code: u8) -> Self {
        self.exit = code;
        self
    }

    /// `{error: {kind, subject, message, hint, exit}}`.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::json!({"error": {
            "kind": self.kind,
            "subject": self.subject,
            "message": self.message,
            "hint": self.hint,
            "exit": self.exit,
        }})
    }
}

/// What the user answered; `left` is what an answer that was not given leaves, such as `nothing was started`.
///
/// # Errors
/// When there was nobody to ask, and when the user left the question.
pub(crate) fn answered<T>(asked: io::Result<Option<T>>, left: &str) -> Result<T, CliError> {
    asked
        .map_err(|error| CliError::failed(format!("cannot ask: {error}")))?
        .ok_or_else(|| CliError::new(Kind::Interrupted, left))
}

impl From<crate::host::HostError> for CliError {
    fn from(error: crate::host::HostError) -> Self {
        Self::failed(error.to_string()).hint(error.hint())
    }
}

impl From<crate::host::SettingsError> for CliError {
    fn from(error: crate::host::SettingsError) -> Self {
        Self::new(Kind::Settings, error.to_string()).about("settings.yml").hint_if(error.hint())
    }
}

impl From<crate::host::OwnRulesError> for CliError {
    fn from(error: crate::host::OwnRulesError) -> Self {
        Self::new(Kind::Rules, error.to_string()).about("rules").hint(error.hint())
    }
}

impl From<crate::backend::BackendError> for CliError {
    fn from(error: crate::backend::BackendError) -> Self {
        use crate::backend::BackendErrorKind;
        let failed = match error.kind {
            BackendErrorKind::Unavailable | BackendErrorKind::Unsupported => {
                Self::new(Kind::Backend, error.message)
            }
            BackendErrorKind::ProgramMissing => Self::new(Kind::Program, error.message).exit(exit::BACKEND),
            BackendErrorKind::Busy => Self::new(Kind::State, error.message),
            BackendErrorKind::Failed => Self::failed(error.message),
        };
        failed.hint_if(error.hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_form_has_every_field() {
        let error = CliError::usage("no agent").about("--agent").hint("name one");
        assert_eq!(
            error.json().to_string(),
            r#"{"error":{"exit":2,"hint":"name one","kind":"usage","message":"no agent","subject":"--agent"}}"#
        );
    }
}
