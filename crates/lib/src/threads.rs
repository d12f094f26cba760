//! Runs operations that block for a long time on separate threads.

use bottle_keeper::blocking;

use super::failure::{Failure, Kind};

/// Runs an operation on a separate thread. If this future is dropped, the operation's future is dropped at its next
/// await point.
///
/// # Errors
/// Returns the errors of the operation.
pub(crate) async fn cancelled_on_drop<T: Send + 'static, F: Future<Output = Result<T, Failure>>>(
    operation: impl FnOnce() -> F + Send + 'static,
) -> Result<T, Failure> {
    run(async move |mut caller| caller.waits_for(operation()).await.unwrap_or_else(|| Err(cancelled()))).await
}

/// Runs an operation on a separate thread. If this future is dropped, the operation continues. Its argument, the
/// [`blocking::Caller`], reports whether the future was dropped.
///
/// # Errors
/// Returns the errors of the operation.
pub(crate) async fn run<T: Send + 'static, F: Future<Output = Result<T, Failure>>>(
    operation: impl FnOnce(blocking::Caller) -> F + Send + 'static,
) -> Result<T, Failure> {
    let done = blocking::run(operation).await;
    done.unwrap_or_else(|error| Err(Failure::cannot("finish the operation", error)))
}

/// The failure of an operation whose caller no longer waits.
pub(crate) fn cancelled() -> Failure {
    Failure::new(Kind::Interrupted, "the operation was cancelled")
}
