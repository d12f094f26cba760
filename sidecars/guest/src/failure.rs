//! Failures that are sent to the host.

use std::fmt::Display;

use bottle_contract::session::guest::{Failure, FailureKind};

/// The result of a request.
pub(crate) type Outcome<T> = Result<T, Failure>;

/// A failure of `kind`; `message` is a lower-case fragment with its subject.
pub(crate) fn failed(kind: FailureKind, message: impl Display) -> Failure {
    Failure { kind, message: message.to_string() }
}

/// The request is invalid in the current state.
pub(crate) fn bad_state(message: impl Display) -> Failure {
    failed(FailureKind::BadState, message)
}

/// A failure of no other kind.
pub(crate) fn other(message: impl Display) -> Failure {
    failed(FailureKind::Other, message)
}
