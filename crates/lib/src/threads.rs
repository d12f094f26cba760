//! Operations that block their thread for long, on threads of their own.

use bottle_keeper::blocking;

use super::failure::{Failure, Kind};

/// Runs an operation on a thread of its own. If this future is dropped, that of the operation is dropped at its next wait.
///
/// # Errors
/// Those of the operation.
pub(crate) async fn cancelled_on_drop<T: Send + 'static, F: Future<Output = Result<T, Failure>>>(
    operation: impl FnOnce() -> F + Send + 'static,
) -> Result<T, Failure> {
    run(async move |mut caller| caller.waits_for(operation()).await.unwrap_or_else(|| Err(cancelled()))).await
}

/// Runs an operation on a thread of its own. It goes on if this future is dropped, which it learns from its argument.
///
/// # Errors
/// Those of the operation.
pub(crate) async fn run<T: Send + 'static, F: Future<Output = Result<T, Failure>>>(
    operation: impl FnOnce(blocking::Caller) -> F + Send + 'static,
) -> Result<T, Failure> {
    let done = blocking::run(operation).await;
    done.unwrap_or_else(|error| Err(Failure::cannot("finish the operation", error)))
}

/// The failure of an operation for which nobody waits any more.
pub(crate) fn cancelled() -> Failure {
    Failure::new(Kind::Interrupted, "the operation was cancelled")
}
