//! Reports failures to the client. Each report has an exit code, a message, the causes and a hint.

use std::error::Error;

use super::protocol::LaunchFailure;
use crate::backend::{BackendError, BackendErrorKind};
use crate::causes;
use crate::instance::ClaimError;
use crate::instance::snapshots::SnapshotError;
use crate::launch::LaunchError;

impl LaunchFailure {
    fn new(exit: u8, error: &(dyn Error + 'static), hint: Option<String>) -> Self {
        let chain = causes::chain(error);
        Self {
            exit,
            message: chain.join(": "),
            causes: chain[1..].to_vec(),
            hint,
            left: Vec::new(),
            is_busy: false,
        }
    }
}

impl From<&ClaimError> for LaunchFailure {
    fn from(error: &ClaimError) -> Self {
        Self::new(1, error, Some(error.hint()))
    }
}

impl From<&LaunchError> for LaunchFailure {
    /// The cause of the failure determines the exit code, as the table in `docs/exit-codes.md` says; the launch phase does
    /// not.
    fn from(error: &LaunchError) -> Self {
        let exit = match error {
            LaunchError::Backend(error) => return Self::from(error),
            LaunchError::ProgramMissing { .. } => 127,
            LaunchError::ProgramRefused(_) => 126,
            LaunchError::Interrupted => 130,
            LaunchError::Isolation(_) => 5,
            _ => 1,
        };
        Self::new(exit, error, error.hint())
    }
}

impl From<&BackendError> for LaunchFailure {
    fn from(error: &BackendError) -> Self {
        let exit = match error.kind {
            BackendErrorKind::Unavailable | BackendErrorKind::Unsupported => 4,
            BackendErrorKind::ProgramMissing => 127,
            BackendErrorKind::Busy | BackendErrorKind::NotRunning | BackendErrorKind::Failed => 1,
        };
        let is_busy = error.kind == BackendErrorKind::Busy;
        Self { is_busy, ..Self::new(exit, error, error.hint.clone()) }
    }
}

impl From<&SnapshotError> for LaunchFailure {
    fn from(error: &SnapshotError) -> Self {
        match error {
            SnapshotError::Backend(error) => Self::from(error),
            _ => Self::new(1, error, error.hint()),
        }
    }
}
