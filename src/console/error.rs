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
    /// See [`Failure::new`].
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Failure::new(kind, message).into()
    }

    /// See [`Failure::from_error`].
    pub(crate) fn from_error(kind: Kind, error: &(dyn Error + 'static)) -> Self {
        Failure::from_error(kind, error).into()
    }

    /// See [`Failure::usage`].
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Failure::usage(message).into()
    }

    /// See [`Failure::state`].
    pub(crate) fn state(message: impl Into<String>) -> Self {
        Failure::state(message).into()
    }

    /// See [`Failure::path`].
    pub(crate) fn path(verb: &str, path: &Path, cause: impl Error + 'static) -> Self {
        Failure::path(verb, path, cause).into()
    }

    /// See [`Failure::cannot`].
    pub(crate) fn cannot(action: impl fmt::Display, cause: impl Error + 'static) -> Self {
        Failure::cannot(action, cause).into()
    }

    /// See [`Failure::failed`].
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Failure::failed(message).into()
    }

    /// The silent end of a command whose standard output was closed by the reader.
    pub(crate) fn output_closed() -> Self {
        Self::failed("standard output was closed").exit(exit::OUTPUT_CLOSED)
    }

    /// Whether the reader of standard output closed it.
    pub(crate) fn is_output_closed(&self) -> bool {
        self.exit == exit::OUTPUT_CLOSED
    }

    /// See [`Failure::without_causes`].
    pub(crate) fn without_causes(&self) -> &str {
        self.failure.without_causes()
    }

    /// See [`Failure::reworded`].
    #[must_use]
    pub(crate) fn reworded(self, words: impl FnOnce(&str) -> String) -> Self {
        self.map(|failure| failure.reworded(words))
    }

    /// See [`Failure::about`].
    #[must_use]
    pub(crate) fn about(self, subject: impl fmt::Display) -> Self {
        self.map(|failure| failure.about(subject))
    }

    /// See [`Failure::about_if_unset`].
    #[must_use]
    pub(crate) fn about_if_unset(self, subject: impl fmt::Display) -> Self {
        self.map(|failure| failure.about_if_unset(subject))
    }

    /// See [`Failure::hint`].
    #[must_use]
    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        self.map(|failure| failure.hint(hint))
    }

    /// See [`Failure::hint_if`].
    #[must_use]
    pub(crate) fn hint_if(self, hint: Option<impl Into<String>>) -> Self {
        self.map(|failure| failure.hint_if(hint))
    }

    /// Sets an exit code that differs from the usual one of the failure's kind.
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
