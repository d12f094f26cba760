//! What takes a while beside a running bottle: a commit, or the removal of a snapshot.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::protocol::{Committed, KeeperEvent, LaunchFailure};
use crate::backend::{Backend, Copied, ProgressSink};
use crate::instance::Claim;
use crate::instance::freeze::{self, FreezeError};

/// Between two words of how far it is.
const EVERY: Duration = Duration::from_millis(100);

/// One under way.
pub(super) type Job<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Resolves when the one under way is done, and takes it away; never while there is none.
pub(super) async fn done(job: &mut Option<Job<'_>>) {
    match job {
        Some(under_way) => under_way.await,
        None => std::future::pending().await,
    }
    *job = None;
}

/// Commits, telling how far it is and what came of it.
pub(super) fn commit<'a>(
    backend: &'a dyn Backend,
    claim: &'a Claim,
    told: mpsc::Sender<KeeperEvent>,
) -> Job<'a> {
    Box::pin(async move {
        let event = match freeze::commit(backend, claim, progress(told.clone())).await {
            Ok(commit) => KeeperEvent::Committed(Committed {
                moved_by: backend.export_command(&commit.snapshot),
                snapshot: commit.snapshot,
                notes: commit.notes,
            }),
            Err(error) => KeeperEvent::Failed(failure(&error)),
        };
        // Nobody may be listening any more; it is done all the same.
        let _ = told.send(event).await;
    })
}

/// Removes the bottle's snapshots.
pub(super) fn remove_snapshot<'a>(
    backend: &'a dyn Backend,
    claim: &'a Claim,
    told: mpsc::Sender<KeeperEvent>,
) -> Job<'a> {
    Box::pin(async move {
        let event = match freeze::remove_snapshots(backend, claim).await {
            Ok(()) => KeeperEvent::Done,
            Err(error) => KeeperEvent::Failed(failure(&error)),
        };
        let _ = told.send(event).await;
    })
}

/// Passes on how far it is, now and then, and never waits for whoever listens.
pub(super) fn progress(told: mpsc::Sender<KeeperEvent>) -> ProgressSink {
    let (begun, last) = (Instant::now(), AtomicU64::new(0));
    ProgressSink::new(move |copied: Copied| {
        let now = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let before = last.load(Ordering::Relaxed);
        if now.saturating_sub(before) >= u64::try_from(EVERY.as_millis()).unwrap_or(0) {
            last.store(now, Ordering::Relaxed);
            // The last word needs a place of its own.
            if told.capacity() > 1 {
                let _ = told.try_send(KeeperEvent::Copied(copied));
            }
        }
    })
}

fn failure(error: &FreezeError) -> LaunchFailure {
    match error {
        FreezeError::Backend(error) => super::backend_failure(error),
        FreezeError::State(_) => LaunchFailure {
            exit: 1,
            message: error.to_string(),
            hint: Some("check the folder's permissions and the disk's free space".to_owned()),
            left: Vec::new(),
        },
    }
}
