//! Limits the number of concurrent file requests.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::failure::{Outcome, other};

/// The maximum number of concurrent file requests. Each request uses a thread.
const REQUESTS_MAX: usize = 8;

/// The time limit for a request to wait for a permit.
const WAIT: Duration = Duration::from_secs(30);

/// The permits that limit concurrent file requests.
pub(crate) struct FileSlots(Arc<Semaphore>);

impl Default for FileSlots {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(REQUESTS_MAX)))
    }
}

impl FileSlots {
    pub(super) async fn take(&self) -> Outcome<OwnedSemaphorePermit> {
        let slot = tokio::time::timeout(WAIT, self.0.clone().acquire_owned()).await;
        slot.ok()
            .and_then(Result::ok)
            .ok_or_else(|| other(format!("{REQUESTS_MAX} requests about files work already")))
    }
}
