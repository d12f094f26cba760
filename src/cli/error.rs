//! The command line's error type: message, subject, hint and exit code.
//!
//! Library code reports what went wrong; only this module chooses hint and exit code. No error message
//! contains debug output or a secret's value.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::Path;

use serde::Serialize;

use super::exit;
use crate::causes;
use crate::keeper::protocol::LaunchFailure;

/// The error that ends a command.
#[derive(Debug, Serialize)]
pub(crate) struct CliError {
    /// The kind of failure.
    pub(crate) kind: Kind,
    /// What the error is about, for example a slug, a file or a flag.
    pub(crate) subject: Option<String>,
    /// What failed and why: a lower-case fragment without a full stop.
    pub(crate) message: String,
    /// The causes at the end of the message, outermost first. With `-v`, each cause is printed on its own
    /// line.
    #[serde(skip)]
    pub(crate) causes: Vec<String>,
    /// The next step for the user.
    pub(crate) hint: Option<String>,
    /// The exit code of the process.
    pub(crate) exit: u8,
}

/// The kind of a failure; `--json` prints the variant's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// The command line is wrong, for example because of an unknown name or flags that exclude each other; or the
    /// command has to ask a question and there is no terminal.
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
    /// The bottle has no commits to pull. In JSON, this is a kind of [`Kind::State`].
    #[serde(rename = "state")]
    NothingCommitted,
    /// The backend is missing or refused.
    Backend,
    /// Isolation was not proven.
    Isolation,
    /// The program to run in the bottle is missing or cannot be run.
    Program,
    /// An operation failed.
    Failed,
    /// The user or a signal interrupted the command.
    Interrupted,
    /// The reader of standard output closed it. The command ends without a message.
    OutputClosed,
}

impl CliError {
    /// Creates an error with the usual exit code of its kind.
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        let exit = match kind {
            Kind::Usage | Kind::Secret | Kind::NoSuchBottle => exit::USAGE,
            Kind::Manifest | Kind::Settings | Kind::Rules => exit::MANIFEST,
            Kind::Backend => exit::BACKEND,
            Kind::Isolation => exit::ISOLATION,
            Kind::Interrupted => exit::INTERRUPTED,
            Kind::State | Kind::NothingCommitted | Kind::Program | Kind::Failed => exit::FAILED,
            Kind::OutputClosed => exit::OUTPUT_CLOSED,
        };
        Self { kind, subject: None, message: message.into(), causes: Vec::new(), hint: None, exit }
    }

    /// Creates an error from a library's error and that error's causes.
    pub(crate) fn from_error(kind: Kind, error: &(dyn Error + 'static)) -> Self {
        let chain = causes::chain(error);
        Self { causes: chain[1..].to_vec(), ..Self::new(kind, chain.join(": ")) }
    }

    /// Creates an error from a launch failure that the keeper reported.
    pub(crate) fn from_failure(kind: Kind, failure: LaunchFailure) -> Self {
        Self { causes: failure.causes, hint: failure.hint, ..Self::new(kind, failure.message) }
    }

    /// Appends a cause, and the causes of that cause, to the message.
    #[must_use]
    pub(crate) fn because(mut self, cause: &(dyn Error + 'static)) -> Self {
        let chain = causes::chain(cause);
        self.message = format!("{}: {}", self.message, chain.join(": "));
        self.causes.extend(chain);
        self
    }

    /// The message without its causes.
    pub(crate) fn without_causes(&self) -> &str {
        self.causes.iter().rev().fold(&self.message, |message, cause| {
            message.strip_suffix(cause.as_str()).and_then(|head| head.strip_suffix(": ")).unwrap_or(message)
        })
    }

    /// Creates a usage error.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Kind::Usage, message)
    }

    /// Creates an error about the state of a bottle or a file.
    pub(crate) fn state(message: impl Into<String>) -> Self {
        Self::new(Kind::State, message)
    }

    /// Creates an error for a failed operation on a path: `cannot VERB PATH: CAUSE`.
    pub(crate) fn path(verb: &str, path: &Path, cause: impl Error + 'static) -> Self {
        Self::cannot(format_args!("{verb} {}", path.display()), cause).about(path.display())
    }

    /// Creates an error for a failed operation: `cannot VERB OBJECT: CAUSE`.
    pub(crate) fn cannot(action: impl fmt::Display, cause: impl Error + 'static) -> Self {
        Self::failed(format!("cannot {action}")).because(&cause)
    }

    /// Creates an error for a failed operation.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(Kind::Failed, message)
    }

    /// Sets what the error is about.
    #[must_use]
    pub(crate) fn about(mut self, subject: impl fmt::Display) -> Self {
        self.subject = Some(subject.to_string());
        self
    }

    /// Sets what the error is about, unless this is already set.
    #[must_use]
    pub(crate) fn about_if_unset(self, subject: impl fmt::Display) -> Self {
        if self.subject.is_none() { self.about(subject) } else { self }
    }

    /// Sets the hint.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Sets the hint if there is one.
    #[must_use]
    pub(crate) fn hint_if(mut self, hint: Option<impl Into<String>>) -> Self {
        self.hint = hint.map(Into::into).or(self.hint);
        self
    }

    /// Sets an exit code that differs from the usual one of the error's kind.
    #[must_use]
    pub(crate) fn exit(mut self, code: u8) -> Self {
        self.exit = code;
        self
    }

    /// Sets an exit code that is reserved for errors of bottle, in a command that passes on the exit code of a program.
    #[must_use]
    pub(crate) fn beside_a_program(self) -> Self {
        if self.exit < exit::BOTTLE_FAILED { self.exit(exit::BOTTLE_FAILED) } else { self }
    }

    /// Returns the error as `{error: {kind, subject, message, hint, exit}}`.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::json!({"error": self})
    }
}

