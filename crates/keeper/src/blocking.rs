//! Runs long blocking work on a separate thread.
//!
//! A keeper or a server has one thread, which forwards data and waits for events. Work such as a comparison of
//! workspaces would block this thread.

use std::convert::Infallible;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::{JoinError, spawn_blocking};
use tracing::Instrument as _;

/// Tells the work whether its caller still waits for the result.
#[derive(Debug)]
pub struct Caller(oneshot::Receiver<Infallible>);

impl Caller {
    /// Runs `work` until it completes or the caller no longer waits for the result. Returns `None` if the caller
    /// stopped waiting and `work` was dropped.
    pub async fn waits_for<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = work => Some(done),
            _ = &mut self.0 => None,
        }
    }
}

/// Runs `work` on a separate thread that `work` may block. Async code in `work` uses the caller's runtime. If this
/// future is dropped, the thread continues until `work` ends. [`Caller::waits_for`] tells `work` that no caller waits
/// any more.
///
/// # Errors
/// When the work panics, or the runtime ends.
pub async fn run<T: Send + 'static, F: Future<Output = T>>(
    work: impl FnOnce(Caller) -> F + Send + 'static,
) -> Result<T, JoinError> {
    let (_waits, caller) = oneshot::channel();
    let (runtime, span) = (Handle::current(), tracing::Span::current());
    spawn_blocking(move || runtime.block_on(work(Caller(caller)).instrument(span))).await
}
