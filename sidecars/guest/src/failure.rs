//! Builds the failures that the guest sends to the host.

use std::fmt::Display;

use bottle_protocol::session::guest::{Failure, FailureKind};

/// The result of handling a request.
pub(crate) type Outcome<T> = Result<T, Failure>;

/// Creates a failure of the given kind. `message` is a part of a sentence, begins in lower case and contains the
/// subject.
pub(crate) fn failed(kind: FailureKind, message: impl Display) -> Failure {
    Failure { kind, message: message.to_string() }
}

/// Creates a failure for a request that is invalid in the guest's current state.
pub(crate) fn bad_state(message: impl Display) -> Failure {
    failed(FailureKind::BadState, message)
}

/// Creates a failure without a specific kind.
pub(crate) fn other(message: impl Display) -> Failure {
    failed(FailureKind::Other, message)
}
