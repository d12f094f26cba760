//! The end of a bottle: asked first, then made.

use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;

use crate::guest::Guest;

/// Between SIGTERM and SIGKILL when nobody says (pid 1 itself was asked to end): what container engines
/// leave before they kill, less the time to tear down.
pub(crate) const DEFAULT_GRACE: Duration = Duration::from_secs(8);

/// How long the last output of a stopped agent may take to reach its client.
const LAST_OUTPUT: Duration = Duration::from_millis(500);

/// Ends the agent, then everything. Returns when nothing else runs.
pub(crate) async fn stop(guest: &Arc<Guest>, grace: Duration) {
    guest.agent.await_nobody();
    if let Some((_, mut exit)) = guest.agent.process() {
        guest.agent.signal(guest, Signal::TERM);
        if tokio::time::timeout(grace, exit.ended()).await.is_err() {
            guest.agent.signal(guest, Signal::KILL);
        }
    }
    guest.children.kill_all().await;
    if guest.agent.process().is_some() {
        // The client at the terminal gets the last bytes and the exit, unless it is too slow for them.
        let _ = tokio::time::timeout(LAST_OUTPUT, guest.agent.vacant()).await;
    }
}
