//! The error that ends a command: a failure of the library with an exit code.
//!
//! Only this module and [`exit`] choose exit codes.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::Path;

use bottle_lib::failure::Failure;
pub(crate) use bottle_lib::failure::Kind;
use serde::Serialize;

use super::exit;

/// The error that ends a command.
#[derive(Debug, Serialize)]
pub(crate) struct CliError {
    #[serde(flatten)]
    pub(crate) failure: Failure,
    /// The exit code of the process.
    pub(crate) exit: u8,
}

impl CliError {
    /// Returns the failure of [`Failure::new`] as a command's error.
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Failure::new(kind, message).into()
    }

    /// Returns the failure of [`Failure::from_error`] as a command's error.
    pub(crate) fn from_error(kind: Kind, error: &(dyn Error + 'static)) -> Self {
        Failure::from_error(kind, error).into()
    }

    /// Returns the failure of [`Failure::usage`] as a command's error.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Failure::usage(message).into()
    }

    /// Returns the failure of [`Failure::state`] as a command's error.
    pub(crate) fn state(message: impl Into<String>) -> Self {
        Failure::state(message).into()
    }

    /// Returns the failure of [`Failure::path`] as a command's error.
    pub(crate) fn path(verb: &str, path: &Path, cause: impl Error + 'static) -> Self {
        Failure::path(verb, path, cause).into()
    }

    /// Returns the failure of [`Failure::cannot`] as a command's error.
    pub(crate) fn cannot(action: impl fmt::Display, cause: impl Error + 'static) -> Self {
        Failure::cannot(action, cause).into()
    }

    /// Returns the failure of [`Failure::failed`] as a command's error.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Failure::failed(message).into()
    }

    /// Returns the error that silently ends a command after the reader closed standard output.
    pub(crate) fn output_closed() -> Self {
        Self::failed("standard output was closed").exit(exit::OUTPUT_CLOSED)
    }

    /// Whether the error means that the reader closed standard output.
    pub(crate) fn is_output_closed(&self) -> bool {
        self.exit == exit::OUTPUT_CLOSED
    }

    /// Returns the result of [`Failure::without_causes`].
    pub(crate) fn without_causes(&self) -> &str {
        self.failure.without_causes()
    }

    /// Applies [`Failure::reworded`] to the failure.
    #[must_use]
    pub(crate) fn reworded(self, words: impl FnOnce(&str) -> String) -> Self {
        self.map(|failure| failure.reworded(words))
    }

    /// Applies [`Failure::about`] to the failure.
    #[must_use]
    pub(crate) fn about(self, subject: impl fmt::Display) -> Self {
        self.map(|failure| failure.about(subject))
    }

    /// Applies [`Failure::about_if_unset`] to the failure.
    #[must_use]
    pub(crate) fn about_if_unset(self, subject: impl fmt::Display) -> Self {
        self.map(|failure| failure.about_if_unset(subject))
    }

    /// Applies [`Failure::hint`] to the failure.
    #[must_use]
    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        self.map(|failure| failure.hint(hint))
    }

    /// Applies [`Failure::hint_if`] to the failure.
    #[must_use]
    pub(crate) fn hint_if(self, hint: Option<impl Into<String>>) -> Self {
        self.map(|failure| failure.hint_if(hint))
    }

    /// Sets an exit code other than the usual exit code of the failure's kind.
    #[must_use]
    pub(crate) fn exit(mut self, code: u8) -> Self {
        self.exit = code;
        self
    }

    /// For a command that returns the exit code of a program: sets an exit code that is reserved for errors of `bottle`
    /// itself.
    #[must_use]
    pub(crate) fn beside_a_program(self) -> Self {
        if self.exit < exit::BOTTLE_FAILED { self.exit(exit::BOTTLE_FAILED) } else { self }
    }

    /// Returns the error as `{error: {kind, subject, message, hint, exit}}`.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::json!({"error": self})
    }

    fn map(self, change: impl FnOnce(Failure) -> Failure) -> Self {
        Self { failure: change(self.failure), exit: self.exit }
    }
}

impl From<Failure> for CliError {
    fn from(failure: Failure) -> Self {
        Self { exit: exit::of(failure.kind), failure }
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

impl From<bottle_host::HostError> for CliError {
    fn from(error: bottle_host::HostError) -> Self {
        Failure::from(error).into()
    }
}

impl From<bottle_host::SettingsError> for CliError {
    fn from(error: bottle_host::SettingsError) -> Self {
        Failure::from(error).into()
    }
}

impl From<bottle_host::ScannerRulesError> for CliError {
    fn from(error: bottle_host::ScannerRulesError) -> Self {
        Failure::from(error).into()
    }
}

impl From<bottle_keeper::ledger::LedgerError> for CliError {
    fn from(error: bottle_keeper::ledger::LedgerError) -> Self {
        Failure::from(error).into()
    }
}

impl From<bottle_backend::BackendError> for CliError {
    fn from(error: bottle_backend::BackendError) -> Self {
        Failure::from(error).into()
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
