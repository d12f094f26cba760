//! The conditions that end a request early: its deadline, or a client that is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::failure::{Outcome, other};

/// The time limit for a request, excluding the time in which it waits for its client.
pub(super) const TIME: Duration = Duration::from_secs(30);

/// The bounds of one request.
#[derive(Debug, Clone)]
pub(super) struct Bounds {
    deadline: Instant,
    gone: Arc<AtomicBool>,
}

/// Marks the client as gone when dropped.
pub(super) struct Client(Arc<AtomicBool>);

impl Drop for Client {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Bounds {
    /// The bounds of a request that begins now.
    pub(super) fn new(time: Duration) -> (Self, Client) {
        let gone = Arc::new(AtomicBool::new(false));
        (Self { deadline: Instant::now() + time, gone: gone.clone() }, Client(gone))
    }

    /// Whether the request has to end.
    pub(super) fn passed(&self) -> bool {
        self.gone.load(Ordering::Relaxed) || Instant::now() >= self.deadline
    }

    /// Fails if the request has to end.
    pub(super) fn check(&self) -> Outcome<()> {
        if self.passed() { Err(other(too_long())) } else { Ok(()) }
    }
}

/// The sentence about a deadline that passed.
pub(super) fn too_long() -> String {
    format!("it takes longer than {} s", TIME.as_secs())
}
