//! Limits the time for a client to send or receive the next data.

use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

/// The time limit between two chunks of a body, and for the wait for a permit. The limit is long because a client sends
/// nothing while it builds a pack.
pub(crate) const IDLE: Duration = Duration::from_secs(120);

/// The time limit between two chunks of a body while all permits for exchanges are in use. Because of this limit, a
/// stalled client does not block other clients for long.
const IDLE_WHEN_BUSY: Duration = Duration::from_secs(15);

/// Waits for `next`, in which the client sends or receives data. Returns `None` if the client does neither for
/// [`IDLE`], or for [`IDLE_WHEN_BUSY`] while all `permits` are in use.
pub(crate) async fn idle_timeout<T>(permits: &Semaphore, next: impl Future<Output = T>) -> Option<T> {
    let mut next = std::pin::pin!(next);
    let started = Instant::now();
    loop {
        match timeout(IDLE_WHEN_BUSY, &mut next).await {
            Ok(next) => return Some(next),
            Err(_) if permits.available_permits() == 0 || started.elapsed() >= IDLE => return None,
            Err(_) => {}
        }
    }
}
