//! Runs long blocking work on a separate thread.
//!
//! A keeper and a server have one thread that forwards and waits. Work such as a comparison of workspaces would block
//! that thread.

use std::convert::Infallible;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::{JoinError, spawn_blocking};
use tracing::Instrument as _;

/// Shows whether the caller still waits for the result of the work.
#[derive(Debug)]
pub struct Caller(oneshot::Receiver<Infallible>);

impl Caller {
    /// Runs `work` until the caller no longer waits for the result. `None` if `work` was dropped before it ended.
    pub async fn waits_for<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = work => Some(done),
            _ = &mut self.0 => None,
        }
    }
}

/// Runs work on a thread that it may block, with the runtime of the caller. If this future is dropped, the thread
/// continues until the work ends. The work learns from its [`Caller`] that nobody waits any more.
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
