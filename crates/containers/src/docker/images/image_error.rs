//! Errors of calls about images.

use std::fmt::Display;

use bollard::errors::Error;
use bottle_backend::BackendError;
use bottle_text::terminal::inert;

use crate::docker::engine::EngineError;

/// Converts an engine's error into the error of the action `what`.
pub(super) fn failed(what: impl Display, error: Error) -> BackendError {
    let error = EngineError::from(error);
    let failed = BackendError::failed(format!("{what}: {}", inert(error.to_string().trim())));
    BackendError { hint: error.hint().map(str::to_owned), ..failed }
}

pub(super) fn unsupported(message: String) -> BackendError {
    BackendError::unsupported(message, "name another image in `agent_provider`")
}

/// Whether the error says that the object does not exist.
pub(super) fn is_missing(error: &Error) -> bool {
    matches!(error, Error::DockerResponseServerError { status_code: 404, .. })
}
