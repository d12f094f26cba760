//! Limits the number of requests in progress, and the number of requests that wait for a slot.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::bounds;

/// The request slots, which all connections share.
pub(crate) struct RequestSlots {
    slots: Arc<Semaphore>,
    /// Limits the waiting requests, because a waiting request keeps its head in memory.
    waiting: Semaphore,
}

impl Default for RequestSlots {
    fn default() -> Self {
        Self {
            slots: Arc::new(Semaphore::new(bounds::REQUESTS)),
            waiting: Semaphore::new(bounds::WAITING_REQUESTS),
        }
    }
}

impl RequestSlots {
    /// Waits for a slot, which the request holds until its response ends.
    ///
    /// # Errors
    /// The cause, as a sentence fragment, if too many requests wait.
    pub(super) async fn take(&self) -> Result<OwnedSemaphorePermit, &'static str> {
        if let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() {
            return Ok(slot);
        }
        let place = self.waiting.try_acquire();
        let _place = place.map_err(|_| "too many requests of the bottle are in progress")?;
        Arc::clone(&self.slots).acquire_owned().await.map_err(|_| "the proxy is closing")
    }
}
