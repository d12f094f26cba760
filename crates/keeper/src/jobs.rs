//! Snapshot jobs, which create or remove a snapshot while the bottle runs.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bottle_backend::{Backend, Copied, ProgressSink};
use bottle_instance::Claim;
use bottle_instance::snapshots::{self, CommitOptions, Removal};
use tokio::sync::mpsc;

use super::protocol::{Committed, KeeperEvent};

/// The minimum time between two progress reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// A running snapshot job.
pub(super) type Job<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Waits until the running job has finished, and then clears `job`. Waits forever if there is no job.
pub(super) async fn done(job: &mut Option<Job<'_>>) {
    match job {
        Some(running) => running.await,
        None => std::future::pending().await,
    }
    *job = None;
}

/// Creates a snapshot. Reports the progress and the result to `events`.
pub(super) fn commit<'a>(
    backend: &'a dyn Backend,
    claim: &'a Claim,
    options: CommitOptions,
    events: mpsc::Sender<KeeperEvent>,
) -> Job<'a> {
    Box::pin(async move {
        let committed = snapshots::commit(backend, claim, options, progress(events.clone()));
        let event = match committed.await {
            Ok(commit) => {
                KeeperEvent::Committed(Committed { snapshot: commit.snapshot, notes: commit.notes })
            }
            Err(error) => KeeperEvent::Failed((&error).into()),
        };
        // An error is ignored: the client may have disconnected, and the snapshot stays valid.
        let _ = events.send(event).await;
    })
}

/// Removes snapshots of the bottle. Reports the result to `events`.
pub(super) fn remove_snapshot<'a>(
    backend: &'a dyn Backend,
    claim: &'a Claim,
    which: Removal,
    events: mpsc::Sender<KeeperEvent>,
) -> Job<'a> {
    Box::pin(async move {
        let event = match snapshots::remove(backend, claim, &which).await {
            Ok(()) => KeeperEvent::Done,
            Err(error) => KeeperEvent::Failed((&error).into()),
        };
        let _ = events.send(event).await;
    })
}

/// Returns a sink that forwards progress to `events` at most once per [`REPORT_INTERVAL`]. The sink never waits for the
/// receiver.
pub(super) fn progress(events: mpsc::Sender<KeeperEvent>) -> ProgressSink {
    let (begun, last) = (Instant::now(), AtomicU64::new(0));
    ProgressSink::new(move |copied: Copied| {
        let now = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let before = last.load(Ordering::Relaxed);
        if now.saturating_sub(before) >= u64::try_from(REPORT_INTERVAL.as_millis()).unwrap_or(0) {
            last.store(now, Ordering::Relaxed);
            // One slot of the channel stays free for the result.
            if events.capacity() > 1 {
                let _ = events.try_send(KeeperEvent::Copied(copied));
            }
        }
    })
}
