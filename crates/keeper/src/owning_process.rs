//! Stops a bottle when the process of `--owned` ends, in whatever way it ends.

use std::sync::Arc;
use std::time::Duration;

use bottle_host::process::ProcessId;
use bottle_policy::names::Slug;

use super::parent::stop;
use super::shared::Shared;

/// The interval at which the process is looked up. The id and the start time together name one process, so an id that the
/// kernel reuses is no mistake.
const INTERVAL: Duration = Duration::from_millis(500);

/// Waits until the process has ended, and then stops the bottle `slug`.
pub(super) async fn watch(slug: Slug, process: ProcessId, shared: Arc<Shared>) {
    while !process.has_ended() {
        tokio::time::sleep(INTERVAL).await;
    }
    stop(&shared, format!("{slug} ends, because the process {}, which owns it, ended", process.pid)).await;
}
