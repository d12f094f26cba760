//! Work that blocks its thread for long, on a thread of its own.
//!
//! A keeper and a server have one thread that forwards and waits. Work such as a comparison of workspaces would stop it.

use std::convert::Infallible;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::{JoinError, spawn_blocking};
use tracing::Instrument as _;

/// Whether anybody waits for the result of some work.
#[derive(Debug)]
pub struct Caller(oneshot::Receiver<Infallible>);

impl Caller {
    /// Does `work` until nobody waits for the result any more. `None` if it was dropped before its end.
    pub async fn waits_for<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = work => Some(done),
            _ = &mut self.0 => None,
        }
    }
}

/// Runs work on a thread that it may block, with the runtime of the caller. If this future is dropped, the thread goes on
/// until the work ends, which [`Caller`] tells when.
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
