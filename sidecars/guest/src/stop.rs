//! Stops a bottle: sends SIGTERM to the agent, and SIGKILL after a grace period. Then stops the services, kills all
//! processes, and removes the secret files.

use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;

use crate::guest::Guest;
use crate::{secret_files, services};

/// The time between SIGTERM and SIGKILL if pid 1 itself receives SIGTERM. This time is the usual grace period of
/// container engines minus some time for cleanup.
pub(crate) const DEFAULT_GRACE: Duration = Duration::from_secs(8);

/// The time limit for sending the last output of stopped processes to the clients that follow the output. When the
/// limit is reached, the rest of the output is not sent.
const LAST_OUTPUT: Duration = Duration::from_millis(500);

/// Stops the agent and the services, then kills all other processes of the bottle. Returns when no other process is
/// running, or when processes have been stuck in the kernel for more than a second.
pub(crate) async fn stop(guest: &Arc<Guest>, grace: Duration) {
    guest.agent.expect_no_client();
    // A paused process does not act on SIGTERM.
    guest.children.pause_all(false);
    if let Some((_, mut exit)) = guest.agent.process() {
        guest.agent.signal(&guest.children, Signal::TERM);
        if tokio::time::timeout(grace, exit.ended()).await.is_err() {
            guest.agent.signal(&guest.children, Signal::KILL);
        }
    }
    services::stop_all(guest).await;
    guest.children.kill_all().await;
    if let Err(error) = secret_files::remove(&guest.facts.root) {
        tracing::warn!(%error, "the files of secrets stay until the bottle's tmpfs is gone");
    }
    // Waits until the clients have received the last output and the exit status. Does not wait for slow clients longer
    // than [`LAST_OUTPUT`].
    let received = async {
        if guest.agent.process().is_some() {
            guest.agent.released().await;
        }
        guest.processes.unfollowed().await;
    };
    let _ = tokio::time::timeout(LAST_OUTPUT, received).await;
}
