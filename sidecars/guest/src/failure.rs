//! Failures as the host reads them.

use std::fmt::Display;

use bottle_contract::session::guest::{Failure, FailureKind};

/// What most of the guest's functions return.
pub(crate) type Outcome<T> = Result<T, Failure>;

/// A failure of `kind`; `message` is a lower-case fragment that names its subject.
pub(crate) fn failed(kind: FailureKind, message: impl Display) -> Failure {
    Failure { kind, message: message.to_string() }
}

/// The request does not fit the state.
pub(crate) fn bad_state(message: impl Display) -> Failure {
    failed(FailureKind::BadState, message)
}

/// Anything without a kind of its own.
pub(crate) fn other(message: impl Display) -> Failure {
    failed(FailureKind::Other, message)
}
