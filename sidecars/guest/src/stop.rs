//! Stops a bottle: SIGTERM to the agent, then SIGKILL to all processes.

use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;

use crate::guest::Guest;

/// Default time between SIGTERM and SIGKILL, if pid 1 itself gets SIGTERM: the grace period of container
/// engines, less the time for teardown.
pub(crate) const DEFAULT_GRACE: Duration = Duration::from_secs(8);

/// Time limit to send the last output of a stopped agent to its client.
const LAST_OUTPUT: Duration = Duration::from_millis(500);

/// Stops the agent, then kills all other processes. Returns when none runs.
pub(crate) async fn stop(guest: &Arc<Guest>, grace: Duration) {
    guest.agent.expect_no_client();
    if let Some((_, mut exit)) = guest.agent.process() {
        guest.agent.signal(guest, Signal::TERM);
        if tokio::time::timeout(grace, exit.ended()).await.is_err() {
            guest.agent.signal(guest, Signal::KILL);
        }
    }
    guest.children.kill_all().await;
    if guest.agent.process().is_some() {
        // The attached client gets the last output and the exit status, unless it is too slow.
        let _ = tokio::time::timeout(LAST_OUTPUT, guest.agent.released()).await;
    }
}
