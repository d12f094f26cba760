//! Limits the number of concurrent copies.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::failure::{Outcome, other};

/// The maximum number of concurrent copies. Each copy uses a thread. A further copy is refused.
pub(crate) const MAX_COPIES: usize = 4;

/// The permits that limit concurrent copies.
pub(crate) struct CopySlots(Arc<Semaphore>);

impl Default for CopySlots {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_COPIES)))
    }
}

impl CopySlots {
    pub(super) fn take(&self) -> Outcome<OwnedSemaphorePermit> {
        let slot = self.0.clone().try_acquire_owned();
        slot.map_err(|_| other(format!("{MAX_COPIES} copies are running already")))
    }
}