/// Returns the user's answer, or an error if the user cancelled. `left` is the error's message, such as
/// `nothing was started`.
///
/// # Errors
/// Returns an error if there is no terminal, or if the user cancelled the question.
pub(crate) fn require_answer<T>(asked: io::Result<Option<T>>, left: &str) -> Result<T, CliError> {
    asked
        .map_err(|error| CliError::cannot("ask", error))?
        .ok_or_else(|| CliError::new(Kind::Interrupted, left))
}

impl From<crate::host::HostError> for CliError {
    fn from(error: crate::host::HostError) -> Self {
        Self::from_error(Kind::Failed, &error).hint(error.hint())
    }
}

impl From<crate::host::SettingsError> for CliError {
    fn from(error: crate::host::SettingsError) -> Self {
        Self::from_error(Kind::Settings, &error).about("settings.yml").hint_if(error.hint())
    }
}

impl From<crate::host::OwnRulesError> for CliError {
    fn from(error: crate::host::OwnRulesError) -> Self {
        Self::from_error(Kind::Rules, &error).about("rules").hint(error.hint())
    }
}

impl From<crate::backend::BackendError> for CliError {
    fn from(error: crate::backend::BackendError) -> Self {
        use crate::backend::BackendErrorKind;
        let failed = |kind| Self::from_error(kind, &error);
        let failed = match error.kind {
            BackendErrorKind::Unavailable | BackendErrorKind::Unsupported => failed(Kind::Backend),
            BackendErrorKind::ProgramMissing => failed(Kind::Program).exit(exit::BACKEND),
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
        let error = crate::host::files::FileError::write(std::path::Path::new("/x"), cause);
        let error = CliError::failed("cannot start").because(&error);
        assert_eq!(error.message, "cannot start: cannot write /x: disk: full");
        assert_eq!(error.without_causes(), "cannot start");
        assert_eq!(error.causes, ["cannot write /x", "disk: full"]);
    }

    #[test]
    fn the_json_form_has_every_field() {
        let error = CliError::usage("no agent").about("--agent").hint("name one");
        assert_eq!(
            error.json().to_string(),
            r#"{"error":{"exit":2,"hint":"name one","kind":"usage","message":"no agent","subject":"--agent"}}"#
        );
    }
}
