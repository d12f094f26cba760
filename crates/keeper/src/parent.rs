//! Ends a bottle whose parent, the bottle that started it, ended.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bottle_contract::names::Slug;
use bottle_host::Host;
use bottle_instance::Store;
use bottle_instance::children::{Parent, ParentState};
use tokio::sync::mpsc;

use super::protocol::Notice;
use super::shared::{Command, Shared};

/// How often the state of the parent is read.
const INTERVAL: Duration = Duration::from_secs(1);

/// How long a parent may be without a keeper. Its watcher starts a new one within this time.
const LOST_FOR: Duration = Duration::from_secs(30);

/// The time between SIGTERM and SIGKILL for the agent.
const GRACE: Duration = Duration::from_secs(10);

/// Waits until the parent ended, and then stops the bottle `slug`.
pub(super) async fn watch(host: Host, slug: Slug, parent: Parent, shared: Arc<Shared>) {
    let store = Store::of(&host);
    let mut lost_since = None;
    loop {
        match parent.state(&store) {
            ParentState::Running => lost_since = None,
            ParentState::Lost if lost_since.get_or_insert_with(Instant::now).elapsed() < LOST_FOR => {}
            ParentState::Lost | ParentState::Ended => break,
        }
        tokio::time::sleep(INTERVAL).await;
    }
    let text = format!("{slug} ends, because {}, which started it, ended", parent.slug);
    shared.notices.send(Notice::Warning(text));
    // No client receives the events of this stop.
    let (events, _received) = mpsc::channel(16);
    let grace_ms = u64::try_from(GRACE.as_millis()).unwrap_or(u64::MAX);
    let _ = shared.commands.send(Command::Stop { grace_ms, events }).await;
}
