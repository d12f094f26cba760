//! Defines the conditions that end a request early: its deadline, and the disconnection of its client.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::failure::{Outcome, other};

/// The time limit for a request, from the start of its thread. Reads, writes, exports and imports do not check this
/// limit.
pub(super) const TIME: Duration = Duration::from_secs(30);

/// The deadline of one request, and whether its client has disconnected.
#[derive(Debug, Clone)]
pub(super) struct Bounds {
    deadline: Instant,
    gone: Arc<AtomicBool>,
}

/// A guard that marks the client as gone when it is dropped.
pub(super) struct Client(Arc<AtomicBool>);

impl Drop for Client {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Bounds {
    /// Returns the bounds of a request that begins now, and the guard for its client.
    pub(super) fn new(time: Duration) -> (Self, Client) {
        let gone = Arc::new(AtomicBool::new(false));
        (Self { deadline: Instant::now() + time, gone: gone.clone() }, Client(gone))
    }

    /// Returns whether the request must end.
    pub(super) fn passed(&self) -> bool {
        self.gone.load(Ordering::Relaxed) || Instant::now() >= self.deadline
    }

    /// Fails if the request must end.
    pub(super) fn check(&self) -> Outcome<()> {
        if self.passed() { Err(other(too_long())) } else { Ok(()) }
    }
}

/// Returns the message for a deadline that has passed.
pub(super) fn too_long() -> String {
    format!("it takes longer than {} s", TIME.as_secs())
}
