//! Stops a bottle when its parent ends. The parent is the bottle that started it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bottle_host::Host;
use bottle_instance::Store;
use bottle_instance::children::{Parent, ParentState};
use bottle_policy::names::Slug;
use tokio::sync::mpsc;

use super::protocol::Notice;
use super::shared::{Command, Shared};

/// The interval at which the state of the parent is read.
const INTERVAL: Duration = Duration::from_secs(1);

/// How long a parent may be without a keeper before its child is stopped. Within this time, the parent's watcher starts
/// a new keeper.
const LOST_FOR: Duration = Duration::from_secs(30);

/// The time between SIGTERM and SIGKILL for the agent of the stopped bottle.
const GRACE: Duration = Duration::from_secs(10);

/// Waits until the parent has ended, and then stops the bottle `slug`.
pub(super) async fn watch(host: Host, slug: Slug, parent: Parent, shared: Arc<Shared>) {
    let store = Store::of(&host);
    let mut lost = Lost::default();
    while !lost.ends(parent.state(&store), Instant::now()) {
        tokio::time::sleep(INTERVAL).await;
    }
    stop(&shared, format!("{slug} ends, because {}, which started it, ended", parent.slug)).await;
}

/// Stops the bottle, and tells its clients why.
pub(super) async fn stop(shared: &Shared, why: String) {
    shared.notices.send(Notice::Warning(why));
    // The receiver of the stop's events is never read, because no client requested this stop.
    let (events, _received) = mpsc::channel(16);
    let grace_ms = u64::try_from(GRACE.as_millis()).unwrap_or(u64::MAX);
    let _ = shared.commands.send(Command::Stop { grace_ms, events }).await;
}

/// The time since which the parent has no keeper. `None` if the parent has a keeper.
#[derive(Debug, Default)]
struct Lost(Option<Instant>);

impl Lost {
    /// Whether the child must be stopped. `state` is the current state of its parent.
    fn ends(&mut self, state: ParentState, now: Instant) -> bool {
        match state {
            ParentState::Running => {
                self.0 = None;
                false
            }
            ParentState::Lost => now.duration_since(*self.0.get_or_insert(now)) >= LOST_FOR,
            ParentState::Ended => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_ends_with_its_parent_and_not_with_its_parents_keeper() {
        use ParentState::{Ended, Lost as Gone, Running};
        let begin = Instant::now();
        for states in [
            vec![(Running, 0, false), (Ended, 1, true)],
            vec![(Ended, 0, true)],
            vec![(Gone, 0, false), (Gone, 29, false), (Gone, 30, true)],
            vec![(Running, 0, false), (Gone, 100, false), (Gone, 129, false), (Gone, 131, true)],
            vec![
                (Gone, 0, false),
                (Running, 20, false),
                (Gone, 40, false),
                (Gone, 60, false),
                (Gone, 70, true),
            ],
            vec![(Gone, 0, false), (Ended, 1, true)],
        ] {
            let mut lost = Lost::default();
            for (state, second, ends) in states {
                let now = begin + Duration::from_secs(second);
                assert_eq!(lost.ends(state, now), ends, "{state:?} after {second} s");
            }
        }
    }
}
