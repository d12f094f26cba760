//! Converts failures to reports for the client. Each report has a kind, a message, the causes and a hint.

use std::error::Error;

use bottle_backend::{BackendError, BackendErrorKind};
use bottle_host::causes;
use bottle_instance::ClaimError;
use bottle_instance::snapshots::SnapshotError;

use super::protocol::{LaunchFailure, LaunchFailureKind as Kind};
use crate::launch::LaunchError;

impl LaunchFailure {
    fn new(kind: Kind, error: &(dyn Error + 'static), hint: Option<String>) -> Self {
        let chain = causes::chain(error);
        Self {
            kind,
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
        Self::new(Kind::Other, error, Some(error.hint()))
    }
}

impl From<&LaunchError> for LaunchFailure {
    /// The cause of the failure determines the kind. The launch phase does not affect the kind.
    fn from(error: &LaunchError) -> Self {
        let kind = match error {
            LaunchError::Backend(error) => return Self::from(error),
            LaunchError::ProgramMissing { .. } => Kind::ProgramMissing,
            LaunchError::ProgramRefused(_) => Kind::ProgramRefused,
            LaunchError::Interrupted => Kind::Interrupted,
            LaunchError::Isolation(_) => Kind::Isolation,
            _ => Kind::Other,
        };
        Self::new(kind, error, error.hint())
    }
}

impl From<&BackendError> for LaunchFailure {
    fn from(error: &BackendError) -> Self {
        let kind = match error.kind {
            BackendErrorKind::Unavailable | BackendErrorKind::Unsupported => Kind::Backend,
            BackendErrorKind::ProgramMissing => Kind::ProgramMissing,
            BackendErrorKind::Busy | BackendErrorKind::NotRunning | BackendErrorKind::Failed => Kind::Other,
        };
        let is_busy = error.kind == BackendErrorKind::Busy;
        Self { is_busy, ..Self::new(kind, error, error.hint.clone()) }
    }
}

impl From<&SnapshotError> for LaunchFailure {
    fn from(error: &SnapshotError) -> Self {
        match error {
            SnapshotError::Backend(error) => Self::from(error),
            _ => Self::new(Kind::Other, error, error.hint()),
        }
    }
}
